"""Build VGG-19 (Simonyan and Zisserman 2015) with frozen convolutions and a new head, as in the Fed-Star thesis."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchvision.models import vgg19

from fl_lightning.errors import require
from fl_lightning.models.frozen_backbone import FrozenBackbone
from fl_lightning.models.mlp import MLP
from fl_lightning.models.weights import load_weights


class VGG19(FrozenBackbone):
    """Combine the frozen convolutions of torchvision's VGG-19 with a head of three dense layers.

    The thesis uses the head 1024-256-C with dropout 0.5 for Office-31 at 224 x 224 pixels, and 512-512-C without dropout for
    CIFAR-10 (Fed-Cyclic and Fed-Star thesis, section 5.1).

    Args:
        num_classes: the number of outputs C.
        hidden: the units of the head's hidden layers.
        dropout: the dropout probability after each hidden layer, in [0, 1).
        pooled: the height and width to which the last feature maps are averaged: 7 as in VGG, 25,088 features; 1 gives 512,
            which is all that images of 32 x 32 provide.
        weights: pretrained weights of torchvision's network: a name such as ``IMAGENET1K_V1``, the path of a file, or None for
            random ones.

    Raises:
        ConfigurationError: if the weights are not available or do not fit.
    """

    def __init__(
        self,
        num_classes: int = 31,
        hidden: Sequence[int] = (1024, 256),
        dropout: float = 0.5,
        pooled: int = 7,
        weights: str | None = None,
    ) -> None:
        require(pooled >= 1, "model.network.pooled", "at least 1", pooled)
        network = vgg19(init_weights=weights is None)
        load_weights(network, "vgg19", weights)
        backbone = nn.Sequential(network.features, nn.AdaptiveAvgPool2d(pooled), nn.Flatten())
        super().__init__(backbone, MLP(512 * pooled * pooled, hidden, num_classes, dropout))
