"""Buffers that validation changes on each rank by itself: the first rank's count, with a warning; nothing else is sent."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fl_lightning.functional import ModelState
from fl_lightning.server.rank_buffers import RankBuffers


class Ranks:
    """Two ranks in one process: the second one answers what it was told, and hears what the first one said."""

    def __init__(self, rank: int, other: list[Any]) -> None:
        self.rank, self.size, self.other, self.said = rank, 2, other, []

    def gather(self, mine: Any) -> list[Any]:
        self.said.append(mine)
        theirs = self.other.pop(0)
        return [mine, theirs] if self.rank == 0 else [theirs, mine]


class Counted(nn.Module):
    def __init__(self, count: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("count", torch.tensor(count))
        self.register_buffer("mask", torch.ones(2), persistent=False)


def ranks_of(module: nn.Module, rank: int, *other: Any) -> tuple[RankBuffers, Ranks]:
    comm = Ranks(rank, list(other))
    return RankBuffers(ModelState(module), comm), comm  # type: ignore[arg-type]


def test_ranks_that_agree_exchange_a_digest_and_say_nothing():
    module = Counted()
    buffers, comm = ranks_of(module, 0, "", "")
    buffers.note()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffers.agree("Counted")
    assert comm.said == [""]


@pytest.mark.parametrize("changes", [True, False])
def test_the_first_ranks_buffers_count(changes):
    """Whichever of the two has changed them."""
    first, second = Counted(3.0 if changes else 0.0), Counted()
    theirs: dict[str, Tensor] = dict(first.named_buffers())
    buffers, _ = ranks_of(second, 1, "its digest" if changes else "", theirs)
    buffers.note()
    if not changes:
        second.count += 5
    with pytest.warns(UserWarning, match="Validation changed the buffer .*of Counted. Each rank validates a part of the set"):
        buffers.agree("Counted")
    assert second.count == first.count
    assert torch.equal(second.mask, first.mask)


def test_the_first_rank_names_what_changed():
    module = Counted()
    buffers, comm = ranks_of(module, 0, "another digest", {})
    buffers.note()
    module.count += 1
    with pytest.warns(UserWarning, match="Validation changed the buffer 'count' of Counted. .* Change buffers in training"):
        buffers.agree("Counted")
    assert {name: tensor.tolist() for name, tensor in comm.said[1].items()} == {"count": 1.0, "mask": [1.0, 1.0]}


def test_one_rank_and_a_module_without_buffers_exchange_nothing():
    for module, size in ((Counted(), 1), (nn.Linear(2, 2), 2)):
        buffers, comm = ranks_of(module, 0)
        comm.size = size
        buffers.agree("Any")
        assert not comm.said
