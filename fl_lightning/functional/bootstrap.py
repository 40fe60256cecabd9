"""Draw resamples of persons for a bootstrap, and bound a statistic by percentiles (Efron & Tibshirani 1993, chapter 13)."""

from __future__ import annotations

import torch
from torch import Tensor


def resamples(persons: Tensor, count: int, seed: int) -> list[Tensor]:
    """Return the rows of each resample: as many persons as there are, drawn with replacement, each with all rows.

    Rows of one person are alike, so that resampling rows would give an interval that is too narrow.

    Args:
        persons: the person of each row, int64, shape (n,); ``arange(n)`` if each row is a person of its own.
        count: the number of resamples.
        seed: the seed of the draws.
    """
    draw = torch.Generator().manual_seed(seed)
    _, codes = torch.unique(persons, return_inverse=True)
    sizes = torch.bincount(codes)
    starts = sizes.cumsum(0) - sizes
    order = codes.argsort(stable=True)
    found = []
    for _ in range(count):
        drawn = torch.randint(len(sizes), (len(sizes),), generator=draw)
        own = sizes[drawn]
        first = own.cumsum(0) - own
        places = torch.arange(int(own.sum())) - first.repeat_interleave(own)
        found.append(order[starts[drawn].repeat_interleave(own) + places])
    return found


def percentile_interval(values: Tensor, level: float) -> tuple[float, float]:
    """Return the bounds between which a share of the values lies, with equal shares outside on both sides.

    Args:
        values: the values of the resamples, float64, shape (B,).
        level: the share, in (0, 1).
    """
    tail = (1 - level) / 2
    low, high = torch.quantile(values, torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high
