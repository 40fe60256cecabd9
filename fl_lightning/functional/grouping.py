"""Form groups of clients whose labels together are nearest to uniform (Astraea; survey, section III-C)."""

from __future__ import annotations

import torch
from torch import Tensor


def divergence_from_uniform(counts: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of label distributions from the uniform one, in nats, in [0, log C].

    Args:
        counts: the examples of each class, shape (..., C), each row with at least one.

    Returns:
        The divergences, shape (...).

    >>> divergence_from_uniform(torch.tensor([[5, 5], [10, 0]])).tolist()
    [0.0, 0.6931471805599453]
    """
    shares = counts.double() / counts.double().sum(dim=-1, keepdim=True)
    divergence: Tensor = torch.special.xlogy(shares, shares * counts.shape[-1]).sum(dim=-1)
    return divergence


def balanced_groups(counts: Tensor, size: int) -> list[list[int]]:
    """Form groups greedily: each starts empty and repeatedly adds the client that brings it nearest to uniform.

    Args:
        counts: the label counts of each client, shape (K, C).
        size: the number of clients per group, >= 1; the last group may be smaller.

    Returns:
        Groups of positions 0 .. K - 1, in the order of joining; each position occurs once. Ties go to the lower position.
    """
    left = list(range(len(counts)))
    groups: list[list[int]] = []
    while left:
        group: list[int] = []
        total = torch.zeros_like(counts[0])
        while left and len(group) < size:
            best = int(divergence_from_uniform(total + counts[left]).argmin())
            group.append(left.pop(best))
            total = total + counts[group[-1]]
        groups.append(group)
    return groups
