"""Describe the contents of a dataset in one line that another run can compare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.functional.digest import Digest, digest
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import derive_seed, generator, isolated_rng

_EXAMPLES, _TWICE = 64, 16
"""The number of examples read from a dataset, and the number read twice to check that they stay the same."""
MOST_CLIENTS = 10_000
"""The largest number of clients whose contents are described one by one, which takes time, and space in checkpoints."""


def content(dataset: Any) -> tuple[str, bool]:
    """Describe a dataset by its number of examples and a digest.

    For data in memory, the digest covers all tensors and arrays. For other datasets, it covers the names of their files and
    64 examples, drawn and read with fixed seeds. Examples that differ when read a second time with the same seeds are left
    out.

    Returns:
        The description, and whether examples could be compared.
    """
    collected = Digest()
    complete = _add(dataset, collected)
    size = len(dataset) if hasattr(dataset, "__len__") else "?"
    return f"{size} examples ({collected.text()})", complete


def client_contents(dataset: Any, partition: Partition) -> list[str]:
    """Return a digest of each client's examples in a dataset in memory; empty texts for other datasets.

    It covers one number for each tensor of an example, so that it costs little beside :func:`content`. With more than
    ``MOST_CLIENTS`` clients, nothing is returned: a resumed run then compares the whole dataset alone.
    """
    if len(partition) > MOST_CLIENTS:
        return []
    sums = _sums(dataset)
    return ["" if sums is None else digest(sums[part]) for part in partition]


def _sums(dataset: Any) -> Tensor | None:
    """Return the sums of the bits of each example's tensors, as whole numbers, int64, shape (n, number of tensors)."""
    if type(dataset) is TensorDataset:
        each = [_row_sums(tensor.detach().cpu().contiguous()) for tensor in dataset.tensors]
        return torch.stack(each, 1) if each else None
    if type(dataset) is ConcatDataset:
        parts = [_sums(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        alike = len(known) == len(parts) and len({part.shape[1] for part in known}) == 1
        return torch.cat(known) if alike else None
    return None


def _row_sums(tensor: Tensor) -> Tensor:
    numbers = math.prod(tensor.shape[1:])
    width = torch.uint8 if numbers * tensor.element_size() % 4 else torch.int32
    return tensor.view(len(tensor), numbers).view(width).sum(1, dtype=torch.int64)


def loader_content(loaders: Any) -> tuple[str, bool]:
    """Describe the data that one or more evaluation loaders read; see :func:`content`."""
    if isinstance(loaders, Mapping | list | tuple):
        each = [loader_content(loader) for loader in (loaders.values() if isinstance(loaders, Mapping) else loaders)]
        return ", ".join(text for text, _ in each), all(complete for _, complete in each)
    if isinstance(loaders, DataLoader | TensorLoader):
        return content(loaders.dataset)
    return type(loaders).__qualname__, False


def _add(dataset: Any, collected: Digest) -> bool:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return False
    if type(dataset) is TensorDataset:
        return collected.add(dataset.tensors)
    if type(dataset) in (Subset, ClientPart):
        collected.add(torch.as_tensor(dataset.indices))
        return _add(dataset.dataset, collected)
    if type(dataset) is ConcatDataset:
        complete = [_add(part, collected) for part in dataset.datasets]
        return all(complete)
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, Tensor | np.ndarray) and value.ndim:
            collected.add([name, value])
        elif isinstance(value, list | tuple) and len(value) == len(dataset) and value and _name(value[0]) is not None:
            collected.add([name, "\n".join(str(_name(entry)) for entry in value)])
    return _add_examples(dataset, collected)


def _name(entry: Any) -> str | None:
    """Return folder and name of a file, with the dataset's notes on it; None for any other entry."""
    path, beside = (entry[0], entry[1:]) if isinstance(entry, tuple) and entry else (entry, ())
    return f"{PurePath(path).parts[-2:]} {beside}" if isinstance(path, str | PurePath) else None


def _add_examples(dataset: Any, collected: Digest) -> bool:
    size = len(dataset)
    drawn = sorted(set(torch.randint(max(size, 1), (_EXAMPLES,), generator=generator("examples compared")).tolist()))
    positions = drawn if size > _EXAMPLES else list(range(size))
    first = [_read(dataset, position) for position in positions]
    again = [_read(dataset, position) for position in positions[:_TWICE]]
    if None in first or again != first[:_TWICE]:
        return False
    return collected.add(first)


def _read(dataset: Any, position: int) -> str | None:
    """Return the digest of an example; None if it has parts of unknown types."""
    example = Digest()
    with isolated_rng(derive_seed("example compared", position), torch.device("cpu")):
        try:
            complete = example.add(dataset[position])
        except Exception as error:  # the client will fail in the same way when it trains
            complete = example.add(type(error).__name__)
    return example.text() if complete else None
