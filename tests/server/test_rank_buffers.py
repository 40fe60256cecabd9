"""Buffers that validation changes on each rank by itself: the first rank's count, with a warning; nothing else is sent."""

from typing import Any

import pytest
import torch
from torch import nn

from fl_lightning.functional.digest import digest
from fl_lightning.functional.model_state import ModelState
from fl_lightning.server.checks.ranks import agree_on_buffers


class Ranks:
    """The second of two ranks: the first one has a count of its own."""

    def __init__(self, count: float) -> None:
        self.theirs, self.said = {"count": torch.tensor(count), "mask": torch.ones(2)}, list[Any]()

    def gather(self, mine: Any) -> list[Any]:
        self.said.append(mine)
        texts = all(isinstance(value, str) for value in mine.values())
        return [{name: digest(self.theirs[name]) if texts else self.theirs[name] for name in mine}, mine]


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("count", torch.tensor(0.0))
        self.register_buffer("mask", torch.ones(2), persistent=False)


def test_the_first_ranks_buffers_count(recwarn):
    """Ranks that agree exchange digests, and say nothing."""
    module, comm = Counted(), Ranks(0.0)
    agree_on_buffers(comm, ModelState(module), "Counted")  # type: ignore[arg-type]
    assert not recwarn.list
    assert [sorted(said) for said in comm.said] == [["count", "mask"]]
    comm = Ranks(3.0)
    match = "Validation changed the buffer 'count' of Counted. Each rank validates a part of the set.* Change buffers in train"
    with pytest.warns(UserWarning, match=match):
        agree_on_buffers(comm, ModelState(module), "Counted")  # type: ignore[arg-type]
    assert module.count == 3.0
    assert [sorted(said) for said in comm.said] == [["count", "mask"], ["count"]]
