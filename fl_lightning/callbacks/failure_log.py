"""A file with every client that a round had to do without."""

from __future__ import annotations

import csv
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.types import ClientFailure

COLUMNS = ("round", "client", "attempts", "cause")


class FailureLog(FederationCallback):
    """Writes ``failures.csv`` into the run's folder: round, client, attempts and cause of each failure; none, no file.

    A resumed run first takes out the rounds that it does again.

    Args:
        enabled: whether a fit writes it.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget rounds that are still to come."""
        path = self._path(trainer)
        if not (self.enabled and trainer.is_global_zero and path.exists()):
            return
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row and row[0].isdigit() and int(row[0]) < trainer.current_epoch]
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])

    def on_client_failed(self, trainer: Trainer, pl_module: LightningModule, failure: ClientFailure) -> None:
        """Add a line."""
        path = self._path(trainer)
        if not (self.enabled and trainer.is_global_zero):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(COLUMNS)
            writer.writerow([failure.round_idx, failure.client, failure.attempts, failure.cause])

    @staticmethod
    def _path(trainer: Trainer) -> Path:
        return Path(trainer.default_root_dir) / "failures.csv"
