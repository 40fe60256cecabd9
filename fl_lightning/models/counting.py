"""Count by images: a small U-Net (Ronneberger et al. 2015) draws the density, whose sum is the count."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_lightning.errors import ConfigurationError, require, require_counts
from fl_lightning.utilities.argument_types import ChecksTypes


class UNet(ChecksTypes, nn.Module):
    """Halve the image ``depth`` times and double it again, concatenating the features of equal size on each level.

    As in the paper (section 2), each level has two 3 x 3 convolutions with ReLU, followed by 2 x 2 max-pooling and twice as
    many features below; 2 x 2 up-convolutions lead back up, and a 1 x 1 convolution ends the network. Unlike in the paper,
    images are padded, so that outputs have the same size, and features are fewer. Normalisation is left out: BatchNorm's
    statistics average badly over unlike clients, and with GroupNorm, counting simulated cells took more epochs. Weights are
    initialised as in He et al. (2015), the last layer's near zero, so the first outputs are close to 0. Outputs do not have a
    lower limit.

    It has 29,321 parameters for a width of 8 and 116,753 for 16, with a depth of 2 and one channel.

    Args:
        channels: the channels of the images.
        outputs: the channels of the output.
        width: the features of the first level, >= 1.
        depth: how often the image is halved, >= 1; its height and width must be multiples of 2 ** depth.
    """

    def __init__(self, channels: int = 1, outputs: int = 1, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        require_counts("model.network.", channels=channels, outputs=outputs, width=width, depth=depth)
        self.depth = depth
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(_two(a, b) for a, b in zip([channels, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[-2::-1])
        self.merge = nn.ModuleList(_two(2 * a, a) for a in widths[-2::-1])
        self.last = nn.Conv2d(width, outputs, 1)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight)
            elif isinstance(part, nn.ConvTranspose2d):
                nn.init.normal_(part.weight, std=part.in_channels**-0.5)  # no ReLU follows; one weight for each input
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d) and part.bias is not None:
                nn.init.zeros_(part.bias)
        nn.init.normal_(self.last.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        """Return output images, shape (N, outputs, H, W), for images of shape (N, channels, H, W).

        Raises:
            ConfigurationError: if H or W is not a multiple of 2 ** depth.
        """
        height, width = images.shape[-2:]
        if height % 2**self.depth or width % 2**self.depth:
            raise ConfigurationError(
                f"UNet with 'model.network.depth' {self.depth} takes images whose height and width are multiples of "
                f"{2**self.depth}, but these have {width} x {height} pixels. Set 'data.datamodule.image_size' to such a "
                "multiple, or lower the depth."
            )
        levels = []
        features = images
        for level, convolutions in enumerate(self.down):
            features = convolutions(nn.functional.max_pool2d(features, 2) if level else features)
            levels.append(features)
        for above, up, merge in zip(levels[-2::-1], self.up, self.merge, strict=True):
            features = merge(torch.cat([above, up(features)], dim=1))
        drawn: Tensor = self.last(features)
        return drawn


def _two(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions of 3 x 3, each with ReLU."""
    first, second = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


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
