"""Matrices to loggers that can show them."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import WandbLogger
from torch import Tensor


def log_matrix(trainer: Trainer, name: str, matrix: Tensor) -> None:
    """Send a C x C matrix as a table to W&B, with its round: rows true, columns predicted.

    Nothing is sent from the sanity check, nor from ranks other than the first. Other loggers have no tables.
    """
    if not trainer.is_global_zero or trainer.sanity_checking:
        return
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            import wandb  # slow, and not everyone logs to it

            rows = [[true, *counts] for true, counts in enumerate(matrix.tolist())]
            table = wandb.Table(columns=["true", *(f"predicted {c}" for c in range(len(rows)))], data=rows)
            logger.log_metrics({name: table, "round": float(trainer.current_epoch)})  # type: ignore[dict-item]
