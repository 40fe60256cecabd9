"""How far models are apart: norms of their changes, and the drift of clients from their average."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 2**16
"""Numbers that are worked on at once: they stay in the processor's cache."""


def squared_distance(one: Tensor, other: Tensor) -> float:
    """Return ``|one - other|^2`` of two vectors of shape (d,), on the same device, without a copy of them.

    Squares are summed in float64; in float32 those of whole blocks of 65,536 numbers of float32, which takes half the time
    and keeps five digits.
    """
    wide = torch.float32 if one.device.type == "mps" else torch.float64
    size = _BLOCK if one.device.type == "cpu" else max(1, one.numel())
    squares = []
    for mine, theirs in zip(torch.split(one, size), torch.split(other, size), strict=True):
        if mine.numel() == _BLOCK and mine.dtype == theirs.dtype == torch.float32:
            difference = torch.sub(mine, theirs)
        else:
            difference = mine.to(wide) - theirs
        squares.append(torch.dot(difference, difference).to(wide))
    return float(torch.stack(squares).sum()) if squares else 0.0


def drift(norms: Sequence[float], shares: Sequence[float], step: float) -> float:
    """Return the root mean square distance of clients' models from their average, in which each has its share.

    ``sum_k s_k |d_k - D|^2 = sum_k s_k |d_k|^2 - |D|^2`` for ``D = sum_k s_k d_k``: nobody has to hold the changes d_k.

    Args:
        norms: ``|d_k|`` of each client.
        shares: s_k, which sum to 1.
        step: ``|D|``.
    """
    return math.sqrt(max(0.0, math.fsum(s * norm * norm for s, norm in zip(shares, norms, strict=True)) - step * step))
