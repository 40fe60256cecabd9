"""Compute a robust regression loss whose shape the server adapts (Barron 2019; AdaFed, section 3.2)."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import require, require_same_shape
from fl_lightning.losses.adaptive import AdaptiveLoss


class RobustLoss(AdaptiveLoss):
    """Compute the mean of ``rho(outputs - target, shape, scale)``: L2 for small residuals; the shape limits large ones.

    Shape 2 is L2, 1 Charbonnier (a smooth L1), 0 Cauchy, -2 Geman-McClure, -inf Welsch; see
    ``robust_loss`` of this module. With ``adaptive``, after each round the server sets the shape under which
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
    """Count residuals by their absolute value."""

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


_NEAR = 1e-6
"""The distance kept from the removable singularities 0 and 2 of the shape; the relative error there is at most 3e-5."""
_LARGEST = 1e30
"""The upper limit of squares, which would overflow in float32."""
_FAR = -1e6
"""A shape below this is equivalent to minus infinity."""
_OCTAVES, _PARTS = 40, 32
"""Residuals are counted from 2^-40 to 2^40, in 32 bins per doubling."""
_STEP = 0.05
_SCALES = 65


def robust_loss(residual: Tensor, shape: Tensor, scale: Tensor) -> Tensor:
    """Return ``rho(x, a, c) = |a-2|/a * ((x^2/c^2 / |a-2| + 1)^(a/2) - 1)``, continued where it is 0/0 (eq. 8 and 13).

    a = 2 is L2 ``(x/c)^2 / 2``, 1 Charbonnier ``sqrt((x/c)^2 + 1) - 1``, 0 Cauchy ``log((x/c)^2 / 2 + 1)``, -2
    Geman-McClure ``2 (x/c)^2 / ((x/c)^2 + 4)``, minus infinity Welsch ``1 - exp(-(x/c)^2 / 2)``. The form with expm1 and
    log1p, ``|a-2|/a * expm1(a/2 * log1p(z / |a-2|))``, loses no digits near 0.

    Args:
        residual: x, any shape; half precision is computed in float32.
        shape: a, a scalar; at most 2 in practice, -inf included.
        scale: c > 0, a scalar.

    Returns:
        The loss of each residual, >= 0, of the residual's shape, float32 or float64.
    """
    x = residual if residual.dtype == torch.float64 else residual.float()
    a = shape.to(x).clamp(min=_FAR)
    a = torch.where(a.abs() < _NEAR, _NEAR, a)
    b = (a - 2).abs().clamp(min=_NEAR)
    z = (x / scale.to(x)).square().clamp(max=_LARGEST)
    t = a / 2 * torch.log1p(z / b)
    # The gradient of expm1 is its value plus 1, which cancels where the value is near -1.
    return b / a * torch.where(t < -1, t.exp() - 1, torch.expm1(t.clamp(min=-1)))


@cache
def log_partition(shape: float) -> float:
    """Return the log of ``Z(a) = integral of exp(-rho(x, a, 1)) dx`` over the real line (eq. 17); it diverges below 0.

    The trapezoidal rule after x = sinh(t) converges exponentially.

    Args:
        shape: a in [0, 2].
    """
    t = torch.linspace(-45.0, 45.0, 4501, dtype=torch.float64)
    density = torch.exp(-robust_loss(t.sinh(), torch.tensor(shape), torch.tensor(1.0))) * t.cosh()
    return float(torch.log(density.sum() * (t[1] - t[0])))


def residual_counts(residual: Tensor) -> Tensor:
    """Count residuals by absolute value, in exact arithmetic: sums over ranks do not depend on their order.

    Args:
        residual: the residuals, any shape; non-finite ones are ignored.

    Returns:
        int64, shape (2560,): bin 32 * e + i holds ``2^(e-40) * [0.5 + i/64, 0.5 + (i+1)/64)``; smaller residuals are in the
        first bin, larger ones in the last.
    """
    mantissa, exponent = torch.frexp(residual[residual.isfinite()].abs().to(torch.promote_types(residual.dtype, torch.float32)))
    place = (exponent.long() + _OCTAVES) * _PARTS + ((mantissa - 0.5) * 2 * _PARTS).long()
    bins = 2 * _OCTAVES * _PARTS
    return torch.bincount(torch.where(mantissa == 0, 0, place.clamp(0, bins - 1)), minlength=bins)


def _centres() -> Tensor:
    bins = torch.arange(2 * _OCTAVES * _PARTS, dtype=torch.float64)
    return (0.5 + (bins % _PARTS + 0.5) / (2 * _PARTS)) * torch.exp2(bins.div(_PARTS, rounding_mode="floor") - _OCTAVES)


def most_likely(counts: Tensor, scale: float, lowest: float, highest: float, fit_scale: bool) -> tuple[float, float]:
    """Return the shape and scale under which residuals are most likely (section 2, eq. 16-18).

    The function minimises ``mean rho(x, a, c) + log c + log Z(a)`` over a grid: shapes in steps of 0.05 from ``lowest`` to
    ``highest``; scales, if fitted, in 64 steps of equal ratio from 1/32 to 32 times the median residual.

    Args:
        counts: the result of :func:`residual_counts`.
        scale: c, used if it is not fitted or if all residuals are 0.
        lowest: the lowest shape, >= 0.
        highest: the highest shape, <= 2.
        fit_scale: whether to fit the scale, too.
    """
    seen = counts.nonzero().flatten().cpu()
    if not seen.numel():
        return highest, scale
    x, n = _centres()[seen], counts.cpu()[seen].double()
    scales = torch.tensor([scale], dtype=torch.float64)
    if fit_scale and int(seen.max()) > 0:
        median = x[int(torch.searchsorted(n.cumsum(0), n.sum() / 2))]
        scales = median.clamp(min=float(x[-1]) * 1e-6) * torch.exp2(torch.linspace(-5.0, 5.0, _SCALES, dtype=torch.float64))
    steps = max(1, round((highest - lowest) / _STEP)) if highest > lowest else 0
    shapes = [lowest + (highest - lowest) * k / max(1, steps) for k in range(steps + 1)]
    costs = torch.stack([_cost(x, n, shape, scales) for shape in shapes])
    best = int(costs.argmin())
    return shapes[best // len(scales)], float(scales[best % len(scales)])


def _cost(x: Tensor, n: Tensor, shape: float, scales: Tensor) -> Tensor:
    """Return the mean negative log-likelihood at each scale, shape (S,)."""
    losses = robust_loss(x / scales[:, None], torch.tensor(shape), torch.tensor(1.0))
    return losses @ n / n.sum() + scales.log() + log_partition(shape)
