"""Combine a frozen backbone with a trained head."""

from __future__ import annotations

from torch import Tensor, nn

from fl_lightning.utilities.argument_types import ChecksTypes


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
