"""Private names of Lightning's tuners."""

from __future__ import annotations

from typing import Any, NoReturn

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

from fl_lightning.compat.private import MISSING, Private

_ENDS = Private(
    "lightning",
    "lightning.pytorch.callbacks.LearningRateFinder",
    "_early_exit",
    "ends a fit for tuning by limiting it to no batches, and trains after 'Tuner(trainer).lr_find(...)' as after a fit's tuner",
)
_EXIT = Private("lightning", "lightning.pytorch.utilities.exceptions", "_TunerExitException")


def belongs_to_tuner(callback: BatchSizeFinder | LearningRateFinder) -> bool:
    """Return whether a ``Tuner`` added a callback for a fit that ends after tuning."""
    return bool(_ENDS.get(False, callback))


class _EndAfterTuning(Callback):
    """Let a fit end before its first batch, after the hooks in which tuners work."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Allow no batches."""
        trainer.limit_train_batches = 0


def tune(
    callback: BatchSizeFinder | LearningRateFinder, trainer: Trainer, module: LightningModule, data: LightningDataModule
) -> None:
    """Fit with a Trainer that has a tuning callback, only until it has found its value."""
    before: Any = _ENDS.get(MISSING, callback)
    if before is MISSING:
        trainer.callbacks.append(_EndAfterTuning())  # type: ignore[attr-defined]
        trainer.fit(module, datamodule=data)
        return
    callback._early_exit = True
    try:
        trainer.fit(module, datamodule=data)
    finally:
        callback._early_exit = before


def end_of_tuning() -> NoReturn:
    """End a fit without an error, as the callback of a ``Tuner`` does."""
    raise _EXIT.require("Tuner(trainer) in a federation")
