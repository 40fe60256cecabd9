"""Reuse memory for large tensors.

The C library maps blocks above 32 MiB anew each time, and the kernel then zero-fills them page by page. For a vector of
200 MB that takes longer than copying into it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGE = 32 * 2**20
_KEPT = 1
"""Free blocks kept of each size. A second one would save a SCAFFOLD client one mapping, and cost a whole model of memory."""
_Memory = np.ndarray[Any, Any]
_free: dict[int, list[_Memory]] = {}


def large_empty(size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return an uninitialised vector like ``torch.empty``; a large one may reuse an earlier vector's memory.

    The memory becomes available when the last tensor that shares it is deleted.
    """
    nbytes = size * dtype.itemsize
    if torch.device(device).type != "cpu" or nbytes < _LARGE:
        return torch.empty(size, dtype=dtype, device=device)
    free = _free.get(nbytes)
    # Allocated by torch: numpy asks for huge pages, and the kernel may take a second to find them.
    memory = free.pop() if free else torch.empty(nbytes, dtype=torch.uint8).numpy()
    lent = memory[:]
    weakref.finalize(lent, _take_back, memory).atexit = False
    return torch.from_numpy(lent).view(dtype)


def _take_back(memory: _Memory) -> None:
    free = _free.setdefault(memory.nbytes, [])
    if len(free) < _KEPT:
        free.append(memory)


def emptied(tensors: Iterable[Tensor]) -> list[tuple[torch.UntypedStorage, int]]:
    """Free the memory of tensors whose shapes are still needed.

    Returns:
        Their storages with the sizes to which ``resize_`` must bring them before their contents are used again.
    """
    found = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
    storages = [(storage, storage.nbytes()) for storage in found.values() if storage.resizable()]
    for storage, _ in storages:
        storage.resize_(0)
    return storages


def release_unused_memory() -> None:
    """Return unused memory to the system."""
    _free.clear()
