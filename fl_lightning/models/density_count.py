"""Turn density images into counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import ChecksTypes


class DensityCount(ChecksTypes, nn.Module):
    """Sum a density image over its pixels, and divide by the scale that multiplied its target.

    The module has no trainable weights. It sums in float32, or in float64 for float64 images, whatever the run's precision.

    Args:
        scale: the datamodule's ``density_scale``, > 0.
    """

    def __init__(self, scale: float = 100.0) -> None:
        super().__init__()
        require(scale > 0, "model.readout.scale", "above 0, as 'data.datamodule.density_scale'", scale)
        self.scale = scale

    def forward(self, density: Tensor) -> Tensor:
        """Return counts, shape (N,), of density images of shape (N, 1, H, W)."""
        wide = density if density.dtype == torch.float64 else density.float()
        return wide.sum(dim=(1, 2, 3)) / self.scale
