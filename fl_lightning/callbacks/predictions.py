"""Keeping what ``predict`` computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter


class PredictionFile(BasePredictionWriter):
    """Writes the predictions of ``predict`` to ``<default_root_dir>/predictions-rank<r>.pt``, one tensor per batch."""

    def __init__(self) -> None:
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(self, trainer: Trainer, pl_module: LightningModule, predictions: Any, batch_indices: Any) -> None:
        """Write the file and say where."""
        path = Path(trainer.default_root_dir) / f"predictions-rank{trainer.global_rank}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(predictions, path)
        print(f"Predictions: {path}")
