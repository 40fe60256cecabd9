"""Build the papers' networks for small images and for tables, from layers in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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


def _initialise_as_keras(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


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


class MLP(ChecksTypes, nn.Module):
    """Flatten the input and apply hidden layers with ReLU, each with dropout, and a layer of logits.

    With the defaults it has 199,210 parameters: McMahan et al.'s 2NN for MNIST.

    Args:
        in_features: the numbers per example, such as channels * height * width.
        hidden: the units of each hidden layer.
        num_classes: the number of outputs.
        dropout: the dropout probability after each hidden layer, in [0, 1).
    """

    def __init__(
        self, in_features: int = 784, hidden: Sequence[int] = (200, 200), num_classes: int = 10, dropout: float = 0.0
    ) -> None:
        super().__init__()
        require(in_features >= 1, "model.network.in_features", "at least 1", in_features)
        require_counts("model.network.", num_classes=num_classes)
        require(all(units >= 1 for units in hidden), "model.network.hidden", "numbers of units of at least 1", list(hidden))
        require(0 <= dropout < 1, "model.network.dropout", "at least 0 and below 1", dropout)
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise([in_features, *hidden]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        self.layers = nn.Sequential(*layers, nn.Linear([in_features, *hidden][-1], num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits, shape (N, num_classes), of inputs of shape (N, ...) with in_features numbers each."""
        logits: Tensor = self.layers(inputs)
        return logits
