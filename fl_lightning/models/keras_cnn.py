"""Build the convolutional network of Keras' MNIST example, which AdaFed's simulations train."""

from __future__ import annotations

from torch import Tensor, nn

from fl_lightning.errors import require, require_counts
from fl_lightning.utilities.argument_types import ChecksTypes


class KerasCNN(ChecksTypes, nn.Sequential):
    """Apply two 3x3 convolutions, max-pooling, dropout, a dense layer, dropout, and a dense layer of logits.

    With the defaults it has 1,199,882 parameters, as Keras counts them. It is initialised as in Keras: Glorot uniform
    kernels, zero biases.

    Args:
        num_classes: the number of outputs.
        in_channels: the channels of the images.
        image_size: the height and width of the images in pixels, at least 6.

    Shapes:
        input (N, in_channels, image_size, image_size), output logits (N, num_classes).
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> None:
        require_counts("model.network.", num_classes=num_classes, in_channels=in_channels)
        require(image_size >= 6, "image_size", "at least 6", image_size)
        side = (image_size - 4) // 2
        super().__init__(
            nn.Conv2d(in_channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, num_classes),
        )
        self.apply(_initialise_as_keras)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of a batch of images."""
        logits: Tensor = super().forward(images)  # type: ignore[no-untyped-call]
        return logits


def _initialise_as_keras(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
