"""Change training images at random, each independently."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import ChecksTypes


class RandomCropFlip(ChecksTypes, nn.Module):
    """Pad with zeros, crop at random, flip half of the images left to right: the usual augmentation of CIFAR.

    It draws for all images of a batch at once, several times faster than transforms that are applied to one image at a time.

    Args:
        padding: the pixels added on each side, >= 0.
        flip: the probability of a flip, in [0, 1].

    Shapes:
        input and output (N, C, H, W).
    """

    per_example = True
    """Declares that the transform draws separately for each example of a batch."""

    def __init__(self, padding: int = 4, flip: float = 0.5) -> None:
        super().__init__()
        require(padding >= 0, "padding", "0 or above", padding)
        require(0 <= flip <= 1, "flip", "in [0, 1]", flip)
        self.padding = padding
        self.flip = flip

    def forward(self, images: Tensor) -> Tensor:
        """Return changed copies of the images."""
        size, _, height, width = images.shape
        device = images.device
        windows = F.pad(images, [self.padding] * 4).unfold(2, height, 1).unfold(3, width, 1)  # a view, not a copy
        top, left = torch.randint(2 * self.padding + 1, (2, size), device=device)
        cropped = windows[torch.arange(size, device=device), :, top, left]
        flipped = torch.rand(size, 1, 1, 1, device=device) < self.flip
        return torch.where(flipped, cropped.flip(3), cropped)


def augment(images: Tensor, augmentation: nn.Module) -> Tensor:
    """Apply a transform to each image independently.

    A torchvision transform draws once per call, so on a batch it would change all images in the same way. It is therefore
    called once for each image, unless its attribute ``per_example`` declares that it draws for each image separately.

    Args:
        images: the images, shape (N, C, H, W).
        augmentation: the transform of one image, or of a batch if it has ``per_example``.
    """
    if getattr(augmentation, "per_example", False):
        changed: Tensor = augmentation(images)
        return changed
    return torch.stack([augmentation(image) for image in images])
