"""The user's dataset as a module sees it, and what is no DataLoader."""

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from client_sites import Own, numbers
from federations import Consecutive, Plain, ready, trainer
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator, FederationCallback, LocalTraining


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


FOUND: list[tuple[list[int], str]] = []


class Asks(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        dataset = self.trainer.train_dataloader.dataset
        FOUND.append((list(dataset.targets), dataset.describe()))
        return super().training_step((batch[0] / 1e4, batch[1]), batch_idx)


class SetsShift(Plain):
    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.dataset.shift = 1000.0


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_module_reads_its_clients_dataset_and_sets_nothing_in_it(workers):
    FOUND.clear()
    source = Reads(0, workers)
    trainer(1, FederatedOrchestrator()).fit(Asks(), FederatedDataModule(source, Consecutive([10, 10])))
    parts = ([k % 3 for k in range(10)], [k % 3 for k in range(10, 20)])
    assert [(part, "shifted by 0.0") for part in parts for _ in range(2)] == FOUND
    with pytest.raises(ConfigurationError, match=r"'shift' of the training set cannot be set .*, because clients sh.* Keep"):
        trainer(1, FederatedOrchestrator()).fit(SetsShift(), FederatedDataModule(source, Consecutive([10, 10])))
    assert source.dataset.shift == 0.0


def test_a_part_has_the_columns_of_its_examples():
    data = ready(FederatedDataModule(Reads(), Consecutive([12, 8])))
    part = data.client(1, 1).train_dataloader().dataset
    assert part.names.tolist() == [f"row {k}" for k in range(12, 20)]
    assert part.targets == [k % 3 for k in range(12, 20)]
    with pytest.raises(AttributeError, match="no_such"):
        part.no_such  # noqa: B018
    assert isinstance(part, Subset)
    data = ready(FederatedDataModule(Own(DataLoader(numbers(), 5)), Consecutive([30, 10])))
    x, y = data.client(1, 1).train_dataloader().dataset.tensors
    assert x[:, 0].tolist() == list(range(30, 40))
    assert y.tolist() == [k % 3 for k in range(30, 40)]


# ---------------------------------------------------------------- what is no DataLoader


class Counts(FederationCallback):
    def __init__(self) -> None:
        self.examples: list[tuple[int, int, int]] = []

    def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
        self.examples.append((update.client, update.num_examples, update.num_steps))


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
