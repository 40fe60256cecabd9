"""Matrices to loggers that can show them."""

from __future__ import annotations

from lightning.pytorch import Trainer
from torch import Tensor


def log_matrix(trainer: Trainer, name: str, matrix: Tensor) -> None:
    """Send a C x C matrix as a table to every logger that takes tables (W&B): rows true, columns predicted.

    Nothing is sent from the sanity check, nor from ranks other than the first.
    """
    if not trainer.is_global_zero or trainer.sanity_checking:
        return
    for logger in trainer.loggers:
        if hasattr(logger, "log_table"):
            rows = matrix.tolist()
            columns = ["true", *(f"predicted {c}" for c in range(len(rows)))]
            logger.log_table(name, columns=columns, data=[[c, *row] for c, row in enumerate(rows)])
