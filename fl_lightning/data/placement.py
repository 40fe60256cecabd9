"""Place the training set's tensors on the clients' device if they fit, so that batches are indexed on the GPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import TensorDataset


def placed(dataset: Any, device: torch.device, most: float) -> Any:
    """Return a TensorDataset on a device; return other datasets, and those of more than ``most`` bytes, unchanged."""
    if type(dataset) is not TensorDataset:
        return dataset
    size = sum(tensor.numel() * tensor.element_size() for tensor in dataset.tensors)
    if size > most:
        return dataset
    moved = copy.copy(dataset)  # with its names of classes
    moved.tensors = tuple(tensor.to(device) for tensor in dataset.tensors)
    return moved


def free_memory(device: torch.device) -> int:
    """Return the free bytes on a GPU; 0 for other devices, on which tensors are not moved."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
