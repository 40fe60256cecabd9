"""Carry the sampler of a training loader over to the clients: shuffling, weights and subsets; others are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fl_lightning.errors import DataError


def is_plain(sampler: Any) -> bool:
    """Return whether a sampler reads every example once, shuffled or in order, as ``shuffle`` of a loader asks for."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


class Shuffled(Sampler[int]):
    """Read every example once, in the next permutation of a generator.

    torch's ``RandomSampler`` draws a second permutation at the end of each epoch: the order of the next one would then depend
    on whether a DataLoader, its workers or :class:`~fl_lightning.TensorLoader` reads.

    Args:
        size: the number of examples n.
        generator: draws the permutations; None for torch's global one.
    """

    def __init__(self, size: int, generator: torch.Generator | None) -> None:
        self._size, self._generator = size, generator

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self._size, generator=self._generator).tolist()


def yields(loader: DataLoader[Any]) -> Tensor | None:
    """Return the examples that a loader over a map-style dataset can yield, ascending, int64; None if that is not known."""
    sampler: Any = loader.sampler if loader.batch_size is not None else loader.batch_sampler
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) in (RandomSampler, SequentialSampler):
        return torch.arange(len(loader.dataset))  # type: ignore[arg-type]
    if type(sampler) is WeightedRandomSampler:
        return torch.as_tensor(sampler.weights > 0).nonzero().flatten()
    if type(sampler) is SubsetRandomSampler:
        return torch.as_tensor(sorted(set(map(int, sampler.indices))), dtype=torch.int64)
    return None


def own_batches(loader: DataLoader[Any]) -> bool:
    """Return whether a loader draws its batches in its own way, or has none."""
    return type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None


def check_sampler(loader: DataLoader[Any], owner: str) -> None:
    """Refuse samplers that cannot be carried over to parts of the data.

    Args:
        loader: the training loader.
        owner: who returned it, for messages.

    Raises:
        DataError: naming the sampler, and what to use instead.
    """
    batches = own_batches(loader)
    found = None if batches else yields(loader)
    if found is not None:
        own = loader.sampler.indices if isinstance(loader.sampler, SubsetRandomSampler) else ()
        size = len(loader.dataset)  # type: ignore[arg-type]
        if len(set(own)) == len(own) and all(0 <= int(index) < size for index in own):
            return
    kind: Any = loader.batch_sampler if batches else loader.sampler
    name = "a loader with batch_size=None" if kind is None else type(kind).__name__
    raise DataError(
        f"{owner} uses {name}, which cannot be divided among clients. Use 'batch_size' with 'shuffle', WeightedRandomSampler "
        "or SubsetRandomSampler, or give each client a loader of its own: FederatedDataModule.from_clients."
    )


def client_sampler(loader: DataLoader[Any], indices: Tensor, generator: torch.Generator | None) -> Sampler[int]:
    """Return a sampler of positions in a client's part that treats the part as the loader's sampler treats the whole.

    Args:
        loader: the user's, which :func:`check_sampler` has accepted.
        indices: the client's examples, int64, shape (m,).
        generator: seeds the draws; None draws from torch's global generator.
    """
    sampler: Any = loader.sampler
    possible = yields(loader)
    assert possible is not None
    if type(sampler) is SubsetRandomSampler:  # the client's part is within the subset
        return Shuffled(indices.numel(), generator)
    count = max(1, round(sampler.num_samples * indices.numel() / possible.numel()))
    if type(sampler) is WeightedRandomSampler:
        count = count if sampler.replacement else min(count, indices.numel())
        return WeightedRandomSampler(sampler.weights[indices].tolist(), count, sampler.replacement, generator=generator)
    positions: Any = range(indices.numel())
    return RandomSampler(positions, sampler.replacement, count, generator=generator)
