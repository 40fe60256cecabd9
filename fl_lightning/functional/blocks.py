"""Split long vectors into blocks whose intermediate results fit a cache, or a bounded part of a GPU's memory."""

from __future__ import annotations

import torch
from torch import Tensor

_CACHED = 2**16
_ON_A_GPU = 2**24
"""There, each block costs a launch for each operation, and no cache is worth that."""


def blocks(vector: Tensor, cached: int = _CACHED, device: torch.device | None = None) -> tuple[Tensor, ...]:
    """Split a vector of shape (d,) into consecutive views.

    Args:
        vector: the vector.
        cached: the length of a block on a CPU.
        device: the device to choose the length for, if other vectors on it are split alike; by default the vector's.
    """
    kind = (vector.device if device is None else device).type
    size = cached if kind == "cpu" else _ON_A_GPU
    return (vector,) if 0 < vector.numel() <= size else torch.split(vector, size)
