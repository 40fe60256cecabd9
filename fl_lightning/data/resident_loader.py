"""Keep one DataLoader's workers for all clients and rounds: restarting them can cost more than a client's epoch."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fl_lightning.compat.torch import stop_workers
from fl_lightning.data.client_part import ClientPart, read_examples
from fl_lightning.errors import DataError
from fl_lightning.functional.seeding import derive_seed

Request = tuple[int, list[int]]
"""The seed of the random transforms of a batch, and its examples."""


class _Seeded(Dataset[Any]):
    """Read batches; random transforms draw from the batch's seed, whichever worker reads it and whatever it read before."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, batch: Request) -> list[Any]:
        seed, indices = batch
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        return list(read_examples(self.dataset, indices))


_WORKERS = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")


def reader_settings(reader: DataLoader[Any]) -> dict[str, Any]:
    """Return how a loader reads examples: its collation, and the settings of its workers."""
    return {name: getattr(reader, name) for name in ("collate_fn", *_WORKERS)}


_OPEN: weakref.WeakSet[ResidentLoader] = weakref.WeakSet()


def close_all() -> None:
    """Stop the workers of this process; a loader that is used again starts new ones."""
    for loader in list(_OPEN):
        loader.close()


class ResidentLoader:
    """Keep the workers of one dataset.

    Args:
        reader: a loader with workers, over a map-style dataset.
    """

    def __init__(self, reader: DataLoader[Any]) -> None:
        self.reader, self.dataset = reader, reader.dataset
        self._requests: Any = []  # the batches of the next iteration
        self._serial = 0
        self._loader: DataLoader[Any] = DataLoader(
            _Seeded(self.dataset),
            batch_sampler=self._requests,
            persistent_workers=True,
            generator=torch.Generator(),  # otherwise it would draw from the first client's random numbers
            **reader_settings(reader),
        )
        _OPEN.add(self)

    def close(self) -> None:
        """Stop the workers; left to the garbage collector, they would live on and delay the end of the process."""
        stop_workers(self._loader)

    def read(self, requests: Sequence[Request]) -> Iterator[Any]:
        """Iterate over batches.

        Args:
            requests: the examples, with the seeds of their random transforms.

        Raises:
            DataError: if an earlier iteration is continued after this one began; it is raised from the earlier one.
        """
        self._serial += 1
        serial = self._serial
        self._requests[:] = requests
        for batch in self._loader:
            yield batch
            if serial != self._serial:
                raise DataError(
                    "The workers were asked for another client's batches before all batches of this client were read. Read "
                    "one iteration to its end, or set the training loader's 'num_workers' to 0."
                )


class ClientLoader:
    """Read one client's batches with resident workers.

    Args:
        resident: the workers.
        indices: the client's examples, int64, shape (m,).
        batch_size: the examples per batch.
        generator: shuffles, and seeds random transforms; None if these are the same in every iteration, to evaluate.
        shuffle: whether to shuffle, anew in each iteration.
        drop_last: whether to leave out a last batch that is smaller.
    """

    def __init__(
        self,
        resident: ResidentLoader,
        indices: Tensor,
        batch_size: int,
        generator: torch.Generator | None,
        shuffle: bool = False,
        drop_last: bool = False,
    ) -> None:
        self.resident, self.batch_size = resident, batch_size
        self.dataset = ClientPart(resident.dataset, indices.tolist())
        self._indices, self._generator = indices, generator
        self._shuffle, self._drop_last = shuffle, drop_last
        self._iterations = 0

    def __len__(self) -> int:
        size = self._indices.numel()
        return size // self.batch_size if self._drop_last else -(-size // self.batch_size)

    def requests(self) -> list[Request]:
        """Return the batches of the next iteration."""
        order = self._indices
        if self._shuffle:
            order = order[torch.randperm(len(order), generator=self._generator)]
        seed = derive_seed(0, 0) if self._generator is None else derive_seed(self._generator.initial_seed(), self._iterations)
        self._iterations += 1
        return [
            (derive_seed(seed, number, "transforms"), batch.tolist())
            for number, batch in enumerate(torch.split(order, self.batch_size)[: len(self)])
        ]

    def __iter__(self) -> Iterator[Any]:
        yield from self.resident.read(self.requests())  # draws nothing before the first batch is requested


def in_turn(loaders: Sequence[ClientLoader]) -> Iterator[Any]:
    """Yield the first batch of each client, then the second of each, and so on, in one iteration over the workers."""
    each = [loader.requests() for loader in loaders]
    return loaders[0].resident.read([own[step] for step in range(min(map(len, each))) for own in each])
