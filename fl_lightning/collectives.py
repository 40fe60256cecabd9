"""Exchanges between the ranks of a federation, once per round."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch import distributed as dist

from fl_lightning.clients.memory import ClientMemory
from fl_lightning.errors import ClientError, RankError
from fl_lightning.functional.sums import Sums
from fl_lightning.types import ClientUpdate

_WAITED = [0.0]
"""Seconds that this rank has spent in exchanges since they were last reported."""


_SIGNS = ("Connection closed by peer", "Connection reset by peer", "gloo/transport", "remote process exited")
"""What backends report about a process that has ended."""


def forget_waiting() -> None:
    """Reset the waiting time at the start of a fit."""
    _WAITED[0] = 0.0


def leave_at_exit(ranks: int) -> None:
    """Leave the process group before the process ends: busy threads of gloo could abort it then."""
    if ranks > 1:
        atexit.unregister(_leave)  # of an earlier fit
        atexit.register(_leave)


def _leave() -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        dist.destroy_process_group()


def lost_rank(error: BaseException) -> RankError | None:
    """Return the error to raise if an exchange failed because another process has gone; None for any other error."""
    text = str(error)
    known = isinstance(error, dist.DistError) or any(sign in text for sign in _SIGNS)
    if not (known and isinstance(error, RuntimeError)):
        return None
    told = text.strip().splitlines()[0][:200]
    return RankError(
        f"Another rank ended in the middle of a round, and the round is lost. {told} See its own error above (a killed process "
        "leaves none), then resume from the last checkpoint: --ckpt_path last."
    )


@contextmanager
def _together() -> Iterator[None]:
    """Measure how long an exchange takes, and report a missing process.

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
        _WAITED[0] += time.perf_counter() - begun


def gather(trainer: Trainer, mine: Any) -> list[Any]:
    """Return every rank's object, in the order of ranks."""
    if trainer.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * trainer.world_size
    with _together():
        dist.all_gather_object(everyone, mine)
    return everyone


def gather_updates(trainer: Trainer, updates: list[ClientUpdate], failure: Exception | None) -> list[ClientUpdate]:
    """Return all updates of the round in the order of clients, the same list on every rank.

    Args:
        trainer: the outer Trainer.
        updates: updates of this rank.
        failure: error on this rank, if there was one.

    Raises:
        ClientError: on every rank, if another rank failed, so that no rank waits. That rank itself raises its own error.
    """
    if trainer.world_size > 1:  # a GPU's tensors would arrive on the sender's device
        device = trainer.strategy.root_device
        everyone = gather_or_raise(trainer, [update.to("cpu") for update in updates], failure)
        updates = [update.to(device) for theirs in everyone for update in theirs]
    elif failure is not None:
        raise failure
    return sorted(updates, key=lambda update: update.client)


def gather_or_raise(trainer: Trainer, mine: Any, failure: Exception | None) -> list[Any]:
    """Return every rank's object, in the order of ranks.

    Raises:
        ClientError: on every rank, if another rank failed; the rank itself raises its own error.
    """
    message = f"{type(failure).__name__}: {failure}" if failure is not None else None
    everyone = gather(trainer, (mine, message))
    if failure is not None:
        raise failure
    for rank, (_, error) in enumerate(everyone):
        if error is not None:
            raise ClientError(f"Rank {rank} stopped the round. {error}")
    return [theirs for theirs, _ in everyone]


def spread(trainer: Trainer, count: int, measure: Callable[[int], float]) -> list[float]:
    """Return ``measure(0) .. measure(count - 1)`` on every rank, each measured on one rank only.

    Raises:
        ClientError: on every rank, if another rank failed; the rank itself raises its own error.
    """
    mine: list[float] = []
    failure: Exception | None = None
    try:
        mine = [measure(position) for position in range(trainer.global_rank, count, trainer.world_size)]
    except Exception as error:
        failure = error
    everyone = gather_or_raise(trainer, mine, failure)
    return [everyone[position % trainer.world_size][position // trainer.world_size] for position in range(count)]


def add_sums(trainer: Trainer, sums: Sums) -> None:
    """Add the ranks' sums by name, in place; the sums are exact, so the number of ranks does not matter."""
    if trainer.world_size == 1:
        return
    for integers in sums.integers(gather(trainer, sums.loads())):
        with _together():
            trainer.strategy.reduce(integers, reduce_op="sum")


def elementwise_maximum(trainer: Trainer, counters: Tensor) -> Tensor:
    """Return the elementwise maximum over the ranks, int64, shape (c,)."""
    if trainer.world_size > 1 and counters.numel():
        with _together():
            trainer.strategy.reduce(counters, reduce_op="max")
    return counters


def no_counters(like: Tensor) -> Tensor:
    """Return the neutral element of :func:`elementwise_maximum`."""
    return torch.full_like(like, torch.iinfo(torch.int64).min)


def share_memory(trainer: Trainer, memory: ClientMemory) -> dict[str, float]:
    """Share what clients keep with every rank: any rank may train them next, and rank 0 saves it.

    Returns:
        On several ranks ``waiting_seconds``, the mean time that a rank waited for the others in the round.
    """
    memory.settle({client: size for sizes in gather(trainer, memory.sizes()) for client, size in sizes.items()})
    changes = memory.changes()
    if trainer.world_size == 1:
        return {}
    everyone = gather(trainer, (changes, _WAITED[0]))
    _WAITED[0] = 0.0
    for theirs, _ in everyone:
        memory.update(theirs)
    return {"waiting_seconds": sum(waited for _, waited in everyone) / len(everyone)}
