"""Notify the Trainer's callbacks of the events of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.types import ClientFailure


def announce(trainer: Trainer, hook: str, *args: Any) -> None:
    """Call a hook of every callback of the Trainer that defines it."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        method = getattr(callback, hook, None)
        if method is not None:
            method(trainer, trainer.lightning_module, *args)


def tell_failures(
    trainer: Trainer,
    round_idx: int,
    lost: Sequence[int],
    failures: Sequence[ClientFailure],
    name_of: Callable[[int], str] = str,
) -> int:
    """Warn about each client that failed, and notify callbacks of all missing clients.

    Args:
        trainer: the outer Trainer.
        round_idx: the communication round, from 0.
        lost: the clients that dropped out in the simulation.
        failures: the failures of other clients.
        name_of: returns the name of a client.

    Returns:
        The number of missing clients.
    """
    for failure in failures:
        tried = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
        name = name_of(failure.client)
        rank_zero_warn(f"Round {round_idx} continues without client {name}{tried}: {failure.cause}")
    simulated = [ClientFailure(client, round_idx, "dropped out (simulated)", 0) for client in lost]
    missed = sorted([*simulated, *failures], key=lambda failure: failure.client)
    for failure in missed:
        announce(trainer, "on_client_failed", failure)
    return len(missed)
