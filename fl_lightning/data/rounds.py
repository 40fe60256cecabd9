"""The outer epoch's one batch, which stands for a whole round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Round:
    """Carries no data."""


class RoundLoader:
    """Gives one round per epoch. On several ranks Lightning broadcasts once per batch, so there must be equally many."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Round]:
        yield Round()


def unless_round(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A batch-transfer hook that lets rounds pass and handles every other batch as before."""

    def pass_or_transfer(batch: Any, *args: Any) -> Any:
        return batch if isinstance(batch, Round) else hook(batch, *args)

    return pass_or_transfer
