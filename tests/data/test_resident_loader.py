"""Workers that stay for all clients and rounds: the same batches, from the same processes, random or not."""

import multiprocessing
import os
import random
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import SIZES, Consecutive, Plain, blobs, federate, same_bits, weights
from torch.utils.data import DataLoader, Dataset

from fl_lightning import DataError, LocalTraining
from fl_lightning.data.resident_loader import ClientLoader, ResidentLoader, close_all


class Lazy(Dataset):
    """Examples that are read one by one; noise from three sources of random numbers, and who read it."""

    def __init__(self, n: int = sum(SIZES), noise: float = 0.0) -> None:
        self.x, self.y = blobs(n, 1)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() + np.random.rand() + float(torch.rand(()))
        return self.x[index] + self.noise * drawn, self.y[index]


class Readers(Lazy):
    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


class LazyBlobs(L.LightningDataModule):
    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers, self.dataset = workers, Lazy()

    def train_dataloader(self) -> Any:
        return DataLoader(self.dataset, batch_size=5, shuffle=True, num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return DataLoader(Lazy(), batch_size=16, num_workers=self.workers)


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


def final(workers: int, sizes: Any = SIZES, **local: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    module = Plain()
    federate(module, 2, data=LazyBlobs(workers), partitioner=Consecutive(sizes), local=LocalTraining(max_epochs=2, **local))
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
