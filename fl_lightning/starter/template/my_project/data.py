"""The data: a plain LightningDataModule. The configuration says how its training set is divided among the clients."""

from __future__ import annotations

import math

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


class Moons(L.LightningDataModule):
    """Two interleaved half circles with noise, one per class. Replace them with your own data.

    Args:
        examples: size of the training set; the validation and the test set have a quarter of that each.
        noise: standard deviation of the Gaussian noise on each coordinate.
        batch_size: examples per batch of a client.
    """

    def __init__(self, examples: int = 2000, noise: float = 0.15, batch_size: int = 32) -> None:
        super().__init__()
        self.examples = examples
        self.noise = noise
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        """Draw the points; they are the same in each run."""
        generator = torch.Generator().manual_seed(0)
        self.train_set = self._draw(self.examples, generator)
        self.val_set = self._draw(self.examples // 4, generator)
        self.test_set = self._draw(self.examples // 4, generator)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the training set, which is divided among the clients."""
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the server's validation set."""
        return DataLoader(self.val_set, batch_size=500)

    def test_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Return the server's test set."""
        return DataLoader(self.test_set, batch_size=500)

    def _draw(self, examples: int, generator: torch.Generator) -> TensorDataset:
        labels = torch.randint(2, (examples,), generator=generator)
        angle = math.pi * torch.rand(examples, generator=generator)
        upper = torch.stack([angle.cos(), angle.sin()], dim=1)
        lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], dim=1)
        points = torch.where(labels[:, None] == 0, upper, lower)
        return TensorDataset(points + self.noise * torch.randn(examples, 2, generator=generator), labels)
