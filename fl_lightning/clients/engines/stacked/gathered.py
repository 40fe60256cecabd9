"""Gather the batches of a stack of clients whose examples are rows of the same tensors, with one indexing call for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor

from fl_lightning.clients.engines.stacked.batches import Groups, StackedBatch
from fl_lightning.compat.torch import tree_flatten
from fl_lightning.data.tensor_loader import TensorLoader, beside


def can_gather(loaders: Sequence[Any], hooks: Sequence[Any]) -> bool:
    """Return whether all clients read the same tensors, on one device, and no transfer hook sees their batches."""
    if any(hooks) or not all(isinstance(loader, TensorLoader) for loader in loaders):
        return False
    tensors = loaders[0].tensors
    same = all(len(o.tensors) == len(tensors) and all(map(_is, o.tensors, tensors)) for o in loaders)
    return same and len({tensor.device for tensor in tensors}) == 1


def _is(one: Tensor, other: Tensor) -> bool:
    return one is other


class GatheredBatches:
    """Iterate over the batches of one local epoch of a stack.

    Args:
        loaders: the clients' batches, for which :func:`can_gather` holds.
        convert: the function that converts batches to the precision of the training.
        device: the device to train on.
    """

    def __init__(self, loaders: Sequence[TensorLoader], convert: Callable[[Any], Any], device: torch.device) -> None:
        self._tensors, self._convert, self._device = loaders[0].tensors, convert, device
        self._loaders, self._step = loaders, 0
        orders = [loader.order() for loader in loaders]
        rows = [torch.arange(own.num_examples) if order is None else order for own, order in zip(loaders, orders, strict=True)]
        matrix = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (K, m), padded with 0, which is never read
        self._indices = beside(matrix, self._tensors[0].device)

    def __iter__(self) -> Iterator[Groups]:
        return self

    def __next__(self) -> Groups:
        groups: dict[tuple[int, int], list[int]] = {}
        for position, loader in enumerate(self._loaders):
            start = self._step * loader.batch_size
            if start >= loader.num_served:
                raise StopIteration
            groups.setdefault((start, min(start + loader.batch_size, loader.num_examples)), []).append(position)
        self._step += 1
        return [(positions, self._batch(positions, start, stop)) for (start, stop), positions in groups.items()]

    def _batch(self, positions: Sequence[int], start: int, stop: int) -> StackedBatch:
        columns = self._indices[:, start:stop]
        indices = columns if len(positions) == len(self._loaders) else columns[torch.tensor(positions, device=columns.device)]
        found = [tensor[indices] for tensor in self._tensors]
        leaves, spec = tree_flatten(move_data_to_device(self._convert(found), self._device))
        return StackedBatch(leaves, [StackedBatch.TENSOR] * len(leaves), spec)
