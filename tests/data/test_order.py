"""The order of a client's examples is the seed's alone, and workers that stay do not change it."""

import multiprocessing
import os
import random
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from client_sites import Own
from federations import SIZES, Consecutive, Plain, blobs, federate, ready, same_bits, weights
from lazy_stores import Opened
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fl_lightning import DataError, FederatedDataModule
from fl_lightning.data.resident_loader import ClientLoader, ResidentLoader, close_all

# ------ The order of a client's examples is the seed's alone, whoever reads them


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


# ------ Workers that stay for all clients and rounds


class Lazy(Dataset):
    """Examples that are read one by one; noise from three sources of random numbers, and who read it."""

    def __init__(self, noise: float = 0.0) -> None:
        self.x, self.y = blobs(sum(SIZES), 1)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() + np.random.rand() + float(torch.rand(()))
        return self.x[index] + self.noise * drawn, self.y[index]


class Readers(Lazy):
    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


@pytest.fixture(autouse=True)
def workers_end_with_the_test():
    yield
    close_all()


def test_the_same_processes_read_for_every_client():
    resident = ResidentLoader(DataLoader(Readers(), num_workers=2))
    pids: set[int] = set()
    for client, indices in enumerate(torch.arange(sum(SIZES)).split(list(SIZES))):
        loader = ClientLoader(resident, indices, 4, torch.Generator().manual_seed(client), shuffle=True)
        for _ in range(2):
            batches = list(loader)
            assert len(batches) == len(loader) == -(-len(indices) // 4)
            assert torch.cat([x for x, _ in batches]).sort().values.tolist() == indices.tolist()
            pids |= {int(pid) for _, own in batches for pid in own}
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_an_iteration_that_is_left_early_does_not_reach_the_next():
    resident = ResidentLoader(DataLoader(Readers(), num_workers=2))
    first = ClientLoader(resident, torch.arange(20), 2, None, shuffle=False)
    for batch in first:
        assert batch[0].tolist() == [0, 1]
        break
    second = ClientLoader(resident, torch.arange(20, 26), 4, None, shuffle=False, drop_last=True)
    assert [x.tolist() for x, _ in second] == [[20, 21, 22, 23]]


def test_random_transforms_depend_on_seed_and_batch_alone():
    def read(workers: int, before: int) -> torch.Tensor:
        resident = ResidentLoader(DataLoader(Lazy(noise=1.0), num_workers=workers))
        for _ in range(before):
            list(ClientLoader(resident, torch.arange(9), 3, torch.Generator().manual_seed(8), shuffle=True))
        loader = ClientLoader(resident, torch.arange(12), 3, torch.Generator().manual_seed(7), shuffle=True)
        return torch.cat([x for _ in range(2) for x, _ in loader])

    once = read(1, 0)
    assert torch.equal(once, read(2, 0))
    assert torch.equal(once, read(2, 3))
    assert not torch.equal(once[:12], once[12:])


def final(workers: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    module = Plain()
    training = DataLoader(Lazy(), 5, shuffle=True, num_workers=workers)
    federate(module, 2, data=Own(training, DataLoader(Lazy(), 16, num_workers=workers)))
    return weights(module)


@pytest.mark.slow
def test_workers_do_not_change_the_result_and_are_let_go_at_the_end():
    before = set(multiprocessing.active_children())
    assert same_bits(final(0), final(2))
    assert set(multiprocessing.active_children()) <= before


def test_two_iterations_at_once_are_refused():
    resident = ResidentLoader(DataLoader(Readers(), num_workers=1))
    one, other = (iter(ClientLoader(resident, torch.arange(k, k + 6), 2, None)) for k in (0, 6))
    assert next(one)[0].tolist() == [0, 1]
    assert next(other)[0].tolist() == [6, 7]
    with pytest.raises(DataError, match="set the training loader's 'num_workers' to 0"):
        next(one)


def test_evaluation_reads_the_same_every_time():
    resident = ResidentLoader(DataLoader(Lazy(noise=1.0), num_workers=2))
    loader = ClientLoader(resident, torch.arange(8), 3, None)
    first = torch.cat([x for x, _ in loader])
    list(ClientLoader(resident, torch.arange(9), 3, torch.Generator().manual_seed(8), shuffle=True))
    assert torch.equal(first, torch.cat([x for x, _ in loader]))
