"""What ranks exchange, on two threads in place of two processes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fl_lightning.server.checks.ranks import require_same_state
from fl_lightning.utilities.collectives import Collectives


@pytest.fixture
def two_ranks(monkeypatch):
    """Run a function of the ranks' collectives on both; ``exchanges`` counts the exchanges of each."""
    here, meet, rows, counts = threading.local(), threading.Barrier(2, timeout=10), [None, None], [0, 0]

    def exchange(mine: Any) -> list[Any]:
        counts[here.rank] += 1
        rows[here.rank] = mine
        meet.wait()
        both = list(rows)
        meet.wait()
        return both

    def all_gather_object(found: list[Any], mine: Any) -> None:
        found[:] = exchange(mine)

    def all_reduce(mine: torch.Tensor, op: Any) -> None:
        assert op == torch.distributed.ReduceOp.MAX
        mine.copy_(torch.maximum(*exchange(mine.clone())))

    def on(rank: int, act: Any) -> Any:
        here.rank = rank
        return act(Collectives(SimpleNamespace(global_rank=rank, world_size=2)), rank)

    def both(act: Any) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda rank: on(rank, act), range(2)))

    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    return SimpleNamespace(run=both, exchanges=counts)


@pytest.mark.parametrize("numbers", [([1.5, -2.0], [1.5, -2.0]), ([-0.0], [-0.0]), ([float("nan")], [float("nan")])])
def test_equal_states_cost_one_exchange(numbers, two_ranks):
    states = [torch.tensor(own, dtype=torch.float64) for own in numbers]
    two_ranks.run(lambda comm, rank: require_same_state(comm, states[rank], "X.aggregate", 0))
    assert two_ranks.exchanges == [1, 1]


@pytest.mark.parametrize("numbers", [([1.5], [1.5000000000000002]), ([1.5000000000000002], [1.5]), ([0.0], [-0.0])])
def test_a_difference_in_the_last_bit_is_found_on_both_ranks(numbers, two_ranks):
    states = [torch.tensor(own, dtype=torch.float64) for own in numbers]

    def check(comm: Collectives, rank: int) -> str:
        with pytest.raises(Exception, match=r"X\.aggregate returned another state on rank 1 than on rank 0 in round 3") as told:
            require_same_state(comm, states[rank], "X.aggregate", 3)
        return type(told.value).__name__

    assert two_ranks.run(check) == ["ConfigurationError"] * 2
