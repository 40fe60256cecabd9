"""Present some examples of a dataset with the attributes and methods of that dataset."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

_OWN = ("dataset", "indices", "_changed", "_tell")


class ClientPart(Subset[Any]):
    """Some examples of a dataset, whose attributes and methods a module finds in ``trainer.train_dataloader.dataset``.

    An attribute with one value per example has only those of the part. An attribute that is set here is set on the dataset,
    so that it changes what the examples are, until :meth:`restore`.

    Args:
        dataset: the whole dataset.
        indices: the examples.
        tell: called after an attribute was set or restored; workers in other processes must then start again.
    """

    def __init__(self, dataset: Any, indices: Sequence[int], tell: Callable[[], None] | None = None) -> None:
        super().__init__(dataset, indices)
        self._changed: list[tuple[Any, str, Any]] = []
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        """Return the dataset's attribute; of one value per example, those of the part."""
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        dataset, indices = self._of_one_member()
        value = getattr(dataset, name)
        if isinstance(dataset, TensorDataset) and name == "tensors":
            return tuple(tensor[torch.as_tensor(indices)] for tensor in value)
        return _chosen(value, indices, len(dataset)) if hasattr(dataset, "__len__") else value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the dataset."""
        if name in _OWN:
            super().__setattr__(name, value)
            return
        dataset = self._of_one_member()[0]
        self._changed.append((dataset, name, getattr(dataset, name, _MISSING)))
        setattr(dataset, name, value)
        if self._tell is not None:
            self._tell()

    def restore(self) -> None:
        """Undo what was set here, so that the next client does not find it."""
        for dataset, name, value in reversed(self._changed):
            if value is _MISSING:
                delattr(dataset, name)
            else:
                setattr(dataset, name, value)
        if self._changed and self._tell is not None:
            self._tell()
        self._changed.clear()

    def _of_one_member(self) -> tuple[Any, Sequence[int]]:
        """Return the dataset, and the examples in it: that one of several in which all examples are."""
        dataset, indices = self.dataset, self.indices
        while isinstance(dataset, ConcatDataset) and len(indices):
            ends: list[int] = dataset.cumulative_sizes
            member = bisect.bisect_right(ends, min(indices))
            begin = ends[member - 1] if member else 0
            if max(indices) >= ends[member]:
                break
            dataset, indices = dataset.datasets[member], [index - begin for index in indices]
        return dataset, indices


_MISSING = object()


def _chosen(value: Any, indices: Sequence[int], size: int) -> Any:
    """Return the values of some examples, if a value has one for each of the dataset's."""
    if isinstance(value, Tensor | np.ndarray) and value.ndim and len(value) == size:
        return value[torch.as_tensor(indices)] if isinstance(value, Tensor) else value[np.asarray(indices)]
    if isinstance(value, list | tuple) and len(value) == size:
        return type(value)(value[index] for index in indices) if type(value) in (list, tuple) else value
    return value
