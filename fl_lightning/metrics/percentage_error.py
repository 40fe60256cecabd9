"""The mean absolute percentage error with a stated rule for targets near zero (AdaFed, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import require, require_same_shape


class PercentageError(Metric):
    """``mean |y - prediction| / max(|y|, floor)``, as a ratio: 0.1 is 10 %.

    With the floor 1 and counts, an image without cells is measured as if it held one: each cell too many is 100 %.
    torchmetrics' own takes 1.17e-6 for the floor, so that one empty image outweighs all others.

    Args:
        floor: F > 0, in units of the target.
    """

    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, floor: float = 1.0) -> None:
        super().__init__()
        require(floor > 0, "mape_floor", "above 0, in units of the target", floor)
        self.floor = floor
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Take a batch in.

        Raises:
            ConfigurationError: if they differ in shape, which would be broadcast.
        """
        require_same_shape("PercentageError", predictions.shape, target.shape)
        self.total += ((predictions - target).abs() / target.abs().clamp(min=self.floor)).sum()
        self.count += target.numel()

    def compute(self) -> Tensor:
        """The mean, >= 0."""
        return self.total / self.count
