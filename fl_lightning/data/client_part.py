"""Present some examples of a dataset with the attributes and methods of that dataset, and read examples of any dataset."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fl_lightning.errors import ConfigurationError

_INSIDE = ("dataset", "indices", "datasets")
"""What torch's wrappers consist of, which is no column of the user's."""
_OWN = ("dataset", "indices")


class ClientPart(Subset[Any]):
    """Some examples of a dataset, whose attributes and methods a module finds in ``trainer.train_dataloader.dataset``.

    An attribute with one value per example has only those of the part. None can be set: other clients share the dataset.

    Args:
        dataset: the whole dataset.
        indices: the examples.
    """

    def __getattr__(self, name: str) -> Any:
        """Return the dataset's attribute; of one value per example, those of the part."""
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        dataset, indices = self._holder(name)
        value = getattr(dataset, name)
        if isinstance(dataset, TensorDataset) and name == "tensors":
            return tuple(tensor[torch.as_tensor(indices)] for tensor in value)
        return _chosen(value, indices, len(dataset)) if hasattr(dataset, "__len__") else value

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set an attribute of the dataset.

        Raises:
            ConfigurationError: always.
        """
        if name not in _OWN:
            raise ConfigurationError(
                f"'{name}' of the training set cannot be set from a client's fit, because clients share the dataset. Keep it "
                "in the LightningModule, and let 'training_step' apply it."
            )
        super().__setattr__(name, value)

    def _holder(self, name: str) -> tuple[Any, Sequence[int]]:
        """Return the dataset whose attribute it is, and the examples in it: the one of several that has them all, if any."""
        dataset, indices = self.dataset, self.indices
        while isinstance(dataset, ConcatDataset) and (type(dataset) is ConcatDataset or not hasattr(dataset, name)):
            found = _member(dataset, indices)
            if found is None:
                break
            dataset, indices = found
        return dataset, indices

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the examples of a batch."""
        return list(read_examples(self.dataset, [self.indices[index] for index in indices]))


def read_examples(dataset: Any, indices: Sequence[int]) -> Iterator[Any]:
    """Yield examples as a DataLoader reads them: a batch at once if the dataset, or the one of several that has it, can."""
    while returns_inside(dataset):
        if isinstance(dataset, Subset):
            dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
        elif (found := _member(dataset, indices)) is not None:
            dataset, indices = found
        else:
            break
    read = getattr(dataset, "__getitems__", None)
    if callable(read):
        yield from read(list(indices))
        return
    for index in indices:
        yield dataset[index]


def returns_inside(dataset: Any) -> bool:
    """Return whether a dataset returns the examples of those that it consists of unchanged: a Subset or ConcatDataset."""
    if not isinstance(dataset, Subset | ConcatDataset):
        return False
    kind, bases = type(dataset), (Subset, ConcatDataset, ClientPart)
    return all(
        any(getattr(kind, name, None) is getattr(base, name, None) for base in bases)
        for name in ("__getitem__", "__getitems__", "__len__")
    )


def own_attribute(dataset: Any, name: str) -> Any:
    """Return an attribute of a dataset itself, None without it: a wrapper may return those of the dataset inside."""
    wraps = isinstance(dataset, Subset | ConcatDataset)
    if wraps and (name in _INSIDE or not (name in vars(dataset) or hasattr(type(dataset), name))):
        return None
    return getattr(dataset, name, None)


def _member(dataset: ConcatDataset[Any], indices: Sequence[int]) -> tuple[Any, Sequence[int]] | None:
    """Return the one of several datasets that has all examples, and their numbers there; None if several have some."""
    ends: list[int] = dataset.cumulative_sizes
    if not len(indices) or min(indices) < 0:  # from the end of the whole
        return None
    member = bisect.bisect_right(ends, min(indices))
    begin = ends[member - 1] if member else 0
    return None if max(indices) >= ends[member] else (dataset.datasets[member], [index - begin for index in indices])


def _chosen(value: Any, indices: Sequence[int], size: int) -> Any:
    """Return the values of some examples, if a value has one for each of the dataset's."""
    if isinstance(value, Tensor | np.ndarray) and value.ndim and len(value) == size:
        return value[torch.as_tensor(indices)] if isinstance(value, Tensor) else value[np.asarray(indices)]
    if isinstance(value, list | tuple) and len(value) == size:
        return type(value)(value[index] for index in indices) if type(value) in (list, tuple) else value
    return value
