"""A network whose first part is not trained."""

from __future__ import annotations

from torch import Tensor, nn


class FrozenBackbone(nn.Module):
    """A backbone that stays as it is and a head that is trained on its features.

    The backbone has no gradients and is always in evaluation mode: no dropout, BatchNorm with its own statistics. So an
    example's features never change, and :class:`~fl_lightning.FeatureCache` computes them once. Parameters that are given
    gradients again before the fit are trained and sent like any others.

    Args:
        backbone: maps images, shape (N, C, H, W), to features, shape (N, D).
        head: maps features to logits.
    """

    constant_parts = ("backbone",)
    """Of the federation's messages: what no client changes, nobody needs to send."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = head

    def train(self, mode: bool = True) -> FrozenBackbone:
        """Switch the head alone."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of images, shape (N, C, H, W), or of their features, shape (N, D)."""
        logits: Tensor = self.head(self.backbone(inputs) if inputs.ndim == 4 else inputs)
        return logits
