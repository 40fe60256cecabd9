"""Add and exchange callbacks of the user's Trainer for the duration of a fit."""

from __future__ import annotations

from contextlib import ExitStack

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar

from fl_lightning.callbacks.progress import FederationProgressBar
from fl_lightning.tasks.loss_adaptation import LossAdaptation


def exchange(trainer: Trainer, old: Callback, *new: Callback) -> None:
    """Replace a callback by others in a new list, because Lightning may be iterating over the old one."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    trainer.callbacks = [one for each in callbacks for one in (new if each is old else [each])]  # type: ignore[attr-defined]


def adapt_losses(trainer: Trainer, cleanup: ExitStack) -> None:
    """Add the callback for adaptive losses, unless the Trainer already has it."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if not any(isinstance(callback, LossAdaptation) for callback in callbacks):
        added = LossAdaptation()
        trainer.callbacks = [added, *callbacks]  # type: ignore[attr-defined]
        cleanup.callback(exchange, trainer, added)


def show_rounds(trainer: Trainer, cleanup: ExitStack) -> None:
    """Show a bar of rounds in place of Lightning's own; a user's bar stays."""
    for callback in list(trainer.callbacks):  # type: ignore[attr-defined]
        if type(callback) in (TQDMProgressBar, RichProgressBar):
            bar = FederationProgressBar()
            exchange(trainer, callback, bar)
            bar.setup(trainer, trainer.lightning_module, "fit")
            cleanup.callback(exchange, trainer, bar, callback)
            cleanup.callback(bar.close)
