"""Compute averages that a minority of hostile models cannot move far: number by number, or by the models' inner products.

Rules that depend only on distances and angles read the models once, for their inner products G, shape (m, m): the distance of
two is ``G_ii + G_jj - 2 G_ij``, and that of one to a weighted average follows from G and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.exact_sum import to_float64

_PIECE = 2**24
"""The number of elements processed at once, of all models together."""


def check_attackers(attackers: int | float) -> None:
    """Reject a value that is neither a number nor a minority.

    Raises:
        ConfigurationError: if the value is invalid; the message names the setting.
    """
    minority = isinstance(attackers, int) or attackers < 0.5
    require(attackers >= 0 and minority, "federation.strategy.attackers", "a number, or a share from 0 to below 0.5", attackers)


def expected_attackers(attackers: int | float, size: int) -> int:
    """Return how many of ``size`` models may be hostile: an int is the number, a float in [0, 1) a share, rounded up."""
    return attackers if isinstance(attackers, int) else math.ceil(attackers * size - 1e-9)


def coordinatewise(states: Sequence[Tensor], rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a rule to each number of the models.

    Args:
        states: m vectors of shape (d,).
        rule: maps the m values in ascending order, NaN last, shape (m, n), to float64, shape (n,).

    Returns:
        The result, float64, shape (d,).
    """
    # In pieces, because sorting makes an index of 8 bytes for each number. The result is allocated before them: long-lived
    # memory between large pieces would leave holes that no other piece fits into.
    size, total = max(1, _PIECE // len(states)), states[0].numel()
    result = torch.empty(total, dtype=torch.float64, device=to_float64(states[0][:0]).device)
    for begin in range(0, total, size):
        piece = torch.stack([state[begin : begin + size] for state in states])
        result[begin : begin + size] = rule(piece.sort(dim=0).values)
    return result


def inner_products(states: Sequence[Tensor], center: Tensor) -> Tensor:
    """Return the inner products of the updates ``w_i - center``, float64, shape (m, m).

    Args:
        states: m models of shape (p,).
        center: the common reference, shape (p,); without it, distances of nearly equal models would be rounding errors.
    """
    size = max(1, _PIECE // len(states))
    products = torch.zeros(len(states), len(states), dtype=torch.float64)
    for begin in range(0, center.numel(), size):
        middle = to_float64(center[begin : begin + size])
        updates = torch.stack([to_float64(state[begin : begin + size]) - middle for state in states])
        products += (updates @ updates.T).cpu()
    return products


def squared_distances(products: Tensor) -> Tensor:
    """Return the squared distances between models, from their inner products, shape (m, m)."""
    norms = products.diagonal()
    return (norms[:, None] + norms[None, :] - 2 * products).clamp_(min=0)


def krum_scores(products: Tensor, attackers: int) -> Tensor:
    """Return each model's sum of squared distances to its m - f - 2 nearest neighbours, shape (m,); low is good.

    Args:
        products: the inner products of the m models.
        attackers: f, at most m - 3 (Blanchard et al. 2017, section 4).
    """
    distances = squared_distances(products).fill_diagonal_(math.inf)
    return distances.sort(dim=1).values[:, : len(products) - attackers - 2].sum(dim=1)


def geometric_median(products: Tensor, weights: Tensor, smoothing: float, iterations: int, tolerance: float = 1e-10) -> Tensor:
    """Return shares s that sum to 1 such that ``sum_i s_i w_i`` has the least weighted sum of distances to the models.

    This is the smoothed Weiszfeld algorithm (Pillutla et al. 2022, Algorithm 2), started at the weighted mean.

    Args:
        products: the inner products of the m models.
        weights: the weights of the models, > 0, shape (m,).
        smoothing: the smallest distance nu > 0; smaller distances count as this.
        iterations: the maximum number of iterations.
        tolerance: the algorithm stops when no share changes by more than this.

    Returns:
        The shares, float64, shape (m,).
    """
    weights = weights.to(products)
    shares = weights / weights.sum()
    for _ in range(iterations):
        mixed = products @ shares
        distances = (products.diagonal() - 2 * mixed + shares @ mixed).clamp(min=0).sqrt()
        pulls = weights / distances.clamp(min=smoothing)
        before, shares = shares, pulls / pulls.sum()
        if float((shares - before).abs().max()) <= tolerance:
            break
    return shares


def mean_cosines(products: Tensor) -> Tensor:
    """Return each update's mean cosine with the others, in [-1, 1], shape (m,); 0 for a zero update or a single one."""
    norms = products.diagonal().clamp(min=0).sqrt()
    scale = torch.where(norms > 0, 1 / norms, torch.zeros_like(norms))
    cosines = products * scale[:, None] * scale[None, :]
    return (cosines.sum(dim=1) - cosines.diagonal()) / max(1, len(products) - 1)
