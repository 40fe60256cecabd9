"""Represent a whole round as the outer epoch's one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Round:
    """Stand for a round; it carries no data."""


class RoundLoader:
    """Serve one round per epoch. Lightning broadcasts once per batch, so all ranks must have equally many."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Round]:
        yield Round()


def unless_round(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a batch-transfer hook so that it returns rounds unchanged and handles every other batch as before."""

    def pass_or_transfer(batch: Any, *args: Any) -> Any:
        return batch if isinstance(batch, Round) else hook(batch, *args)

    return pass_or_transfer
