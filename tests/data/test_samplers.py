"""Samplers of a training loader are carried over to the clients."""

from typing import Any

import pytest
import torch
from client_sites import Own
from federations import Consecutive, ready
from torch.utils import data as sets

from fl_lightning import FederatedDataModule

SIZE = 40


def read(sampler: Any, client: int = 0, seed: int = 1, sizes: Any = (10, 30)) -> tuple[list[int], Any]:
    """What a client reads in one epoch, and its loader."""
    source = sets.DataLoader(sets.TensorDataset(torch.arange(SIZE)), 5, sampler=sampler, generator=torch.Generator())
    loader = ready(FederatedDataModule(Own(source), Consecutive(sizes))).client(client, seed).train_dataloader()
    return torch.cat([batch[0] for batch in loader]).tolist(), loader


def test_weights_are_those_of_the_clients_examples():
    """Client 0 has weights 3 and 1 in turn: 8,000 of 20,000 draws, within five standard deviations; weight 0 is nobody's."""
    chances = torch.tensor([3.0, 1.0] * 5 + [0.0, 2.0] * 15)
    sizes = (10, 15)
    drawn, loader = read(sets.WeightedRandomSampler(chances.tolist(), 20_000), sizes=sizes)
    assert len(drawn) == 8_000 == len(loader) * 5
    assert set(drawn) == set(range(10))
    frequent = sum(number % 2 == 0 for number in drawn)
    assert abs(frequent - 6_000) < 5 * (8_000 * 0.75 * 0.25) ** 0.5
    assert all(number % 2 for number in read(sets.WeightedRandomSampler(chances.tolist(), SIZE), 1, sizes=sizes)[0])
    once, _ = read(sets.WeightedRandomSampler(chances.tolist(), SIZE, replacement=False), 1, sizes=sizes)
    assert sorted(once) == list(range(11, 40, 2))


def test_a_subset_is_divided_and_shuffled():
    subset, loader = read(sets.SubsetRandomSampler([3, 38, 12, 7, 20, 5, 9, 1]), sizes=(5, 3))
    assert sorted(subset) == [1, 3, 5, 7, 9]
    assert len(loader) == 1
    assert len(read(sets.RandomSampler(range(SIZE), replacement=True, num_samples=80))[0]) == 20


@pytest.mark.parametrize(
    "make", [lambda: sets.SubsetRandomSampler(range(SIZE)), lambda: sets.WeightedRandomSampler([1] * SIZE, SIZE)]
)
def test_draws_depend_on_the_turn_alone(make):
    """Not on earlier clients, nor on the global generator, which stays as it was."""
    sampler = make()
    before = torch.random.get_rng_state()
    first = read(sampler, seed=1)[0]
    assert read(sampler, seed=2)[0] != first
    assert read(sampler, seed=1)[0] == first
    assert torch.equal(torch.random.get_rng_state(), before)
