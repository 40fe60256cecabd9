"""Datasets that consist of others: what they say themselves counts, as for a plain dataset, and batches are read at once."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import ready
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from fl_lightning import ClassesPartitioner, ColumnPartitioner, DataError, FederatedDataModule, FederationReport, IIDPartitioner
from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.labels import labels_at_hand, read_column, read_labels, read_persons

ROWS = 40
OWN = {
    "targets": [k % 10 // 5 for k in range(ROWS)],
    "classes": ["small", "large"],
    "persons": [k // 4 for k in range(ROWS)],
    "domains": ["north" if k < 25 else "south" for k in range(ROWS)],
}
"""Two classes of ten digits, each patient with four rows."""


class Digits(Dataset[Any]):
    """Ten classes, and none of the persons and domains above."""

    def __init__(self) -> None:
        self.inputs = torch.arange(2 * ROWS).reshape(ROWS, 2).float()
        self.targets = [k % 10 for k in range(ROWS)]
        self.classes = [f"digit {k}" for k in range(10)]
        self.persons = list(range(ROWS))
        self.domains = ["everywhere"] * ROWS

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index], self.targets[index]


class Part(Subset[Any]):
    """Other labels, read as they are told."""

    def __getitem__(self, index: Any) -> Any:
        inputs, label = self.dataset[self.indices[index]]
        return inputs, label // 5

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Joined(ConcatDataset[Any]):
    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs, label // 5


def saying(dataset: Any, **own: Any) -> Any:
    """Return a dataset with attributes of its own."""
    vars(dataset).update(own)
    return dataset


def halves() -> list[Subset[Any]]:
    return [Subset(Digits(), range(25)), Subset(Digits(), range(25, ROWS))]


WRAPPED: dict[str, Callable[[], Any]] = {
    "a subclass of Subset": lambda: saying(Part(Digits(), range(ROWS)), **OWN),
    "a subclass of ConcatDataset": lambda: saying(Joined(halves()), **OWN),
    "a Subset of a subclass": lambda: Subset(saying(Part(Digits(), range(ROWS)), **OWN), range(ROWS)),
    "a ConcatDataset of a subclass": lambda: ConcatDataset([saying(Part(Digits(), range(ROWS)), **OWN)]),
    "a part of a subclass": lambda: ClientPart(saying(Joined(halves()), **OWN), range(ROWS)),
}


def divided(dataset: Any, partitioner: Any) -> FederatedDataModule:
    loader = DataLoader(dataset, 5)
    return ready(FederatedDataModule.from_loaders(loader, partitioner=partitioner, client_validation=0.2, client_test=0.3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("partitioner", [ClassesPartitioner(2, 1), ColumnPartitioner("domains")], ids=["labels", "column"])
def test_a_wrapper_with_labels_and_columns_of_its_own_is_divided_as_a_plain_dataset(kind, partitioner):
    data, plain = divided(WRAPPED[kind](), partitioner), divided(saying(Digits(), **OWN), partitioner)
    for part in ("training", "validation", "test"):
        own, expected = getattr(data.splits, part), getattr(plain.splits, part)
        assert own.names == expected.names
        assert [indices.tolist() for indices in own] == [indices.tolist() for indices in expected]
    assert data.label_counts().tolist() == plain.label_counts().tolist()
    assert data.client_datasets.num_classes() == 2
    assert FederationReport().show_partition(data, Path()).columns[-2:] == ["small", "large"]


@pytest.mark.parametrize("kind", WRAPPED)
def test_patients_of_a_wrapper_are_in_one_part_also_at_a_client(kind):
    data = ready(FederatedDataModule.from_clients({"a": WRAPPED[kind](), "b": saying(Digits(), **OWN)}, client_test=0.3))
    for client, begin in ((0, 0), (1, ROWS)):
        trained, tested = (
            {OWN["persons"][k - begin] for k in part[client].tolist()} for part in (data.splits.training, data.splits.test)
        )
        assert len(tested) == 3
        assert not trained & tested


class Delegating(Subset[Any]):
    """Shows the attributes of the dataset inside, which has other examples, in another order."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def test_a_wrapper_that_shows_what_is_inside_has_its_own_examples():
    order = list(range(ROWS))[::-1]
    found = Delegating(Digits(), order)
    assert read_labels(found).tolist() == [index % 10 for index in order]
    assert read_persons(found).tolist() == order


class Told(Part):
    @property
    def targets(self) -> list[int]:
        return [self.dataset.targets[index] for index in self.indices]


class Halved(Digits):
    def __getitem__(self, index: int) -> Any:
        inputs, label = super().__getitem__(index)
        return inputs, label // 5


def of_tensors() -> TensorDataset:
    return TensorDataset(torch.arange(2 * ROWS).reshape(ROWS, 2).float(), torch.arange(ROWS) % 10)


LABELLED: dict[str, tuple[Callable[[], Any], bool]] = {
    "a subclass of Subset": (lambda: Part(Digits(), range(ROWS)), False),
    "a subclass of ConcatDataset": (lambda: Joined(halves()), False),
    "nested": (lambda: ConcatDataset([Subset(Joined(halves()), range(30)), Part(Digits(), range(30, ROWS))]), False),
    "a subclass that shows the labels inside": (lambda: Told(Digits(), range(ROWS)), True),
    "a Subset with labels of its own": (lambda: saying(Subset(of_tensors(), range(ROWS)), targets=OWN["targets"]), True),
    "tensors with labels of their own": (lambda: saying(of_tensors(), targets=OWN["targets"]), True),
    "a subclass of a dataset with labels": (Halved, True),
    "inside a Subset": (lambda: Subset(Halved(), range(ROWS)[::-1]), True),
    "a target_transform": (lambda: saying(Halved(), target_transform=lambda label: label // 5), True),
}
"""Datasets, and whether they store other labels than they return."""


@pytest.mark.parametrize("kind", LABELLED)
def test_labels_are_those_that_clients_read(kind):
    make, differs = LABELLED[kind]
    dataset = make()
    dataset.persons = OWN["persons"]
    expected = torch.tensor([int(dataset[index][1]) for index in range(ROWS)])
    with pytest.warns(UserWarning, match="stores the label . of example") if differs else warnings.catch_warnings():
        warnings.simplefilter("default" if differs else "error")
        assert torch.equal(read_labels(dataset), expected)
    assert (found := labels_at_hand(dataset)) is None or torch.equal(found, expected)
    data = ready(FederatedDataModule.from_loaders(DataLoader(dataset, 5), partitioner=IIDPartitioner(2)))
    assert data.client_datasets.num_classes() == int(expected.max()) + 1
    for client, counts in enumerate(data.label_counts()):
        read = torch.cat([labels for _, labels in data.client(client, 0).train_dataloader()])
        assert torch.equal(torch.bincount(read, minlength=len(counts)), counts)


@pytest.mark.parametrize("name", ["persons", "domains", "city"])
@pytest.mark.parametrize("kind", ["a subclass of Subset", "a subclass of ConcatDataset"])
def test_persons_and_columns_inside_a_wrapper_that_reads_in_its_own_way_are_refused(kind, name):
    """It may return the rows in another order, or some of them twice."""
    inside = saying(Digits(), city=OWN["domains"])
    dataset = Part(inside, range(ROWS)) if kind == "a subclass of Subset" else Joined([inside])
    for wrapped in (dataset, Subset(dataset, range(ROWS)), ConcatDataset([dataset])):
        with pytest.raises(DataError, match=f"overrides how examples are read, so the '{name}' of the data inside may not be"):
            read_persons(wrapped) if name == "persons" else read_column(wrapped, name)
    vars(dataset)[name] = OWN["domains"]
    assert read_column(dataset, name)[1] == ("north", "south")


def test_rows_of_joined_datasets_are_in_the_order_asked_for():
    """Over several datasets in one batch, and counted from the end."""
    joined = ConcatDataset([TensorDataset(torch.arange(3), torch.arange(3)), TensorDataset(*[torch.arange(10, 15)] * 2)])
    dataset = Subset(joined, [-1, -8])
    for part, asked, rows in (
        (ClientPart(dataset, [0, 1]), [0, 1], [14, 0]),
        (ClientPart(dataset, [0, 1]), [0], [14]),
        (ClientPart(joined, [5, 0, 6, 2]), [3, 0, 1], [2, 12, 0]),
    ):
        assert [int(row) for row, _ in part.__getitems__(asked)] == rows
    assert read_labels(dataset).tolist() == [14, 0]


# ---------------------------------------------------------------- batches


class AtOnce(Dataset[Any]):
    """A file that reads a batch at once; one by one would take hours."""

    def __init__(self, begin: int = 0, rows: int = 12) -> None:
        self.begin, self.rows = begin, rows
        self.targets = [(begin + index) % 3 for index in range(rows)]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("read one by one")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(torch.full((2,), float(self.begin + index)), (self.begin + index) % 3) for index in indices]


def rows_of(loader: Any) -> list[int]:
    return sorted(int(row) for inputs, _ in loader for row in inputs[:, 0].round())


ONE, TWO = {"a": AtOnce()}, {"a": AtOnce(), "b": AtOnce(100)}
LOST: dict[str, Callable[[], FederatedDataModule]] = {
    "one client": lambda: FederatedDataModule.from_clients(ONE, batch_size=5),
    "two clients": lambda: FederatedDataModule.from_clients(TWO, batch_size=5),
    "a Subset": lambda: FederatedDataModule.from_clients({"a": Subset(AtOnce(-3, 20), range(3, 15))}, batch_size=5),
    "nested": lambda: FederatedDataModule.from_clients(
        {"a": Subset(ConcatDataset([AtOnce(), AtOnce(50)]), range(12))}, batch_size=5
    ),
    "noise": lambda: FederatedDataModule.from_clients(ONE, batch_size=5, feature_noise=1e-9),
    "held out": lambda: FederatedDataModule.from_clients({**TWO, "c": AtOnce(200)}, batch_size=5, held_out_clients=["c"]),
    "workers": lambda: FederatedDataModule.from_clients(TWO, batch_size=5, num_workers=1),
    "own sets": lambda: FederatedDataModule.from_clients(TWO, val={"a": AtOnce(30), "b": AtOnce(60)}, batch_size=5),
}


@pytest.mark.parametrize("kind", LOST)
def test_a_dataset_that_reads_batches_at_once_is_never_read_one_by_one(kind):
    data = LOST[kind]()
    data.setup("fit")
    for client in range(data.num_clients):
        expected = list(range(100 * client, 100 * client + 12))
        assert rows_of(data.client(client, 0).train_dataloader()) == expected
        assert rows_of(data.client_evaluation_view(client, "training").val_dataloader()) == expected
    if data.splits.unseen is not None:
        assert rows_of(data.client_evaluation_view(2, "test").val_dataloader()) == list(range(200, 212))
    if kind == "own sets":
        assert rows_of(data.client_evaluation_view(1, "validation").val_dataloader()) == list(range(60, 72))
    if data.num_clients == 1:
        assert rows_of(data.train_dataloader()) == list(range(12))
        assert data.label_counts().tolist() == [[4, 4, 4]]
    data.teardown("fit")
