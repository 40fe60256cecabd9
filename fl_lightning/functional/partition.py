"""Assign examples to clients: one tensor of indices, whatever the number of clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fl_lightning.errors import DataError
from fl_lightning.functional.showing import client_bars


@dataclass(frozen=True)
class Partition:
    """Hold the examples of each client: ``partition[k]`` is an int64 tensor of indices, a view and not a copy.

    Args:
        order: the indices of client 0, then of client 1 and so on, int64, shape (m,).
        offsets: the start of each client in ``order``, and m, int64, shape (K + 1,).
        names: the names of the clients, if they have any, such as those of domains.
    """

    order: Tensor
    offsets: Tensor
    names: tuple[str, ...] | None = None

    @staticmethod
    def of_parts(parts: Sequence[Tensor], names: tuple[str, ...] | None = None) -> Partition:
        """Create a partition from one tensor of indices for each client."""
        sizes = torch.tensor([part.numel() for part in parts], dtype=torch.int64)
        order = torch.cat([part.long() for part in parts]) if parts else torch.zeros(0, dtype=torch.int64)
        return Partition(order, offsets(sizes), names)

    @staticmethod
    def of_owners(owners: Tensor, num_clients: int, names: tuple[str, ...] | None = None) -> Partition:
        """Create a partition from each example's client, int64, shape (n,), -1 for unused. A client's indices ascend."""
        order = owners.argsort(stable=True)
        sizes = torch.bincount(owners + 1, minlength=num_clients + 1)
        return Partition(order[int(sizes[0]) :], offsets(sizes[1:]), names)

    @property
    def sizes(self) -> Tensor:
        """Return the number of examples of each client, int64, shape (K,)."""
        return self.offsets.diff()

    def owners(self) -> Tensor:
        """Return the client of each entry of ``order``, int64, shape (m,)."""
        return torch.arange(len(self)).repeat_interleave(self.sizes)

    def digest(self) -> str:
        """Return a digest that is equal only for the same examples with the same clients (BLAKE2b)."""
        hashed = hashlib.blake2b(self.offsets.numpy().tobytes(), digest_size=16)
        hashed.update(self.order.numpy().tobytes())
        return hashed.hexdigest()

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    def __repr__(self) -> str:
        sizes = self.sizes
        spread = f": {int(sizes.min()):,} to {int(sizes.max()):,} each" if len(sizes) else ""
        return f"{type(self).__name__}({len(sizes):,} clients, {int(sizes.sum()):,} examples{spread})"

    def _repr_html_(self) -> str:
        return client_bars(self.names, self.sizes[:, None])

    @cached_property
    def _bounds(self) -> list[int]:
        bounds: list[int] = self.offsets.tolist()
        return bounds

    def __getitem__(self, client: int) -> Tensor:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.order[self._bounds[client] : self._bounds[client + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(self.order, self.sizes.tolist()))


def offsets(sizes: Tensor) -> Tensor:
    """Return the boundaries of parts of the given sizes, int64, shape (K + 1,)."""
    return torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def even_sizes(total: int, parts: int) -> Tensor:
    """Return sizes of parts that differ by at most one, the larger first, int64, shape (parts,)."""
    sizes = torch.full((parts,), total // parts)
    sizes[: total % parts] += 1
    return sizes


def iid_partition(num_examples: int, num_clients: int, generator: torch.Generator) -> Partition:
    """Shuffle the examples and deal them out evenly: sizes differ by at most one, and each example has one client.

    Raises:
        DataError: if the data have fewer examples than clients.
    """
    require_enough(num_examples, num_clients)
    return Partition(torch.randperm(num_examples, generator=generator), offsets(even_sizes(num_examples, num_clients)))


def require_enough(num_examples: int, num_clients: int, each: int = 1) -> None:
    """Reject more clients than the examples suffice for.

    Raises:
        DataError: if examples are too few; the message says what to set.
    """
    if num_examples < num_clients:
        raise DataError(
            f"{num_clients} clients cannot share {num_examples} examples: every client needs at least one. "
            "Set 'data.partitioner.num_clients' to at most the number of examples."
        )
    if num_examples < num_clients * each:
        raise DataError(
            f"{num_clients} clients with at least {each} examples each need {num_clients * each}, but there are only "
            f"{num_examples}. Lower 'data.partitioner.min_examples' or 'num_clients'."
        )


def table_partition(labels: Tensor, counts: Sequence[Sequence[int]], generator: torch.Generator) -> Partition:
    """Draw exactly ``counts[k][c]`` examples of class c for client k, without replacement.

    Args:
        labels: the class of each example, int64, shape (n,).
        counts: K rows of C counts.

    Returns:
        The partition, shuffled within each client. Examples beyond the table stay unused.

    Raises:
        DataError: if the table asks for more examples of a class than available.
    """
    wanted = torch.tensor(counts).sum(0)
    pieces: list[list[Tensor]] = [[] for _ in counts]
    for label in range(wanted.numel()):
        pool = (labels == label).nonzero().flatten()
        if wanted[label] > pool.numel():
            raise DataError(
                f"The partition table requests {int(wanted[label])} examples of class {label}, but the training data have only "
                f"{pool.numel()}. Lower column {label} of 'data.partitioner.counts', or set "
                "'data.partitioner.scale_to_fit' to true."
            )
        pool = pool[torch.randperm(pool.numel(), generator=generator)]
        taken = 0
        for client, row in enumerate(counts):
            pieces[client].append(pool[taken : taken + row[label]])
            taken += row[label]
    drawn = [torch.cat(piece) for piece in pieces]
    return Partition.of_parts([indices[torch.randperm(indices.numel(), generator=generator)] for indices in drawn])


def scale_table(counts: Sequence[Sequence[int]], available: Sequence[int]) -> list[list[int]]:
    """Shrink each column of a table that asks for more examples than available; leave the others unchanged.

    A column shrinks by one factor, which preserves the clients' shares of the class; a count above 0 stays at least 1.

    Args:
        counts: K rows of C counts.
        available: the available examples of each class, C numbers.

    Raises:
        DataError: if a class has fewer examples than clients that want it.
    """
    wanted = zip(zip(*counts, strict=True), available, strict=True)
    columns = [_fitted(list(column), have, label) for label, (column, have) in enumerate(wanted)]
    return [list(row) for row in zip(*columns, strict=True)]


def _fitted(column: list[int], have: int, label: int) -> list[int]:
    """Round the counts of one class down in proportion, then take the cost of the minimum of 1 from the largest."""
    wanted, takers = sum(column), sum(1 for count in column if count)
    if wanted <= have:
        return column
    if takers > have:
        raise DataError(
            f"Class {label} has {have} examples for {takers} clients that request it. Set column {label} of "
            "'data.partitioner.counts' to 0 for some clients."
        )
    fitted = [max(1, count * have // wanted) if count else 0 for count in column]
    for _ in range(sum(fitted) - have):
        fitted[fitted.index(max(fitted))] -= 1
    return fitted
