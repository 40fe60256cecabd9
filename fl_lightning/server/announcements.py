"""Tell the Trainer's callbacks what happens in a round."""

from __future__ import annotations

from collections.abc import Sequence
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


def tell_failures(trainer: Trainer, round_idx: int, lost: Sequence[int], failures: Sequence[ClientFailure]) -> int:
    """Warn of each client that failed, and tell callbacks of all that the round had to do without.

    Args:
        trainer: the outer one.
        round_idx: from 0.
        lost: who dropped out, as was simulated.
        failures: of the others.

    Returns:
        How many there are.
    """
    for failure in failures:
        tried = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
        rank_zero_warn(f"Round {round_idx} goes on without client {failure.client}{tried}: {failure.cause}")
    simulated = [ClientFailure(client, round_idx, "dropped out (simulated)", 0) for client in lost]
    missed = sorted([*simulated, *failures], key=lambda failure: failure.client)
    for failure in missed:
        announce(trainer, "on_client_failed", failure)
    return len(missed)
