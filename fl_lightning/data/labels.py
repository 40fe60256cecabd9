"""Reading the labels of a dataset once, the cheapest way it offers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fl_lightning.errors import DataError


def read_labels(dataset: Any) -> Tensor:
    """The class of each example, int64, shape (n,).

    Takes ``targets`` or ``labels`` where the dataset has them, the second tensor of a TensorDataset, looks through
    Subset and ConcatDataset, and otherwise reads every example as (input, label, ...).

    Raises:
        DataError: if the examples have no integer label.
    """
    found = _without_reading(dataset)
    if found is None:
        try:
            found = torch.tensor([int(dataset[index][1]) for index in range(len(dataset))])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{type(dataset).__name__} gives no integer label as the second part of an example ({error!r}). Give the "
                "dataset an attribute 'targets', or use a partitioner that needs no labels, such as IIDPartitioner."
            ) from error
    if found.ndim != 1 or found.is_floating_point():
        raise DataError(
            f"Labels must be one whole number per example, but {type(dataset).__name__} has {found.dtype} of shape "
            f"{tuple(found.shape)}. Use a partitioner that needs no labels, such as IIDPartitioner."
        )
    return found.long()


def _without_reading(dataset: Any) -> Tensor | None:
    if isinstance(dataset, Subset):
        inner = _without_reading(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [_without_reading(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else torch.cat([p for p in parts if p is not None])
    for name in ("targets", "labels"):
        values = getattr(dataset, name, None)
        if values is not None and len(values) == len(dataset):
            return torch.as_tensor(values)
    if type(dataset) is TensorDataset and len(dataset.tensors) > 1:
        return dataset.tensors[1]
    return None
