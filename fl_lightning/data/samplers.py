"""Find out which examples a loader can yield, and carry the sampler of a training loader over to the clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
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
from fl_lightning.functional.seeding import derive_seed, isolated_rng, reseed

_CPU = torch.device("cpu")


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
        generator: draws the permutations.
    """

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self._size, self._generator = size, generator

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self._size, generator=self._generator).tolist()


class UnknownExamplesError(DataError):
    """A sampler yields other examples in each epoch, so which ones it can yield is not known."""


def yields(loader: DataLoader[Any], owner: str) -> Tensor:
    """Return the examples that a loader over a map-style dataset can yield, ascending, int64.

    Args:
        loader: the loader.
        owner: who returned it, for messages.

    Raises:
        UnknownExamplesError: if its sampler yields other examples in the next epoch, or no numbers of examples.
    """
    size = len(loader.dataset)  # type: ignore[arg-type]
    given = type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None  # as the argument 'batch_sampler'
    own_batches = given and loader.batch_sampler is not None
    sampler: Any = loader.batch_sampler if own_batches else loader.sampler
    if type(sampler) in (RandomSampler, SequentialSampler):
        return torch.arange(size)
    if type(sampler) is WeightedRandomSampler:
        return torch.as_tensor(sampler.weights > 0).nonzero().flatten()
    if type(sampler) is SubsetRandomSampler:
        return torch.as_tensor(sorted(set(map(int, sampler.indices))), dtype=torch.int64)
    epochs: list[list[int] | None] = []
    for epoch in range(2):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        found = _positions(sampler, epoch, most=4 * size + 1)
        epochs.append(None if found is None or len(found) > 4 * size else sorted(set(found)))
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(0)
    if epochs[0] is None or epochs[0] != epochs[1]:
        raise UnknownExamplesError(
            f"{owner} uses {type(sampler).__name__}, which reads other examples in each epoch, so which ones belong to this "
            "part is not known. Give the loader a dataset of these examples alone (torch.utils.data.Subset), or a sampler "
            "that always reads the same ones."
        )
    return torch.tensor(epochs[0], dtype=torch.int64)


def _positions(sampler: Iterable[Any], seed: int, most: int) -> list[int] | None:
    """Return at most a number of positions that a sampler, also of batches, draws; None if it draws no numbers."""
    drawn = chain.from_iterable(one if isinstance(one, list | tuple | Tensor) else [one] for one in sampler)
    try:
        with _seeded(sampler, seed):
            return [int(one) for one in islice(drawn, most)]
    except (TypeError, ValueError, RuntimeError):
        return None


def check_sampler(loader: DataLoader[Any], owner: str) -> None:
    """Refuse samplers that cannot be carried over to parts of the data.

    Args:
        loader: the training loader.
        owner: who returned it, for messages.

    Raises:
        DataError: naming the sampler, and what to use instead.
    """
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        kind = type(loader.batch_sampler).__name__ if loader.batch_sampler is not None else "a loader with batch_size=None"
        raise DataError(
            f"{owner} uses {kind}, whose batches cannot be divided among clients. Use 'batch_size' with a sampler, or give "
            "each client a loader of its own: FederatedDataModule.from_clients."
        )
    sampler = loader.sampler
    if is_plain(sampler) or type(sampler) in (RandomSampler, WeightedRandomSampler):
        return
    size = len(loader.dataset)  # type: ignore[arg-type]
    drawn = _drawn(sampler, 0)
    if drawn.numel() and (len(set(drawn.tolist())) < drawn.numel() or not 0 <= int(drawn.min()) <= int(drawn.max()) < size):
        raise DataError(
            f"{owner} uses {type(sampler).__name__}, which repeats examples (or goes beyond the {size} there are), so it "
            "cannot be divided among clients. Use torch's WeightedRandomSampler, a sampler that reads each example at most "
            "once, or give each client a loader of its own: FederatedDataModule.from_clients."
        )


def client_sampler(
    sampler: Any, size: int, indices: Tensor, generator: torch.Generator | None, possible: int | None = None
) -> Sampler[int]:
    """Return a sampler of positions in a client's part that treats the part as ``sampler`` treats the whole.

    Args:
        sampler: the user's, which :func:`check_sampler` has accepted.
        size: the number of examples n of the whole.
        indices: the client's examples, int64, shape (m,).
        generator: seeds the draws; None draws from torch's global generator.
        possible: the number of examples that the sampler can draw; None for all.
    """
    share = indices.numel() / (possible or size)
    if type(sampler) is WeightedRandomSampler:
        weights = sampler.weights[indices]
        count = max(1, round(sampler.num_samples * share))
        count = count if sampler.replacement else min(count, indices.numel())
        return WeightedRandomSampler(weights.tolist(), count, sampler.replacement, generator=generator)
    positions: Any = range(indices.numel())
    if type(sampler) is RandomSampler:
        count = max(1, round(sampler.num_samples * share))
        return RandomSampler(positions, sampler.replacement, count, generator=generator)
    return _Restricted(sampler, size, indices, None if generator is None else generator.initial_seed())


class _Restricted(Sampler[int]):
    """Follow another sampler's order, and leave out the examples of other clients."""

    def __init__(self, sampler: Any, size: int, indices: Tensor, seed: int | None) -> None:
        self._sampler, self._seed, self._iterations = sampler, seed, 0
        self._positions = torch.full((size,), -1)
        self._positions[indices] = torch.arange(indices.numel())
        self._first: Tensor | None = self._order()
        self._size = self._first.numel()
        if hasattr(sampler, "set_epoch"):
            self.set_epoch = self._set_epoch

    def _order(self) -> Tensor:
        seed = None if self._seed is None else derive_seed(self._seed, self._iterations, "sampler")
        self._iterations += 1
        own = self._positions[_drawn(self._sampler, seed)]
        return own[own >= 0]

    def _set_epoch(self, epoch: int) -> None:
        self._sampler.set_epoch(epoch)
        self._first, self._iterations = None, max(0, self._iterations - 1) if self._first is not None else self._iterations

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        order, self._first = self._order() if self._first is None else self._first, None
        if order.numel() != self._size:
            raise DataError(
                f"{type(self._sampler).__name__} reads {self._size} examples of a client in one epoch and {order.numel()} in "
                "another, so the client's steps cannot be planned. Use WeightedRandomSampler, or let it read the same number."
            )
        return iter(order.tolist())


def _drawn(sampler: Any, seed: int | None) -> Tensor:
    """Return one epoch of a sampler, int64; with a seed, the global generators stay as they are, and its own are seeded."""
    if seed is None:
        return torch.tensor(list(sampler), dtype=torch.int64)
    with _seeded(sampler, seed):
        return torch.tensor(list(sampler), dtype=torch.int64)


@contextmanager
def _seeded(sampler: Any, seed: int) -> Iterator[None]:
    """Seed a sampler's own generators, and the global ones within the context."""
    for name, value in getattr(sampler, "__dict__", {}).items():
        reseed(value, derive_seed(seed, name))
    with isolated_rng(seed, _CPU):
        yield
