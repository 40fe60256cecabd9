"""Refuse decisions by metrics of an incomplete model, which lacks parts that clients hold."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.core.capabilities import Capability, removals_of
from fl_lightning.errors import CheckpointError, ConfigurationError, did_you_mean
from fl_lightning.losses.adaptive import AdaptiveLoss
from fl_lightning.settings.local_training import FederationSettings

_EXPORT = "write a client's complete model with 'fl-lightning export --client NAME'"


def _why(owner: FederationSettings) -> str:
    """Return why the server's model is incomplete; empty if it is not."""
    return next((removal.because for removal in removals_of(owner.active_options, Capability.COMPLETE_MODEL)), "")


def check_incomplete(owner: FederationSettings, trainer: Trainer) -> None:
    """Refuse losses and callbacks that follow the server's validation, if the server's model is incomplete.

    Raises:
        ConfigurationError: naming the loss or the callback, and what to use instead.
    """
    why = _why(owner)
    if not why:
        return
    for part in trainer.lightning_module.modules():
        if isinstance(part, AdaptiveLoss) and part.signal is not None:
            raise ConfigurationError(
                f"{type(part).__name__} adapts to the server's validation, but {why}, so the server does not validate. Use "
                "another loss, such as CrossEntropy."
            )
    known = {name for option in owner.active_options for name in option.logs()}
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str) or not monitor.startswith(("val", "federation/client_")):
            continue
        if monitor not in known:
            raise ConfigurationError(
                f"{type(callback).__name__} monitors '{monitor}', but {why}, so the server does not validate. The clients' own "
                "evaluation takes its place: set 'federation.client_evaluation' to "
                f"{{every_n_rounds: 1, metric: {monitor}}} and 'data.client_test' to the share of examples that each client "
                f"holds back, e.g. 0.2.{did_you_mean(monitor, known, cutoff=0.8)}"
            )


def without_validation(owner: FederationSettings, trainer: Trainer, cleanup: ExitStack) -> None:
    """Switch off the server's validation during a fit in which its model is incomplete."""
    if _why(owner):
        cleanup.enter_context(patch.object(trainer, "limit_val_batches", 0))


def warn_incomplete(owner: FederationSettings, trainer: Trainer) -> None:
    """Warn about an evaluation of the module as it is: after a fit, the parts that clients hold are no client's."""
    why = _why(owner)
    if why and not trainer.ckpt_path:
        rank_zero_warn(
            f"The module is evaluated as it is in memory, but {why}: after a federation, the parts that the clients hold are "
            f"those with which new clients begin. To evaluate a client's, {_EXPORT}, and evaluate that."
        )


def refuse_incomplete(checkpoint: dict[str, Any], key: str) -> None:
    """Refuse to evaluate a checkpoint that lacks parts held by clients.

    Args:
        checkpoint: the checkpoint as it was read.
        key: the key of the federation's state in the checkpoint.

    Raises:
        CheckpointError: if its model is incomplete.
    """
    state = checkpoint.get("callbacks", {}).get(key) or {}
    held = state.get("held")
    if held:
        raise CheckpointError(
            f"The checkpoint holds only the shared part of the model, because each client keeps its own {held[0]}"
            f"{' and others' if held[1:] else ''}. To evaluate a client's, {_EXPORT}, and evaluate that file."
        )
