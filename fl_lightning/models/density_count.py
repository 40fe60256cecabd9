"""From a density image to a count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_lightning.errors import require


class DensityCount(nn.Module):
    """The sum of a density image over its pixels, divided by the scale that its target was multiplied with.

    Nothing is trained. Sums are in float32, in float64 for such images, whatever the precision of the run.

    Args:
        scale: > 0, the datamodule's ``density_scale``.
    """

    def __init__(self, scale: float = 100.0) -> None:
        super().__init__()
        require(scale > 0, "model.readout.scale", "above 0, as 'data.datamodule.density_scale'", scale)
        self.scale = scale

    def forward(self, density: Tensor) -> Tensor:
        """Counts, shape (N,), of density images of shape (N, 1, H, W)."""
        wide = density if density.dtype == torch.float64 else density.float()
        return wide.sum(dim=(1, 2, 3)) / self.scale
