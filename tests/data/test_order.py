"""The order of a client's examples is the seed's alone, whoever reads them: the oracle is one permutation an epoch."""

from typing import Any

import lightning as L
import pytest
import torch
from asked_site import north, told, work
from federations import Consecutive, ready
from lazy_stores import Opened
from torch.utils.data import DataLoader, Subset, TensorDataset

from fl_lightning import ClassificationTask, FederatedDataModule
from fl_lightning.data.resident_loader import close_all
from fl_lightning.flower.site.data import SiteData

SIZE, BATCH, SEED = 23, 5, 11
NUMBERS = torch.arange(SIZE, dtype=torch.float32)


def examples() -> TensorDataset:
    return TensorDataset(NUMBERS, torch.zeros(SIZE, dtype=torch.int64))


def one_by_one() -> list[tuple[torch.Tensor, int]]:
    return [(number, 0) for number in NUMBERS]


def of_module(dataset: Any, **settings: Any) -> FederatedDataModule:
    datamodule = L.LightningDataModule.from_datasets(dataset)
    datamodule.train_dataloader = lambda: DataLoader(dataset, BATCH, shuffle=True, **settings)  # type: ignore[method-assign]
    return FederatedDataModule(datamodule, Consecutive((SIZE,)))


PATHS: dict[str, Any] = {
    "tensors": lambda: of_module(examples()),
    "a part of tensors": lambda: of_module(Subset(examples(), range(SIZE))),
    "one by one": lambda: of_module(one_by_one()),
    "one worker": lambda: of_module(examples(), num_workers=1),
    "one worker, one by one": lambda: of_module(one_by_one(), num_workers=1),
    "two workers": lambda: of_module(one_by_one(), num_workers=2),
    "workers that persist": lambda: of_module(one_by_one(), num_workers=2, persistent_workers=True),
    "clients": lambda: FederatedDataModule.from_clients({"a": one_by_one()}, batch_size=BATCH),
    "clients of tensors": lambda: FederatedDataModule.from_clients({"a": examples()}, batch_size=BATCH),
    "clients with workers": lambda: FederatedDataModule.from_clients({"a": one_by_one()}, batch_size=BATCH, num_workers=1),
    "clients' loaders": lambda: FederatedDataModule.from_clients({"a": DataLoader(one_by_one(), BATCH, shuffle=True)}),
    "opened": lambda: FederatedDataModule(Opened(lambda client: Subset(examples(), range(SIZE)), [SIZE], BATCH)),
}


@pytest.mark.parametrize("path", PATHS)
def test_each_epoch_is_the_next_permutation_of_the_seed(path: str) -> None:
    data = ready(PATHS[path]())
    loader = data.client(0, SEED).train_dataloader()
    expected = torch.Generator().manual_seed(SEED)
    for _ in range(3):
        read = torch.cat([numbers for numbers, *_ in loader])
        assert torch.equal(read, NUMBERS[torch.randperm(SIZE, generator=expected)])
    close_all()


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_examples_of_all_clients_are_in_the_next_permutation_of_the_global_seed(drop_last: bool) -> None:
    """As a baseline without a federation reads them."""
    loader = ready(of_module(examples(), drop_last=drop_last)).train_dataloader()
    torch.manual_seed(SEED)
    expected = [torch.randperm(SIZE)[: SIZE - SIZE % BATCH * drop_last] for _ in range(3)]
    torch.manual_seed(SEED)
    assert all(torch.equal(torch.cat([numbers for numbers, _ in loader]), NUMBERS[order]) for order in expected)


def test_a_site_over_bytes_reads_its_rows_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = [], []

    def step(self: Any, batch: Any, index: int, own: Any = ClassificationTask.training_step) -> Any:
        read.append(batch[0].clone())
        return own(self, batch, index)

    def client(self: Any, number: int, seed: int, *more: Any, own: Any = SiteData.client) -> Any:
        asked.append((seed, self.whole.datamodule.train_set.tensors[0]))
        return own(self, number, seed, *more)

    monkeypatch.setattr(ClassificationTask, "training_step", step)
    monkeypatch.setattr(SiteData, "client", client)
    assert not told(work(north(), local={"threads": 1, "max_epochs": 3}))
    ((seed, rows),) = asked
    expected = torch.Generator().manual_seed(seed)
    assert torch.equal(torch.cat(read), torch.cat([rows[torch.randperm(24, generator=expected)] for _ in range(3)]))
