"""Which examples each part has, and how they are read: what the part's own loader says."""

import warnings
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from client_sites import Own, numbers
from federations import ready
from torch.utils import data as sets

import fl_lightning as fl

SIZE = 40


def read(loader: Any) -> list[int]:
    return sorted(int(number) for batch in loader for number in batch[0][:, 0])


class Halves(sets.Sampler[int]):
    """Reads another half of the examples in each epoch."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return SIZE // 2

    def __iter__(self) -> Any:
        return iter(torch.randperm(SIZE, generator=self.generator)[: SIZE // 2].tolist())


# ---------------------------------------------------------------- which examples


def test_a_clients_validation_part_is_what_its_loader_reads():
    """Over one dataset, as people divide it: 36 rows to train on, 4 to validate on."""
    parts = Own(
        sets.DataLoader(numbers(), 5, sampler=sets.SubsetRandomSampler(range(36))),
        sets.DataLoader(numbers(), 5, sampler=sets.SubsetRandomSampler(range(36, 40))),
    )
    data = ready(fl.FederatedDataModule.from_clients({"a": parts}))
    assert read(data.client_evaluation_view(0, "validation").val_dataloader()) == [36, 37, 38, 39]
    assert read(data.val_dataloader()) == [36, 37, 38, 39]
    assert read(data.client(0, 1).train_dataloader()) == list(range(36))
    assert data.num_examples(0) == 36


@pytest.mark.parametrize(
    ("how", "count"),
    [
        ({"sampler": sets.SubsetRandomSampler([1, 5, 7, 30])}, 4),
        ({"sampler": sets.WeightedRandomSampler([0.0] * 30 + [1.0] * 10, 200)}, 10),
        ({"sampler": sets.RandomSampler(range(SIZE), replacement=True, num_samples=8)}, SIZE),
        ({"batch_sampler": sets.BatchSampler(sets.SubsetRandomSampler([1, 2, 3, 30]), 2, False)}, 4),
    ],
)
def test_a_client_counts_with_the_examples_that_its_sampler_can_read(how, count):
    data = fl.FederatedDataModule.from_clients({"a": sets.DataLoader(numbers(), **how)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.setup("fit")
    assert data.num_examples(0) == count


def test_an_unknown_sampler_counts_with_all_examples_and_says_so():
    data = fl.FederatedDataModule.from_clients({"a": sets.DataLoader(numbers(), 5, sampler=Halves())})
    with pytest.warns(UserWarning, match=r"the sampler of client 'a' reads \(Halves\), so the client counts with all 40 of"):
        data.setup("fit")
    assert data.num_examples(0) == SIZE


@pytest.mark.parametrize(("validation", "test", "public"), [(0.2, 0.2, 0.0), (0.0, 0.25, 0.2)])
def test_nothing_but_what_the_training_loader_reads_is_divided(validation, test, public):
    """The server validates on the other rows of the same dataset, so no client may train or test on them."""
    one = Own(
        sets.DataLoader(numbers(), 5, sampler=sets.SubsetRandomSampler(range(0, 30))),
        sets.DataLoader(numbers(), 5, sampler=sets.SubsetRandomSampler(range(30, 40))),
    )
    shares = {"client_validation": validation, "client_test": test, "public_share": public}
    data = ready(fl.FederatedDataModule(one, fl.DirichletPartitioner(3, 5.0, min_examples=2), **shares))
    splits = data.splits
    parts = [splits.training.order, splits.public, *(p.order for p in (splits.validation, splits.test) if p is not None)]
    assert torch.cat(parts).sort().values.tolist() == list(range(30))
    assert read(data.val_dataloader()) == list(range(30, 40))
    trained = [read(data.client(client, 1).train_dataloader()) for client in range(3)]
    assert {number for own in trained for number in own} == {*splits.training.order.tolist(), *splits.public.tolist()}


# ---------------------------------------------------------------- how they are read


def shifted(examples: list[Any], shift: float = 100.0) -> Any:
    """A collation that changes inputs, as mixing and augmenting ones do."""
    x, y = sets.default_collate(examples)
    return x + shift, y


class WithCollation(L.LightningDataModule):
    def __init__(self, begin: int, how: str) -> None:
        super().__init__()
        self.dataset, self.how, self.shift = numbers(20, begin), how, 100.0

    def collate(self, examples: list[Any]) -> Any:
        return shifted(examples, self.shift)

    def train_dataloader(self) -> Any:
        functions = {"bound": self.collate, "lambda": lambda one: shifted(one), "partial": partial(shifted, shift=100.0)}
        return sets.DataLoader(self.dataset, 5, collate_fn=functions[self.how])

    def val_dataloader(self) -> Any:
        return sets.DataLoader(self.dataset, 5)


@pytest.mark.parametrize("how", ["bound", "lambda", "partial"])
def test_each_part_is_collated_by_its_own_loader(how):
    """Equal datamodules with a method, a lambda or a partial function to collate are alike, and validate without it."""
    data = ready(fl.FederatedDataModule.from_clients({"a": WithCollation(0, how), "b": WithCollation(20, how)}))
    for client, begin in ((0, 0), (1, 20)):
        own = list(range(begin, begin + 20))
        assert read(data.client(client, 1).train_dataloader()) == [number + 100 for number in own]
        assert read(data.client_evaluation_view(client, "validation").val_dataloader()) == own
    assert read(data.val_dataloader()) == list(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_held_out_parts_are_read_like_the_validation_set(workers):
    training = sets.DataLoader(numbers(20), 5, collate_fn=shifted, num_workers=workers)
    source = Own(training, sets.DataLoader(numbers(5, 1000), 5, num_workers=workers))
    data = ready(fl.FederatedDataModule(source, fl.IIDPartitioner(2), client_validation=0.2, client_test=0.2))
    for client in range(2):
        assert min(read(data.client(client, 1).train_dataloader())) >= 100
        for part in ("training", "validation", "test"):
            assert max(read(data.client_evaluation_view(client, part).val_dataloader())) < 20
    data.teardown("fit")


def test_a_set_has_a_collation_of_its_own_beside_the_clients():
    clients = {"a": sets.DataLoader(numbers(), 5, collate_fn=shifted)}
    for more in ({"val": sets.DataLoader(numbers(5, 1000))}, {"val": numbers(5, 1000), "collate_fn": sets.default_collate}):
        data = ready(fl.FederatedDataModule.from_clients(clients, **more))
        assert read(data.val_dataloader()) == [1000, 1001, 1002, 1003, 1004]
