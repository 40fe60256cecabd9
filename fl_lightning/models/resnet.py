"""ResNet-18 (He et al. 2016) as torchvision builds it, with a stem for large or for small images."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torchvision.models import resnet18

from fl_lightning.errors import require
from fl_lightning.models.weights import load_weights


class ResNet18(nn.Module):
    """ResNet-18 with logits of any number of classes.

    11,181,642 parameters for 3 channels and 10 classes, 11,173,962 with the stem ``cifar``. Its BatchNorm needs at least two
    examples in a batch where the last feature maps are of 1 x 1, as those of 32 x 32 images with the stem ``imagenet`` are.

    Args:
        num_classes: outputs.
        channels: of the images; other than 3 needs new first weights, so ``weights`` must be None.
        stem: ``imagenet`` is torchvision's, 7 x 7 with stride 2 and max-pooling, which the FedNova thesis takes for CIFAR,
            too; ``cifar`` is 3 x 3 with stride 1 and no pooling, for images of 28 or 32 pixels.
        weights: of torchvision's network for 1,000 classes, of which the last layer is replaced, and with the stem ``cifar``
            the first: a name such as ``IMAGENET1K_V1``, the path of a file, or None.

    Raises:
        ConfigurationError: for weights that cannot be had or do not fit.
    """

    def __init__(
        self,
        num_classes: int = 10,
        channels: int = 3,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        weights: str | None = None,
    ) -> None:
        super().__init__()
        require(channels == 3 or weights is None, "model.network.weights", "null where 'channels' is not 3", weights)
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
        """Logits, shape (N, num_classes), of images of shape (N, channels, height, width)."""
        logits: Tensor = self.network(images)
        return logits
