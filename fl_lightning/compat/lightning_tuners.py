"""Private names of Lightning's tuners."""

from __future__ import annotations

from typing import NoReturn

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder

from fl_lightning.compat import private_names_of

with private_names_of("lightning"):
    from lightning.pytorch.utilities.exceptions import _TunerExitException


def belongs_to_tuner(callback: BatchSizeFinder | LearningRateFinder) -> bool:
    """Return whether a ``Tuner`` added a callback for a fit that ends after tuning."""
    return bool(callback._early_exit)


def tune(
    callback: BatchSizeFinder | LearningRateFinder, trainer: Trainer, module: LightningModule, data: LightningDataModule
) -> None:
    """Fit with a Trainer that has a tuning callback, only until it has found its value."""
    before, callback._early_exit = callback._early_exit, True
    try:
        trainer.fit(module, datamodule=data)
    finally:
        callback._early_exit = before


def end_of_tuning() -> NoReturn:
    """End a fit without an error, as the callback of a ``Tuner`` does."""
    raise _TunerExitException
