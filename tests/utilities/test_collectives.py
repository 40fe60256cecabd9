"""What two ranks compare, on one process: each in turn, with what the other one would have sent."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fl_lightning.errors import ConfigurationError
from fl_lightning.server.checks.ranks import require_same_state


def compare(rank: int, *numbers: list[float]) -> None:
    """Compare the states of two ranks, as one of them does; equal states cost one exchange."""
    states, sent = [torch.tensor(own, dtype=torch.float64) for own in numbers], list[torch.Tensor]()
    alone: Any = SimpleNamespace(elementwise_maximum=lambda counters: sent.append(counters) or counters)
    for state in states:
        require_same_state(alone, state, "X.aggregate", 3)
    gather = lambda mine: [int(counters[0]) for counters in sent]  # noqa: E731
    both: Any = SimpleNamespace(elementwise_maximum=lambda counters: torch.maximum(*sent), gather=gather)
    require_same_state(both, states[rank], "X.aggregate", 3)


@pytest.mark.parametrize("number", [1.5, -0.0, float("nan")])
def test_equal_states_pass(number):
    compare(0, [number, -2.0], [number, -2.0])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("numbers", [([1.5], [1.5000000000000002]), ([1.5000000000000002], [1.5]), ([0.0], [-0.0])])
def test_a_difference_in_the_last_bit_is_found_on_both_ranks(numbers, rank):
    with pytest.raises(ConfigurationError, match=r"X\.aggregate returned another state on rank 1 than on rank 0 in round 3"):
        compare(rank, *numbers)
