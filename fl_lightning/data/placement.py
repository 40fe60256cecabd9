"""The training set's tensors where the clients train, if they fit: batches are then indexed on the GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset


def placed(dataset: Any, device: torch.device, most: float) -> Any:
    """A TensorDataset with its tensors on a device; as it is where it is another dataset, or takes more than ``most`` bytes."""
    if type(dataset) is not TensorDataset:
        return dataset
    size = sum(tensor.numel() * tensor.element_size() for tensor in dataset.tensors)
    return TensorDataset(*(tensor.to(device) for tensor in dataset.tensors)) if size <= most else dataset


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a GPU; 0 for other devices, where tensors stay where they are."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
