"""Compute the class weights of AdaFed's adaptive loss (AdaFed, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def f1_class_weights(f1: Tensor, epsilon: float = 0.1) -> Tensor:
    """Return kappa_c = 1 / (F1_c + epsilon) (AdaFed, section 3.1; epsilon = 0.1 in its Simulation 2).

    Args:
        f1: the F1 score of each class in [0, 1], shape (C,). NaN, for a class missing from the server's set, gives 1.
        epsilon: limits the weight of a class that is never recognised to 1 / epsilon; in (0, 1).

    Returns:
        Weights in [1 / (1 + epsilon), 1 / epsilon], shape (C,).

    >>> f1_class_weights(torch.tensor([0.0, 0.9])).tolist()
    [10.0, 1.0]
    """
    return torch.where(f1.isnan(), torch.ones_like(f1), 1.0 / (f1 + epsilon))


def weighted_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return cross-entropy with class weights, divided by the number of samples M (AdaFed, eq. 2).

    ``torch.nn.CrossEntropyLoss(weight=...)`` is a different loss: it divides by the sum of the batch's weights.

    Args:
        logits: the unnormalised scores, shape (M, C) or (M, C, ...).
        target: the class indices, shape (M,) or (M, ...).
        weight: the class weights kappa, shape (C,).

    Returns:
        The loss, a scalar.
    """
    return F.cross_entropy(logits, target, weight=weight, reduction="sum") / target.numel()
