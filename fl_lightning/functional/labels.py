"""Change a client's labels: errors for attackers, repeats of rare classes."""

from __future__ import annotations

import torch
from torch import Tensor


def wrong_labels(labels: Tensor, share: float, num_classes: int, generator: torch.Generator) -> Tensor:
    """Replace a share of the labels by another class, drawn uniformly (AdaFed, Simulation 3).

    Args:
        labels: the labels, shape (n,).
        share: the share, in [0, 1]; round(share * n) labels change, and all of these are wrong.
        num_classes: the number of classes C, at least 2.
        generator: draws which labels change, and to which class.

    Returns:
        The new labels, shape (n,).
    """
    size = labels.numel()
    chosen = torch.randperm(size, generator=generator)[: round(share * size)]
    shift = torch.randint(1, num_classes, (chosen.numel(),), generator=generator)
    changed = labels.clone()
    changed[chosen] = (labels[chosen] + shift) % num_classes
    return changed


def client_label_counts(owners: Tensor, labels: Tensor, num_clients: int, num_classes: int) -> Tensor:
    """Return the examples of each class of each client, int64, shape (K, C).

    Args:
        owners: the client of each example, shape (m,).
        labels: the class of each example, shape (m,).
        num_clients: the number of clients K.
        num_classes: the number of classes C.
    """
    return torch.bincount(owners * num_classes + labels, minlength=num_clients * num_classes).view(num_clients, num_classes)


def earth_movers_distance(counts: Tensor) -> Tensor:
    """Return each client's distance from the overall classes: sum_c ``|p_k(c) - p(c)|`` (Zhao et al. 2018; survey, III-C).

    Args:
        counts: the examples of each class of each client, shape (K, C).

    Returns:
        Float64, shape (K,), from 0 (the same distribution) to 2 (no class in common).
    """
    totals = counts.sum(dim=0).double()
    own = counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    return (own - totals / totals.sum()).abs().sum(dim=1)


def repeats(labels: Tensor, wanted: Tensor, generator: torch.Generator) -> Tensor:
    """Choose examples to repeat so that no class falls short (label averaging; Fed-Cyclic thesis, Algorithm 3).

    Args:
        labels: the client's labels, shape (n,).
        wanted: the wanted number of examples of each class, int64, shape (C,).
        generator: draws with replacement.

    Returns:
        Positions 0 .. n - 1, int64. A class without examples at the client cannot be repeated and is skipped.
    """
    counts = torch.bincount(labels, minlength=wanted.numel())
    drawn = [torch.zeros(0, dtype=torch.int64)]
    for label in ((counts > 0) & (counts < wanted)).nonzero().flatten().tolist():
        pool = (labels == label).nonzero().flatten()
        missing = int(wanted[label] - counts[label])
        drawn.append(pool[torch.randint(pool.numel(), (missing,), generator=generator)])
    return torch.cat(drawn)
