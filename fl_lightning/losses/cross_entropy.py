"""Compute cross-entropy, the loss of the non-adaptive baselines (AdaFed, eq. 1)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning.utilities.argument_types import ChecksTypes


class CrossEntropy(ChecksTypes, nn.Module):
    """Compute the mean cross-entropy of unnormalised scores and class indices (AdaFed, eq. 1).

    Args:
        label_smoothing: the share of the target spread evenly over all classes, in [0, 1).

    Shapes:
        logits (M, C) or (M, C, ...), target (M,) or (M, ...); the output is a scalar.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return F.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
