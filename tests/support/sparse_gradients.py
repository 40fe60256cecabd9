"""Embeddings whose gradients are sparse."""

from typing import Any

import torch
from engine_runs import variant
from federations import CLASSES, Plain
from torch import Tensor, nn


class Words(Plain):
    """The inputs' numbers as words."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.words, self.net = nn.Embedding(30, 8, sparse=sparse), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.words((x.abs() * 5).long().clamp(0, 29)).mean(1))


SPARSE: Any = variant(Words, configure_optimizers=lambda self: torch.optim.SparseAdam(list(self.words.parameters())))
"""Its optimizer needs sparse gradients."""
