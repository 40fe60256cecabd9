"""The model: a plain LightningModule. Nothing in it refers to a federation."""

from __future__ import annotations

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Classifier(L.LightningModule):
    """A small network for points in the plane.

    Args:
        hidden: units of each hidden layer.
        lr: learning rate of the clients.
    """

    def __init__(self, hidden: int = 32, lr: float = 0.01) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.network = nn.Sequential(
            nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )

    def forward(self, points: Tensor) -> Tensor:
        """Return the logits of both classes."""
        logits: Tensor = self.network(points)
        return logits

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Train on a batch of one client."""
        points, labels = batch
        return F.cross_entropy(self(points), labels)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Evaluate the aggregated model on the server's set, once a round."""
        self._evaluate(batch, "val")

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Evaluate a checkpoint; run by ``fl-lightning test``."""
        self._evaluate(batch, "test")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the clients' optimizer."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def _evaluate(self, batch: list[Tensor], stage: str) -> None:
        points, labels = batch
        logits = self(points)
        accuracy = (logits.argmax(dim=1) == labels).float().mean()
        self.log(f"{stage}_loss", F.cross_entropy(logits, labels), batch_size=len(labels))
        self.log(f"{stage}_accuracy", accuracy, prog_bar=True, batch_size=len(labels))
