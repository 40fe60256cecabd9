"""Compute a robust regression loss whose shape the server adapts (Barron 2019; AdaFed, section 3.2)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import require, require_same_shape
from fl_lightning.functional.robust_loss import most_likely, residual_counts, robust_loss
from fl_lightning.losses.adaptive import AdaptiveLoss


class RobustLoss(AdaptiveLoss):
    """Compute the mean of ``rho(outputs - target, shape, scale)``: L2 for small residuals; the shape limits large ones.

    Shape 2 is L2, 1 Charbonnier (a smooth L1), 0 Cauchy, -2 Geman-McClure, -inf Welsch; see
    :func:`~fl_lightning.functional.robust_loss`. With ``adaptive``, after each round the server sets the shape under which
    all its own residuals together are most likely (eq. 16-18). If a few of them are large, the clients' outliers count less
    in the next round. The gradient near 0 is ``x / scale^2``, so a different scale needs a different learning rate.

    Args:
        shape: the initial alpha, at most 2; -inf is allowed.
        scale: the size c of residuals that are still noise, > 0, in units of the target.
        adaptive: whether the server adapts the shape, between ``lowest`` and ``highest``; ``shape`` must lie there, too.
        adapt_scale: whether the server also adapts the scale.
        lowest: the lowest adapted shape, >= 0; for lower shapes the likelihood does not have a finite integral.
        highest: the highest adapted shape, <= 2.

    Shapes:
        outputs and target of one shape, (N, ...); the output is a scalar, float32 or float64.
    """

    server_buffers = ("shape", "scale")
    may_be_infinite = ("shape",)
    shape: Tensor
    scale: Tensor

    def __init__(
        self,
        shape: float = 2.0,
        scale: float = 1.0,
        adaptive: bool = True,
        adapt_scale: bool = False,
        lowest: float = 0.0,
        highest: float = 2.0,
    ) -> None:
        super().__init__()
        require(0 < scale < math.inf, "model.loss.scale", "above 0 and finite, in units of the target", scale)
        require(shape <= 2, "model.loss.shape", "at most 2", shape)
        require(0 <= lowest <= highest <= 2, "model.loss.lowest", f"from 0 to 'highest', {highest}, which is at most 2", lowest)
        inside = not adaptive or lowest <= shape <= highest
        hint = "These are 'lowest' and 'highest'."
        require(inside, "model.loss.shape", f"from {lowest} to {highest} if 'adaptive' is true", shape, hint)
        require(adaptive or not adapt_scale, "model.loss.adapt_scale", "false if 'adaptive' is false", adapt_scale)
        self.adaptive, self.adapt_scale = adaptive, adapt_scale
        self.lowest, self.highest = lowest, highest
        self.signal = ResidualCounts() if adaptive else None
        self.register_buffer("shape", torch.tensor(float(shape)))
        self.register_buffer("scale", torch.tensor(float(scale)))

    @property
    def convex(self) -> bool:
        """Return whether the loss is convex in the outputs for every shape the server may set: from shape 1 on."""
        return self.lowest >= 1 if self.adaptive else float(self.shape) >= 1

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        Raises:
            ConfigurationError: if outputs and target differ in shape, since they would be broadcast.
        """
        require_same_shape("RobustLoss", outputs.shape, target.shape)
        return robust_loss(outputs - target, self.shape, self.scale).mean()

    @torch.no_grad()
    def adapt(self, signal: Tensor) -> None:
        """Set the shape, and the scale if requested, from counts of residuals, shape (2560,)."""
        shape, scale = most_likely(signal, float(self.scale), self.lowest, self.highest, self.adapt_scale)
        self.shape.fill_(shape)
        self.scale.fill_(scale)

    def figures(self) -> dict[str, Tensor]:
        """Return the shape and scale of the next round."""
        return {"robust_loss/shape": self.shape.clone(), "robust_loss/scale": self.scale.clone()}


class ResidualCounts(Metric):
    """Count residuals by their absolute value; see :func:`~fl_lightning.functional.residual_counts`."""

    full_state_update = False
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        zero = residual_counts(torch.zeros(0))
        self.add_state("counts", zero, dist_reduce_fx="sum")

    def update(self, outputs: Tensor, target: Tensor) -> None:
        """Add a batch."""
        self.counts += residual_counts(outputs.detach() - target)

    def compute(self) -> Any:
        """Return the counts, int64, shape (2560,)."""
        return self.counts
