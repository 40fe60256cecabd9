"""Compute the mean absolute percentage error with an explicit rule for targets near zero (AdaFed, section 3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import require, require_same_shape
from fl_lightning.utilities.argument_types import ChecksTypes


class PercentageError(ChecksTypes, Metric):
    """Compute ``mean |y - prediction| / max(|y|, floor)`` as a ratio: 0.1 is 10 %.

    With the floor 1 and counts, an image without cells counts as if it held one: each extra cell is 100 %. torchmetrics' own
    metric uses a floor of 1.17e-6, so that one empty image outweighs all others.

    Args:
        floor: the floor F > 0, in units of the target.
    """

    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, floor: float = 1.0) -> None:
        super().__init__()
        require(0 < floor < math.inf, "mape_floor", "above 0, in units of the target", floor)
        self.floor = floor
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Add a batch.

        Raises:
            ConfigurationError: if predictions and target differ in shape, since they would be broadcast.
        """
        require_same_shape("PercentageError", predictions.shape, target.shape)
        self.total += ((predictions - target).abs() / target.abs().clamp(min=self.floor)).sum()
        self.count += target.numel()

    def compute(self) -> Tensor:
        """Return the mean, >= 0."""
        return self.total / self.count
