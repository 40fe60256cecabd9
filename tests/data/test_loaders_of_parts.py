"""Which examples each part has, and how they are read: what the part's own loader says."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Blobs, Consecutive, Plain, federate, same_bits, trainer, weights
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from fl_lightning import (
    ClientEvaluation,
    ConfigurationError,
    DataError,
    DirichletPartitioner,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    IIDPartitioner,
    LocalTraining,
)
from fl_lightning.data.readers import same_function

SIZE = 40


def numbers(size: int = SIZE, begin: int = 0) -> TensorDataset:
    """Examples that tell their number in the first feature."""
    x = torch.zeros(size, 4)
    x[:, 0] = torch.arange(size) + begin
    return TensorDataset(x, torch.arange(size) % 3)


class Own(L.LightningDataModule):
    def __init__(self, train: Any, val: Any = None) -> None:
        super().__init__()
        self.train, self.val = train, val

    def train_dataloader(self) -> Any:
        return self.train

    def val_dataloader(self) -> Any:
        return self.val


def read(loader: Any) -> list[int]:
    return sorted(int(number) for batch in loader for number in batch[0][:, 0])


class Halves(Sampler[int]):
    """Reads another half of the examples in each epoch."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return SIZE // 2

    def __iter__(self) -> Any:
        return iter(torch.randperm(SIZE, generator=self.generator)[: SIZE // 2].tolist())


class Endless(Halves):
    def __iter__(self) -> Any:
        while True:
            yield 3


class Same(Halves):
    def __iter__(self) -> Any:
        return iter(range(0, SIZE, 2))


# ---------------------------------------------------------------- which examples


def test_a_clients_validation_part_is_what_its_loader_reads():
    """Over one dataset, as people divide it: 36 rows to train on, 4 to validate on."""
    parts = Own(
        DataLoader(numbers(), 5, sampler=SubsetRandomSampler(range(36))),
        DataLoader(numbers(), 5, sampler=SubsetRandomSampler(range(36, 40))),
    )
    data = FederatedDataModule.from_clients({"a": parts})
    data.setup("fit")
    assert read(data.client_evaluation_view(0, "validation").val_dataloader()) == [36, 37, 38, 39]
    assert read(data.val_dataloader()) == [36, 37, 38, 39]
    assert read(data.client(0, 1).train_dataloader()) == list(range(36))
    assert data.num_examples(0) == 36


@pytest.mark.parametrize(
    ("sampler", "count"),
    [
        (lambda: SubsetRandomSampler([1, 5, 7, 30]), 4),
        (lambda: WeightedRandomSampler([0.0] * 30 + [1.0] * 10, 200), 10),
        (lambda: RandomSampler(range(SIZE), replacement=True, num_samples=8), SIZE),
        (Same, 20),
    ],
)
def test_a_client_counts_with_the_examples_that_its_sampler_can_read(sampler, count):
    data = FederatedDataModule.from_clients({"a": DataLoader(numbers(), 5, sampler=sampler())})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.setup("fit")
    assert data.num_examples(0) == count


def test_batches_of_some_examples_count_those():
    batches: Any = BatchSampler(SubsetRandomSampler([1, 2, 3, 30]), 2, False)
    data = FederatedDataModule.from_clients({"a": DataLoader(numbers(), batch_sampler=[[1, 2], [2, 9]])})
    data.setup("fit")
    assert data.num_examples(0) == 3
    data = FederatedDataModule.from_clients({"a": DataLoader(numbers(), batch_sampler=batches)})
    data.setup("fit")
    assert data.num_examples(0) == 4


@pytest.mark.parametrize("make", [Halves, Endless])
def test_a_sampler_that_varies_counts_with_all_examples_and_says_so(make):
    data = FederatedDataModule.from_clients({"a": DataLoader(numbers(), 5, sampler=make())})
    with pytest.warns(UserWarning, match=rf"The sampler of client 'a' \({make.__name__}|BatchSampler.*counts with all 40 exam"):
        data.setup("fit")
    assert data.num_examples(0) == SIZE


def test_a_validation_sampler_that_varies_is_refused():
    own = Own(DataLoader(numbers(), 5), DataLoader(numbers(), 5, sampler=Halves()))
    with pytest.raises(DataError, match="The validation loader of client 'a' uses Halves, which reads other examples in each"):
        FederatedDataModule.from_clients({"a": own}).setup("fit")


@pytest.mark.parametrize(("validation", "test", "public"), [(0.0, 0.25, 0.0), (0.2, 0.2, 0.0), (0.0, 0.25, 0.2)])
def test_nothing_but_what_the_training_loader_reads_is_divided(validation, test, public):
    """The server validates on the other rows of the same dataset, so no client may train or test on them."""
    one = Own(
        DataLoader(numbers(), 5, sampler=SubsetRandomSampler(range(0, 30))),
        DataLoader(numbers(), 5, sampler=SubsetRandomSampler(range(30, 40))),
    )
    shares = {"client_validation": validation, "client_test": test, "public_share": public}
    data = FederatedDataModule(one, DirichletPartitioner(3, 5.0, min_examples=2), **shares)
    data.setup("fit")
    splits = data.splits
    parts = [splits.training.order, splits.public, *(p.order for p in (splits.validation, splits.test) if p is not None)]
    assert torch.cat(parts).sort().values.tolist() == list(range(30))
    assert read(data.val_dataloader()) == list(range(30, 40))
    trained = [read(data.client(client, 1).train_dataloader()) for client in range(3)]
    assert {number for own in trained for number in own} == {*splits.training.order.tolist(), *splits.public.tolist()}


# ---------------------------------------------------------------- how they are read


class Shifts:
    """A collation that changes inputs, as mixing and augmenting ones do."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def collate(self, examples: list[Any]) -> Any:
        x, y = default_collate(examples)
        return x + self.shift, y


def shifted(examples: list[Any], shift: float = 0.0) -> Any:
    return Shifts(shift).collate(examples)


class WithCollation(L.LightningDataModule):
    def __init__(self, begin: int = 0, how: str = "bound") -> None:
        super().__init__()
        self.dataset, self.how, self.shift = numbers(20, begin), how, 100.0

    def collate(self, examples: list[Any]) -> Any:
        return shifted(examples, self.shift)

    def train_dataloader(self) -> Any:
        shift = 100.0
        functions = {"bound": self.collate, "lambda": lambda one: shifted(one, shift), "partial": partial(shifted, shift=shift)}
        return DataLoader(self.dataset, 5, collate_fn=functions[self.how])

    def val_dataloader(self) -> Any:
        return DataLoader(self.dataset, 5)


@pytest.mark.parametrize("how", ["bound", "lambda", "partial"])
def test_each_part_is_collated_by_its_own_loader(how):
    """Equal datamodules with a method, a lambda or a partial function to collate are alike, and validate without it."""
    data = FederatedDataModule.from_clients({"a": WithCollation(0, how), "b": WithCollation(20, how)})
    data.setup("fit")
    for client, begin in ((0, 0), (1, 20)):
        own = list(range(begin, begin + 20))
        assert read(data.client(client, 1).train_dataloader()) == [number + 100 for number in own]
        assert read(data.client_evaluation_view(client, "validation").val_dataloader()) == own
    assert read(data.val_dataloader()) == list(range(40))


def test_clients_may_collate_in_different_ways():
    first, second = WithCollation(0), WithCollation(20)
    second.shift = 300.0
    data = FederatedDataModule.from_clients({"a": first, "b": second}, client_test=0.2)
    data.setup("fit")
    trained = [read(data.client(client, 1).train_dataloader()) for client in range(2)]
    assert [min(own) >= begin for own, begin in zip(trained, (100, 320), strict=True)] == [True, True]
    tested = [read(data.client_evaluation_view(client, "test").val_dataloader()) for client in range(2)]
    assert max(tested[0]) < 20 <= min(tested[1]) < 40  # as the clients' validation sets are read


class OneSet(WithCollation):
    """A training set to be divided, and a validation set of its own."""

    def val_dataloader(self) -> Any:
        return DataLoader(numbers(5, 1000), 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_held_out_parts_are_read_like_the_validation_set(workers):
    class Working(OneSet):
        def train_dataloader(self) -> Any:
            return DataLoader(self.dataset, 5, collate_fn=self.collate, num_workers=workers)

    data = FederatedDataModule(Working(), IIDPartitioner(2), client_validation=0.2, client_test=0.2)
    data.setup("fit")
    for client in range(2):
        assert min(read(data.client(client, 1).train_dataloader())) >= 100
        for part in ("training", "validation", "test"):
            assert max(read(data.client_evaluation_view(client, part).val_dataloader())) < 20
    data.teardown("fit")


def test_the_scores_of_clients_are_those_of_unchanged_inputs(tmp_path):
    """A client's test part and its loss, with a training collation that destroys the inputs."""

    class Destroys(Blobs):
        def train_dataloader(self) -> Any:
            def collate(examples: list[Any]) -> Any:
                return shifted(examples, 0.0 if trains else 1e4)

            return DataLoader(TensorDataset(*self.train), 5, collate_fn=collate)

        def val_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*self.val), 16)

    scores = []
    for trains in (True, False):  # noqa: B007 (the collation reads it)
        torch.manual_seed(3)
        data = FederatedDataModule(Destroys(shuffle=False), IIDPartitioner(2), client_test=0.3)
        federation = FederatedOrchestrator(client_evaluation=ClientEvaluation(every_n_rounds=1, metric="val_acc"))
        module = Plain(lr=0.0)  # the model stays as it is
        trainer(1, federation, default_root_dir=tmp_path).fit(module, data)
        scores.append(Path(tmp_path / "client_evaluation.csv").read_text())
    assert scores[0] == scores[1]


def test_a_set_without_a_loader_says_how_it_is_read():
    clients = {"a": DataLoader(numbers(), 5, collate_fn=Shifts(100.0).collate)}
    data = FederatedDataModule.from_clients(clients, val=numbers(5, 1000))
    data.setup("fit")
    with pytest.warns(UserWarning, match="The validation set has no loader, so it is read with the 'collate_fn' of the train"):
        assert min(read(data.val_dataloader())) == 1100
    data = FederatedDataModule.from_clients(clients, val=DataLoader(numbers(5, 1000)))
    data.setup("fit")
    assert read(data.val_dataloader()) == [1000, 1001, 1002, 1003, 1004]


def test_when_two_functions_are_the_same():
    def made(shift: float, default: int = 1) -> Any:
        return lambda examples: (examples, shift, default)

    one = WithCollation()
    assert same_function(made(1.0), made(1.0))
    assert not same_function(made(1.0), made(2.0))
    assert not same_function(made(1.0), lambda examples: examples)
    assert same_function(one.collate, one.collate)
    assert not same_function(one.collate, WithCollation().collate)
    assert same_function(partial(shifted, shift=1.0), partial(shifted, shift=1.0))
    assert not same_function(partial(shifted, shift=1.0), partial(shifted, shift=2.0))
    assert not same_function(partial(shifted, shift=torch.ones(2)), partial(shifted, shift=torch.ones(2)))
    assert same_function(None, None)
    assert not same_function(None, shifted)


# ---------------------------------------------------------------- the user's dataset


class Listed(Dataset[Any]):
    """A dataset with attributes and methods that a module may use."""

    def __init__(self, begin: int = 0) -> None:
        self.targets = [k % 3 for k in range(begin, begin + 20)]
        self.names = np.array([f"row {k}" for k in range(begin, begin + 20)])
        self.begin, self.shift = begin, 0.0

    def describe(self) -> str:
        return f"shifted by {self.shift}"

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(self.begin + index)) + self.shift, self.targets[index]


class Reads(L.LightningDataModule):
    def __init__(self, begin: int = 0, workers: int = 0) -> None:
        super().__init__()
        self.dataset, self.workers = Listed(begin), workers

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, 5, num_workers=self.workers)


SHIFTED: list[tuple[float, list[int], str]] = []


class SetsShift(Plain):
    """Makes the inputs harder from epoch to epoch, as a curriculum does."""

    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.dataset.shift = 1000.0 * (self.current_epoch + 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        dataset = self.trainer.train_dataloader.dataset
        SHIFTED.append((float(batch[0].min()), list(dataset.targets), dataset.describe()))
        return super().training_step((batch[0] / 1e4, batch[1]), batch_idx)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
@pytest.mark.parametrize("divided", [True, False], ids=["divided", "of its own"])
def test_a_module_reaches_its_clients_dataset(divided, engine, workers):
    SHIFTED.clear()
    local = LocalTraining(engine=engine, max_epochs=2)
    if divided:
        source = Reads(0, workers)
        data = FederatedDataModule(source, Consecutive([10, 10]))
    else:
        source = {"a": Reads(0, workers), "b": Reads(20, workers)}
        data = FederatedDataModule.from_clients(source)
    trainer(1, FederatedOrchestrator(local=local)).fit(SetsShift(), data)
    size = 10 if divided else 20
    firsts = [int(low // 1000) for low, _, _ in SHIFTED]
    each = size // 5
    assert firsts == [*[1] * each, *[2] * each] * 2  # each client begins anew
    assert [targets for _, targets, _ in SHIFTED[:1]] == [[k % 3 for k in range(size)]]
    assert [len(targets) for _, targets, _ in SHIFTED] == [size] * len(SHIFTED)
    assert SHIFTED[0][2] == "shifted by 1000.0"
    left = [source.dataset] if divided else [one.dataset for one in source.values()]
    assert [dataset.shift for dataset in left] == [0.0] * len(left)


def test_a_part_has_the_columns_of_its_examples():
    data = FederatedDataModule(Reads(), Consecutive([12, 8]))
    data.setup("fit")
    part = data.client(1, 1).train_dataloader().dataset
    assert part.names.tolist() == [f"row {k}" for k in range(12, 20)]
    assert part.targets == [k % 3 for k in range(12, 20)]
    with pytest.raises(AttributeError, match="no_such"):
        part.no_such  # noqa: B018
    assert isinstance(part, Subset)
    data = FederatedDataModule(Own(DataLoader(numbers(), 5)), Consecutive([30, 10]))
    data.setup("fit")
    x, y = data.client(1, 1).train_dataloader().dataset.tensors
    assert x[:, 0].tolist() == list(range(30, 40))
    assert y.tolist() == [k % 3 for k in range(30, 40)]


# ---------------------------------------------------------------- what is no DataLoader


class WebLoader(IterableDataset[Any]):
    """Like webdataset's: a stream of batches, not of examples."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


class Iterates:
    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


class Counts(FederationCallback):
    def __init__(self) -> None:
        self.examples: list[tuple[int, int, int]] = []

    def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
        self.examples.append((update.client, update.num_examples, update.num_steps))


@pytest.mark.parametrize("form", ["direct", "of a datamodule", "iterator", "iterator of a datamodule"])
def test_batches_are_not_batched_again(form):
    x, y = Blobs().train
    expected, found = [], []
    for batched in (False, True):
        torch.manual_seed(3)
        module, counts = Plain(), Counts()
        source: Any = DataLoader(TensorDataset(x, y), 5)
        if batched:
            kind = Iterates if "iterator" in form else WebLoader
            source = kind(list(source))
            source = Own(source) if "datamodule" in form else source
        data = FederatedDataModule.from_clients({"a": source}, val=DataLoader(TensorDataset(*Blobs().val), 16))
        trainer(2, FederatedOrchestrator(), counts).fit(module, data)
        (found if batched else expected).append((weights(module), counts.examples))
    assert same_bits(expected[0][0], found[0][0])
    assert expected[0][1] == found[0][1]


def test_a_list_that_looks_like_batches_is_named():
    batches = list(DataLoader(numbers(), 5))
    with pytest.warns(UserWarning, match=r"client 'a' are a list whose first element has tensors of the shapes \(5, 4\)"):
        FederatedDataModule.from_clients({"a": batches}).setup("fit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedDataModule.from_clients({"a": [numbers()[k] for k in range(5)]}).setup("fit")


def test_a_list_of_loaders_is_refused():
    with pytest.raises(DataError, match="'train_dataloader' of client 'a' returns a list, but a client trains on a single"):
        FederatedDataModule.from_clients({"a": Own([DataLoader(numbers(), 5)])}).setup("fit")


class Overstates(IterableDataset[Any]):
    """Says that it has 100 examples, and yields 20."""

    def __init__(self, size: int = 20, says: int = 100) -> None:
        self.size, self.says = size, says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Any:
        return iter([numbers()[k] for k in range(self.size)])


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_stream_counts_with_what_it_yields(engine):
    counts = Counts()
    clients = {"a": Overstates(), "b": Overstates(15, 15)}
    data = FederatedDataModule.from_clients(clients, batch_size=5)
    local = LocalTraining(engine=engine, max_epochs=2)
    with pytest.warns(UserWarning, match=r"The stream of client a has a length of 100, but yielded 20 examples in an epoch"):
        trainer(1, FederatedOrchestrator(local=local), counts).fit(Plain(), data)
    assert sorted(counts.examples) == [(0, 20, 8), (1, 15, 6)]


def test_a_stream_that_is_cut_off_counts_with_its_length():
    counts = Counts()
    data = FederatedDataModule.from_clients({"a": Overstates(20, 20)}, batch_size=5)
    trainer(1, FederatedOrchestrator(local=LocalTraining(limit_train_batches=2)), counts).fit(Plain(), data)
    trainer(1, FederatedOrchestrator(local=LocalTraining(max_steps=3, max_epochs=-1)), counts).fit(Plain(), data)
    assert [count for _, count, _ in counts.examples] == [20, 20]


# ---------------------------------------------------------------- names


def test_two_clients_of_one_name_are_refused():
    with pytest.raises(ConfigurationError, match=r"Two clients have the name '1', once as a .*. Give each client a name"):
        FederatedDataModule.from_clients({1: numbers(), "1": numbers()})
    assert FederatedDataModule.from_clients({1: numbers(), "2": numbers()}).datamodule.names == ("1", "2")


def test_a_federation_with_a_sampler_of_its_own_trains():
    """On the examples that it gives: half of them."""
    one = Own(DataLoader(numbers(), 5, sampler=Same()), DataLoader(numbers(5), 5))
    module, counts = Plain(), Counts()
    before = weights(module)
    federate(module, 1, counts, data=one, partitioner=IIDPartitioner(2))
    assert sum(examples for _, examples, _ in counts.examples) == SIZE / 2
    assert not same_bits(weights(module), before)
