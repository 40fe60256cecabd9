"""Pure functions against closed forms, other libraries and invariants."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.functional.exact_sum import ExactSum
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import balanced_shares, cohort_size, draw_cohort
from fl_lightning.functional.seeding import derive_seed, generator, isolated_rng


@pytest.mark.parametrize("largest", [1.0, 2.0**38])
def test_the_sum_of_a_long_vector_is_that_of_integers(largest):
    """Longer than one block; multiples of 1/4, which float64 adds without rounding. Above 2**36 another path is taken."""
    size = 200_001
    generator = torch.Generator().manual_seed(0)
    quarters = [torch.randint(-1000, 1000, (size,), generator=generator) for _ in range(3)]
    total = ExactSum(size)
    for weight, integers in zip((1.0, 5.0, 0.5), quarters, strict=True):
        values = integers.double() / 4
        values[0] = largest
        total.add(values.float(), weight)
    wanted = (quarters[0] * 2 + quarters[1] * 10 + quarters[2]).double() / 8
    wanted[0] = largest * 6.5
    assert torch.equal(total.value(), wanted)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_shares_lose_nobody_and_are_balanced(sizes, ranks):
    cohort = list(range(len(sizes)))
    shares = balanced_shares(cohort, dict(enumerate(sizes)), ranks)
    assert sorted(k for share in shares for k in share) == cohort
    loads = [sum(sizes[k] for k in share) for share in shares]
    optimum = max(max(sizes), sum(sizes) / ranks)  # a lower bound on it
    # Graham's list-scheduling bound, in terms of that lower bound.
    assert max(loads) <= (2 - 1 / ranks) * optimum + 1e-9


@pytest.mark.parametrize("num_clients", [2, 60, 100, 5001, 1_000_000])
@pytest.mark.parametrize("size", [1, 100])
def test_a_few_of_many_clients_are_the_first_of_a_whole_shuffle(num_clients, size):
    for round_idx in range(3):
        order = torch.randperm(num_clients, generator=generator(5, round_idx, "cohort"))
        size = min(size, num_clients)
        assert draw_cohort(num_clients, size, 5, round_idx) == tuple(order[:size].sort().values.tolist())
        odd = range(1, num_clients, 2)
        present = order[order % 2 == 1][:size].sort().values.tolist()
        assert draw_cohort(num_clients, size, 5, round_idx, list(odd)) == tuple(present)
    assert len(draw_cohort(10**12, size, 0, 0)) == size  # in no memory


@pytest.mark.parametrize(("clients", "asked", "size"), [(10, 1.0, 10), (10, 1, 1), (10, 0.25, 2), (3, 0.1, 1), (7, 0.5, 4)])
def test_cohort_sizes(clients, asked, size):
    assert cohort_size(clients, asked) == size


def test_seeds_depend_on_every_part_of_the_key():
    keys = [(0, 1, 2, "a"), (0, 1, 2, "b"), (0, 1, 3, "a"), (0, 2, 2, "a"), (1, 1, 2, "a"), (0, 12, "a"), (0, "1", 2, "a")]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    assert all(0 <= derive_seed(*key) < 2**63 for key in keys)


def test_global_random_states_are_put_back():
    import random

    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with isolated_rng(99, torch.device("cpu")):
        inside = torch.rand(1), random.random(), np.random.rand()
    assert (torch.rand(1), random.random(), np.random.rand()) == expected
    with isolated_rng(99, torch.device("cpu")):
        assert (torch.rand(1), random.random(), np.random.rand()) == inside


class Mixed(torch.nn.Module):
    server_buffers = ("owned",)

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.second = torch.nn.Linear(2, 2)
        self.second.weight = self.first.weight  # tied
        self.register_buffer("mean", torch.tensor([0.5]))
        self.register_buffer("count", torch.tensor([3, -4]))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("owned", torch.tensor([7.0]))
        self.register_buffer("scratch", torch.tensor([8.0]), persistent=False)


def test_model_state_sorts_tensors_by_what_happens_to_them():
    state = ModelState(Mixed())
    assert state.vector().numel() == 4 + 2 + 2 + 1  # the tied weight once; mean, but neither owned nor scratch
    assert sorted(state.counters().tolist()) == [-4, 1, 3]
    assert state.nbytes(upward=True) == 9 * 4 + 2 * 8 + 1
    assert state.nbytes(upward=False) == state.nbytes(upward=True) + 8


def test_model_state_round_trip():
    source, target = Mixed(), Mixed()
    source.owned.fill_(9), source.scratch.fill_(10), source.count.fill_(5)
    ModelState(target).copy_from(ModelState(source).tensors(), ModelState(source).layout)
    assert torch.equal(ModelState(target).vector(), ModelState(source).vector())
    assert (target.owned.item(), target.scratch.item(), target.count.tolist()) == (9, 10, [5, 5])
    ModelState(target).set_buffers(torch.full((9,), 0.25), torch.tensor([1, 2, 0]))
    assert (target.mean.item(), target.count.tolist(), target.flag.item()) == (0.25, [1, 2], False)
    assert target.owned.item() == 9
