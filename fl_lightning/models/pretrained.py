"""Build networks of torchvision, with pretrained weights if asked: ResNet-18, and a frozen VGG-19 with a new head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision.models import get_model_weights, resnet18, vgg19

from fl_lightning.errors import ConfigurationError, require, require_counts
from fl_lightning.models.plain import MLP
from fl_lightning.utilities.argument_types import ChecksTypes

_SETTING = "model.network.weights"


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


class FrozenBackbone(ChecksTypes, nn.Module):
    """Train a head on the features of a frozen backbone.

    The backbone has no gradients and is always in evaluation mode: no dropout, and BatchNorm with its own statistics. An
    example's features therefore never change, and :class:`~fl_lightning.FeatureCache` computes them once. Parameters whose
    gradients are enabled again before the fit are trained and sent like any others.

    Args:
        backbone: maps images, shape (N, C, H, W), to features, shape (N, D).
        head: maps features to logits.
    """

    constant_parts = ("backbone",)
    """Children that the federation does not send, since no client changes them."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = head

    def train(self, mode: bool = True) -> FrozenBackbone:
        """Switch the mode of the head only."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of images, shape (N, C, H, W), or of their features, shape (N, D)."""
        logits: Tensor = self.head(self.backbone(inputs) if inputs.ndim == 4 else inputs)
        return logits


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


def load_weights(network: nn.Module, architecture: str, weights: str | None) -> None:
    """Load a torchvision network's weights, before its layers are replaced.

    Args:
        network: the network as torchvision builds it.
        architecture: torchvision's name of it, such as ``vgg19``.
        weights: None; a member of torchvision's enum for the architecture, such as ``IMAGENET1K_V1`` or ``DEFAULT``, which
            is downloaded once; or the path of a file with a state dict.

    Raises:
        ConfigurationError: if neither such a member nor such a file exists, if it does not fit, or if the download fails.
    """
    if weights in (None, "None", "null"):  # the command line passes null as text
        return
    known = get_model_weights(architecture)
    try:
        if weights in known.__members__:
            state: Any = known[weights].get_state_dict(progress=True)
        else:
            state = torch.load(weights, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"'{_SETTING}' is '{weights}', which is neither a file nor one of torchvision's for {architecture}. Set it to a "
            f"file, or to one of {', '.join(known.__members__)}."
        ) from error
    except Exception as error:  # whatever torch raises without a network, or for a file that is not a checkpoint
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:100]
        raise ConfigurationError(
            f"Cannot load the weights '{weights}' of {architecture} ({reason}). Set '{_SETTING}' to a file with a state dict."
        ) from error
    try:
        network.load_state_dict(state.get("state_dict", state) if isinstance(state, Mapping) else state)
    except (RuntimeError, TypeError) as error:
        raise ConfigurationError(
            f"The weights in '{weights}' are not those of torchvision's {architecture}: "
            f"{str(error).splitlines()[:2][-1].strip()} Set '{_SETTING}' to another file."
        ) from error
