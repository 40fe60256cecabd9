"""A file of all client failures."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.callbacks.round_file import append_rows, client_name, forget_rounds
from fl_lightning.types import ClientFailure

COLUMNS = ("round", "client", "attempts", "cause")


class FailureLog(FederationCallback):
    """Write ``failures.csv`` into the run's folder: round, client, attempts and cause of each failure. No failure, no file.

    A resumed run first removes the rows of the rounds that it repeats.

    Args:
        enabled: whether a fit writes the file.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the rounds that are about to run from the file."""
        if self.enabled and trainer.is_global_zero:
            forget_rounds(self._path(trainer), trainer.current_epoch)

    def on_client_failed(self, trainer: Trainer, pl_module: LightningModule, failure: ClientFailure) -> None:
        """Append a row."""
        if self.enabled and trainer.is_global_zero:
            row = [failure.round_idx, client_name(trainer, failure.client), failure.attempts, failure.cause]
            append_rows(self._path(trainer), COLUMNS, [row])

    @staticmethod
    def _path(trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / "failures.csv"
