"""Describe the contents of a dataset in one line that another run can compare."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.functional.digest import Digest
from fl_lightning.functional.seeding import derive_seed, generator, isolated_rng

_EXAMPLES, _TWICE = 64, 16
"""The number of examples read from a dataset, and the number read twice to check that they stay the same."""


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
