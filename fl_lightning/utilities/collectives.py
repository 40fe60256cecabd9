"""Exchange data between the ranks of a federation."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch import distributed as dist

from fl_lightning.errors import ClientError, RankError
from fl_lightning.functional.sums import Sums
from fl_lightning.types import ClientUpdate

T = TypeVar("T")
_SIGNS = ("Connection closed by peer", "Connection reset by peer", "gloo/transport", "remote process exited")
"""What backends report about a process that has ended."""


def leave_at_exit(ranks: int) -> None:
    """Leave the process group before the process ends: busy threads of gloo could abort it then."""
    if ranks > 1:
        atexit.unregister(_leave)  # from an earlier fit
        atexit.register(_leave)


def _leave() -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def lost_rank(error: BaseException) -> RankError | None:
    """Return the error to raise if an exchange failed because another process has ended; None for any other error."""
    text = str(error)
    known = isinstance(error, dist.DistError) or any(sign in text for sign in _SIGNS)
    if not (known and isinstance(error, RuntimeError)):
        return None
    told = text.strip().splitlines()[0][:200]
    return RankError(
        f"Another rank ended in the middle of a round, and the round is lost. {told} See its own error above (a killed process "
        "leaves none), then resume from the last checkpoint: --ckpt_path last."
    )


class Collectives:
    """Exchange data between the ranks of one Trainer. All ranks must call the same methods in the same order.

    Args:
        trainer: the user's Trainer.

    Attributes:
        rank: the number of this process, from 0.
        size: the number of processes.
        waited: the seconds that this rank has spent in exchanges since the last reset.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.rank, self.size = trainer.global_rank, trainer.world_size
        self.waited = 0.0

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Measure the time of an exchange, and report a missing rank.

        Raises:
            RankError: if another process has ended.
        """
        begun = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            lost = lost_rank(error)
            if lost is None:
                raise
            raise lost from error
        finally:
            self.waited += time.perf_counter() - begun

    def gather(self, mine: Any) -> list[Any]:
        """Return every rank's object, in the order of ranks."""
        if self.size == 1:
            return [mine]
        everyone: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(everyone, mine)
        return everyone

    def gather_or_raise(self, mine: Any, failure: Exception | None) -> list[Any]:
        """Return every rank's object, in the order of ranks.

        Raises:
            ClientError: on every rank, if another rank failed; the failed rank raises its own error.
        """
        message = f"{type(failure).__name__}: {failure}" if failure is not None else None
        everyone = self.gather((mine, message))
        if failure is not None:
            raise failure
        for rank, (_, error) in enumerate(everyone):
            if error is not None:
                raise ClientError(f"Rank {rank} stopped the round. {error}")
        return [theirs for theirs, _ in everyone]

    def gather_updates(self, updates: list[ClientUpdate], failure: Exception | None) -> list[ClientUpdate]:
        """Return all updates of the round in the order of clients, as the same list on every rank.

        Args:
            updates: the updates of this rank.
            failure: the error on this rank, or None.

        Raises:
            ClientError: on every rank, if another rank failed; the failed rank raises its own error.
        """
        if self.size > 1:  # otherwise a GPU's tensors would arrive on the sender's device
            device = self._trainer.strategy.root_device
            everyone = self.gather_or_raise([update.to("cpu") for update in updates], failure)
            updates = [update.to(device) for theirs in everyone for update in theirs]
        elif failure is not None:
            raise failure
        return sorted(updates, key=lambda update: update.client)

    def spread(self, count: int, measure: Callable[[int], T]) -> list[T]:
        """Return ``measure(0) .. measure(count - 1)`` on every rank, each computed on one rank only.

        Raises:
            ClientError: on every rank, if another rank failed; the failed rank raises its own error.
        """
        mine: list[T] = []
        failure: Exception | None = None
        try:
            mine = [measure(position) for position in range(self.rank, count, self.size)]
        except Exception as error:
            failure = error
        everyone = self.gather_or_raise(mine, failure)
        return [everyone[position % self.size][position // self.size] for position in range(count)]

    def add_sums(self, sums: Sums) -> None:
        """Add the ranks' sums by name, in place and exactly, so that the number of ranks does not matter."""
        if self.size == 1:
            return
        for integers in sums.integers(self.gather(sums.loads())):
            with self._together():
                dist.all_reduce(integers)  # the Trainer's strategy would wait at a barrier first

    def elementwise_maximum(self, counters: Tensor) -> Tensor:
        """Return the elementwise maximum over the ranks, int64, shape (c,)."""
        if self.size > 1 and counters.numel():
            with self._together():
                dist.all_reduce(counters, dist.ReduceOp.MAX)
        return counters


def no_counters(like: Tensor) -> Tensor:
    """Return the neutral element of :meth:`Collectives.elementwise_maximum`."""
    return torch.full_like(like, torch.iinfo(torch.int64).min)
