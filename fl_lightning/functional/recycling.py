"""Memory for large tensors that is used again.

The C library maps blocks above 32 MiB anew each time, and the kernel then fills them page by page with zeros: for a vector
of 200 MB that takes longer than copying into it.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGE = 32 * 2**20
_KEPT = 2
"""Free blocks of a size: what a client of SCAFFOLD has in use at once beside what it keeps."""
_Memory = np.ndarray[Any, Any]
_free: dict[int, list[_Memory]] = {}


def large_empty(size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return an uninitialised vector like ``torch.empty``, in memory that an earlier one no longer uses, if it is large.

    The memory is handed on when the last tensor that shares it is gone.
    """
    nbytes = size * dtype.itemsize
    if torch.device(device).type != "cpu" or nbytes < _LARGE:
        return torch.empty(size, dtype=dtype, device=device)
    free = _free.get(nbytes)
    # By torch, since numpy asks for huge pages, and the kernel may take a second to find them.
    memory = free.pop() if free else torch.empty(nbytes, dtype=torch.uint8).numpy()
    lent = memory[:]
    weakref.finalize(lent, _take_back, memory).atexit = False
    return torch.from_numpy(lent).view(dtype)


def _take_back(memory: _Memory) -> None:
    free = _free.setdefault(memory.nbytes, [])
    if len(free) < _KEPT:
        free.append(memory)


def give_back() -> None:
    """Give unused memory back to the system."""
    _free.clear()
