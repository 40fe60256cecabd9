"""Pad compiled stacks of clients, so that groups of similar size share a graph."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from fl_lightning.compat.torch import tree_map

Tree = TypeVar("Tree")


def padded_size(clients: int, largest: int) -> int:
    """Return the number of clients for which to compile a group's graph.

    It depends only on its arguments, because a resumed run must compute with the same graphs as an uninterrupted one.

    Args:
        clients: the number of clients in the group, from 1 to ``largest``.
        largest: the size of a full stack.

    Returns:
        The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... or ``largest``, whichever is smaller: less than 1.5 times ``clients``.
    """
    power = 1 << (clients - 1).bit_length()
    between = power * 3 // 4
    return min(between if clients <= between else power, largest)


def padded(tree: Tree, rows: int) -> Tree:
    """Repeat the last client's tensors, each of shape (K, ...), until their shape is (rows, ...)."""

    def longer(tensor: Tensor) -> Tensor:
        last = tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])
        if tensor.stride(0) * len(tensor) != tensor.numel():
            return torch.cat([tensor, last])
        # Keep the memory layout, such as channels_last: another layout would be compiled again.
        result = tensor.new_empty_strided((rows, *tensor.shape[1:]), tensor.stride())
        result[: len(tensor)] = tensor
        result[len(tensor) :] = last
        return result

    repeated: Tree = tree_map(longer, tree)
    return repeated
