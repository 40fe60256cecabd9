"""Build ResNet-18 (He et al. 2016) as torchvision does, with a stem for large or for small images."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torchvision.models import resnet18

from fl_lightning.errors import require, require_counts
from fl_lightning.models.weights import load_weights
from fl_lightning.utilities.argument_types import ChecksTypes


class ResNet18(ChecksTypes, nn.Module):
    """Build ResNet-18 with logits for any number of classes.

    It has 11,181,642 parameters for 3 channels and 10 classes, 11,173,962 with the stem ``cifar``. Its BatchNorm needs at
    least two examples in a batch if the last feature maps are 1 x 1, as for 32 x 32 images with the stem ``imagenet``.

    Args:
        num_classes: the number of outputs.
        channels: the channels of the images. If not 3, the first layer needs new weights, so ``weights`` must be None.
        stem: ``imagenet`` is torchvision's, 7 x 7 with stride 2 and max-pooling, which the FedNova thesis also uses for
            CIFAR; ``cifar`` is 3 x 3 with stride 1 and no pooling, for images of 28 or 32 pixels.
        weights: pretrained weights of torchvision's network for 1,000 classes: a name such as ``IMAGENET1K_V1``, the path of a
            file, or None. The last layer is replaced, and with the stem ``cifar`` also the first.

    Raises:
        ConfigurationError: if the weights are not available or do not fit.
    """

    def __init__(
        self,
        num_classes: int = 10,
        channels: int = 3,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        weights: str | None = None,
    ) -> None:
        super().__init__()
        require_counts("model.network.", num_classes=num_classes, channels=channels)
        require(channels == 3 or weights is None, "model.network.weights", "null if 'channels' is not 3", weights)
        network = resnet18()
        load_weights(network, "resnet18", weights)
        if stem == "cifar":
            network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
            network.maxpool = nn.Identity()
        elif channels != 3:
            network.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        network.fc = nn.Linear(network.fc.in_features, num_classes)
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape (N, num_classes), of images of shape (N, channels, height, width)."""
        logits: Tensor = self.network(images)
        return logits
