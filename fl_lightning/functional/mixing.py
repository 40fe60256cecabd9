"""Mix clients' models with one another: row k of a matrix holds client k's weights of all models."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.functional.exact_sum import to_float64


def star_matrix(accuracy: Tensor) -> Tensor:
    """Return Fed-Star's normalised weights M(k, j) = 1 - Acc(w_j, D_k) (Fed-Cyclic and Fed-Star thesis, eq. 3.8 and 3.9).

    Args:
        accuracy: the accuracy of model j on client k's data, in [0, 1], shape (K, K), row k, column j.

    Returns:
        Rows that sum to 1, float64, shape (K, K). A row of perfect models weighs them equally.
    """
    errors = 1.0 - accuracy.double()
    totals = errors.sum(dim=1, keepdim=True)
    uniform = torch.full_like(errors, 1.0 / errors.shape[1])
    return torch.where(totals > 0, errors / totals.clamp_min(torch.finfo(torch.float64).tiny), uniform)


def ring_matrix(size: int, gamma: float) -> Tensor:
    """Return RingFed's weights: (1 - gamma) of the own model, gamma of the previous one; float64, shape (K, K)."""
    own = torch.eye(size, dtype=torch.float64)
    return (1.0 - gamma) * own + gamma * own.roll(1, dims=0)


def mix(states: Tensor, matrix: Tensor) -> Tensor:
    """Compute all mixtures at once.

    Args:
        states: the models, shape (K, d), any floating dtype.
        matrix: the weights of client k's mixture in row k, shape (K, K).

    Returns:
        The mixtures, computed in float64 and returned in the states' dtype, shape (K, d).
    """
    exact = to_float64(states)
    return (matrix.to(exact) @ exact).to(states)
