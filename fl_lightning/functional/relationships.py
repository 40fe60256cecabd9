"""Learn how clients' models are related: the matrix of multi-task learning and its term in the objective.

Smith et al. 2017, Federated Multi-Task Learning (MOCHA), eq. 1, with the regularizer of Zhang and Yeung 2010, A Convex
Formulation for Learning Task Relationships.
"""

from __future__ import annotations

import torch
from torch import Tensor


def learn_relationships(weights: Tensor, smoothing: float) -> Tensor:
    """Return ``S = K * (W W^T + eps I)^(1/2) / trace``, the minimiser of ``tr(S^-1 (W W^T + eps I))`` with trace K.

    Args:
        weights: W, a row for each client, shape (K, p).
        smoothing: eps > 0, in units of squared weights, keeps S invertible.

    Returns:
        Symmetric, positive definite, trace K, float64, shape (K, K); S_ij is large if clients' weights have one direction.
    """
    gram = weights.double() @ weights.double().T
    values, vectors = torch.linalg.eigh(gram + smoothing * torch.eye(len(gram), dtype=torch.float64))
    root = vectors * values.clamp(min=smoothing).sqrt() @ vectors.T
    related: Tensor = root * (len(gram) / root.trace())
    return related


def coupling(relationships: Tensor, strength: float, l2: float) -> Tensor:
    """Return ``M = strength * S^-1 + l2 * I``, float64, shape (K, K); the regularizer is ``1/2 tr(W^T M W)``.

    Args:
        relationships: S, shape (K, K).
        strength: lambda_1 >= 0.
        l2: lambda_2 >= 0.
    """
    identity = torch.eye(len(relationships), dtype=torch.float64)
    inverse = torch.linalg.inv(relationships)
    matrix: Tensor = strength * (inverse + inverse.T) / 2 + l2 * identity
    return matrix


def pulls(weights: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's part of the regularizer: a pull of strength D_k towards an anchor.

    ``1/2 tr(W^T M W) <= const + sum_k D_k / 2 * |w_k - a_k|^2`` with ``D_k = sum_j |M_kj|`` and ``a_k = w_k - (M W)_k / D_k``,
    equal at the present W, since ``diag(D) - M`` is diagonally dominant. Clients that lower their parts of the bound, however
    roughly and side by side, therefore lower the whole.

    Args:
        weights: the present W, shape (K, p).
        matrix: M, symmetric, shape (K, K).

    Returns:
        Anchors, float64, shape (K, p), and strengths, shape (K,).
    """
    w = weights.double()
    strengths = matrix.abs().sum(dim=1)
    return w - (matrix @ w) / strengths[:, None], strengths


def similarity(relationships: Tensor) -> Tensor:
    """Return correlations ``S_ij / sqrt(S_ii S_jj)`` in [-1, 1], shape (K, K)."""
    scale = relationships.diagonal().sqrt()
    return relationships / scale[:, None] / scale
