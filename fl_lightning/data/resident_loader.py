"""One DataLoader whose workers stay for all clients and rounds: starting them anew can cost more than a client's epoch."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fl_lightning.functional.seeding import derive_seed


@dataclass(frozen=True)
class _Batch:
    """What a worker is asked for: examples, and the seed of what is random about them."""

    seed: int | None
    indices: tuple[int, ...]


class _Seeded(Dataset[Any]):
    """Reads batches; random transforms draw from the batch's seed, whichever worker reads it and whatever it read before."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, batch: _Batch) -> list[Any]:
        if batch.seed is not None:
            torch.manual_seed(batch.seed)
            random.seed(batch.seed)
            np.random.seed(batch.seed % 2**32)
        read = getattr(self.dataset, "__getitems__", None)
        return list(read(list(batch.indices))) if read else [self.dataset[index] for index in batch.indices]


class _Requests:
    """The batches of the iteration that begins next."""

    def __init__(self) -> None:
        self.batches: list[_Batch] = []

    def __iter__(self) -> Iterator[_Batch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


_OPEN: weakref.WeakSet[ResidentLoader] = weakref.WeakSet()


def close_all() -> None:
    """Let the workers of this process go; a loader that is used again starts new ones."""
    for loader in list(_OPEN):
        loader.close()


class ResidentLoader:
    """The workers of one dataset.

    Args:
        dataset: a map-style dataset.
        settings: of the DataLoader, ``num_workers`` above 0 among them.
    """

    def __init__(self, dataset: Any, settings: dict[str, Any]) -> None:
        self.dataset = dataset
        self._requests = _Requests()
        sampler: Any = self._requests
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset),
            batch_sampler=sampler,
            persistent_workers=True,
            generator=torch.Generator(),  # else it would draw from the random numbers of the client that comes first
            **settings,
        )

        _OPEN.add(self)

    def close(self) -> None:
        """Let the workers go: left to the garbage collector they would live on, and hold up the end of the process."""
        iterator: Any = self._loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
            self._loader._iterator = None

    def read(self, batches: Sequence[Sequence[int]], seed: int | None) -> Iterator[Any]:
        """Iterate over batches of examples.

        Args:
            batches: indices into the dataset.
            seed: of random transforms; None leaves them to the workers' own.
        """
        self._requests.batches = [
            _Batch(None if seed is None else derive_seed(seed, number, "transforms"), tuple(batch))
            for number, batch in enumerate(batches)
        ]
        return iter(self._loader)


class ClientLoader:
    """One client's batches, read by resident workers.

    Args:
        resident: the workers.
        indices: the client's examples, int64, shape (m,).
        batch_size: examples per batch.
        generator: shuffles anew in each iteration and seeds random transforms; None reads in order, without seeding.
        shuffle: whether to shuffle.
        drop_last: leave out a last batch that is smaller.
    """

    def __init__(
        self,
        resident: ResidentLoader,
        indices: Tensor,
        batch_size: int,
        generator: torch.Generator | None,
        shuffle: bool,
        drop_last: bool = False,
    ) -> None:
        self.dataset = resident.dataset
        self.batch_size = batch_size
        self._resident, self._indices, self._generator = resident, indices, generator
        self._shuffle, self._drop_last = shuffle, drop_last
        self._iterations = 0

    def __len__(self) -> int:
        size = self._indices.numel()
        return size // self.batch_size if self._drop_last else -(-size // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = self._indices
        if self._shuffle:
            order = order[torch.randperm(len(order), generator=self._generator)]
        batches = [batch.tolist() for batch in torch.split(order, self.batch_size)][: len(self)]
        seed = None if self._generator is None else derive_seed(self._generator.initial_seed(), self._iterations)
        self._iterations += 1
        yield from self._resident.read(batches, seed)  # nothing is drawn before the first batch is asked for
