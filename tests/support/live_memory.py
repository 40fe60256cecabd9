"""Count the memory that is in use at a time: torch's tensors, and what Python allocates, such as messages."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Look at each operation on tensors how many bytes live; tensors that lie in Python's memory count there."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for found in tree_leaves((args, kwargs, result)):
            if isinstance(found, torch.Tensor) and found.device.type == "cpu":
                storage = found.untyped_storage()
                if storage.nbytes() > 2**16 and storage.resizable():
                    self._known[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._known = {place: (one, size) for place, (one, size) in self._known.items() if not one.expired()}
        self.peak = max(self.peak, sum(size for _, size in self._known.values()) + tracemalloc.get_traced_memory()[0])
        return result


@contextmanager
def counted() -> Iterator[LiveMemory]:
    """Count within a block; :attr:`LiveMemory.peak` is in bytes, without what lived before."""
    tracemalloc.start(1)
    try:
        with LiveMemory() as live:
            yield live
    finally:
        tracemalloc.stop()
