"""Build LeNet-5 with ReLU (LeCun et al. 1998), the network of the FedLoss thesis."""

from __future__ import annotations

from torch import Tensor, nn

from fl_lightning.errors import require, require_counts
from fl_lightning.utilities.argument_types import ChecksTypes


class LeNet(ChecksTypes, nn.Module):
    """Apply 5 x 5 convolutions of 6 and 16 filters, each with ReLU and 2 x 2 max-pooling; 120 and 84 units; logits.

    It has 44,426 parameters for 28 x 28 grey images, 62,006 for 32 x 32 colour images.

    Args:
        channels: the channels of the images.
        image_size: the height and width of the images in pixels, at least 16.
        num_classes: the number of outputs.
        batch_norm: whether to normalise the outputs of both convolutions over the batch.
    """

    def __init__(self, channels: int = 1, image_size: int = 28, num_classes: int = 10, batch_norm: bool = False) -> None:
        super().__init__()
        require_counts("model.network.", channels=channels, num_classes=num_classes)
        require(image_size >= 16, "model.network.image_size", "at least 16", image_size)
        side = ((image_size - 4) // 2 - 4) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            *([nn.BatchNorm2d(6)] if batch_norm else []),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            *([nn.BatchNorm2d(16)] if batch_norm else []),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (N, num_classes), of images of shape (N, channels, image_size, image_size)."""
        logits: Tensor = self.layers(images)
        return logits
