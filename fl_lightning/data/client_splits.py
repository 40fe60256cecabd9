"""Divide a training set into the clients' parts and a public share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.data.labels import read_column
from fl_lightning.errors import DataError, require, share_hint
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import class_balanced, count_units, hold_out
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.column import ColumnPartitioner


@dataclass(frozen=True)
class ClientSplits:
    """Hold the parts of each client, and the public share. No example is in two of them.

    Args:
        training: the examples that the clients train on.
        validation: the examples that they hold back for their own validation, or None.
        test: the examples that they hold back for their own test, or None.
        public: class-balanced examples that every client also trains on, ascending, int64.
        persons: the person of each example of the data set, int64, shape (n,); None if each example is a person of its own.
    """

    training: Partition
    validation: Partition | None
    test: Partition | None
    public: Tensor
    persons: Tensor | None = None


def check_shares(validation: float, test: float, public: float) -> None:
    """Reject shares that leave nothing to train on.

    Raises:
        ConfigurationError: if a share is invalid; the message names the setting.
    """
    for name, share in (("client_validation", validation), ("client_test", test), ("public_share", public)):
        require(0 <= share < 1, f"data.{name}", "at least 0 and below 1", share, share_hint(share))
    together = validation + test
    require(together < 1, "data.client_validation", "below 1 together with 'data.client_test'", together)


def divide(
    num_examples: int,
    split: Callable[[Tensor], Partition],
    labels: Tensor | None,
    shares: dict[str, float],
    public_share: float,
    seed: int,
    first: int = 0,
    persons: Tensor | None = None,
    among: Tensor | None = None,
) -> ClientSplits:
    """Set the public share aside, split the rest over the clients, and split each client's into parts.

    A client's parts depend only on its own examples, its number and the seed, so a site of its own draws the same ones.

    Args:
        num_examples: the number of examples n.
        split: returns the partition of chosen examples, as positions among them.
        labels: the labels of all examples, for a public share and for parts in the classes' proportions; None without labels.
        shares: the shares of ``validation`` and ``test`` in each client's examples, in [0, 1).
        public_share: the share of the training set, in [0, 1).
        seed: draws the share and the parts.
        first: the number of the first client.
        persons: the person of each example, all of whose examples at a client are in one part; None if each is one of its own.
        among: the examples to divide, ascending; None for all. The others belong to no part.

    Raises:
        ConfigurationError: if there is a public share of persons.
        DataError: if a client is left without examples, or a class has too few for the public share.
    """
    chosen, public = torch.arange(num_examples) if among is None else among, torch.zeros(0, dtype=torch.int64)
    if public_share:
        require(persons is None, "data.public_share", "0 if the data name persons, who would be in several parts", public_share)
        positions = _public(None if labels is None else labels[chosen], len(chosen), public_share, seed)
        private = torch.ones(len(chosen), dtype=torch.bool)
        private[positions] = False
        public, chosen = chosen[positions], chosen[private]
    partition = split(chosen)
    if len(chosen) < num_examples:
        partition = Partition(chosen[partition.order], partition.offsets, partition.names)
    held, parts = count_units(partition, persons), {}
    for name in ("test", "validation"):
        if shares[name]:
            sizes = (shares[name] * held.double()).round().long().clamp(min=1)
            _require_rest(partition, sizes, name, shares[name], count_units(partition, persons), held)
            draws = [generator(seed, first + client, name, "client's part") for client in range(len(partition))]
            partition, parts[name] = hold_out(partition, sizes, labels, draws, persons)
    return ClientSplits(partition, parts.get("validation"), parts.get("test"), public, persons)


def splitter(partitioner: Partitioner, dataset: Any, labels: Tensor | None) -> Callable[[Tensor], Partition]:
    """Return a function that partitions chosen examples, as positions among them; see :func:`divide`.

    Args:
        partitioner: decides the partition.
        dataset: the training set, for a column of it.
        labels: the labels of all its examples, if the partitioner needs them.
    """

    def split(chosen: Tensor) -> Partition:
        if isinstance(partitioner, ColumnPartitioner):
            codes, names = read_column(dataset, partitioner.column)
            found: Any = partitioner.partition_by(codes[chosen], names)
        else:
            own = labels[chosen] if partitioner.needs_labels and labels is not None else None
            found = partitioner.partition(len(chosen), own)
        if not isinstance(found, Partition):
            found = Partition.of_parts([_indices(partitioner, client, part) for client, part in enumerate(found)])
        return _whole(partitioner, found, len(chosen))

    return split


def _indices(partitioner: Partitioner, client: int, part: Any) -> Tensor:
    """Return the indices that a partitioner gave a client, as a tensor.

    Raises:
        DataError: if they are not whole numbers in one dimension.
    """
    try:
        indices = torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError):
        indices = torch.zeros(0, 0)
    whole = not (indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool)
    if indices.dim() != 1 or (indices.numel() and not whole):
        came = f"a tensor of {indices.dtype} of shape {tuple(indices.shape)}" if isinstance(part, Tensor) else repr(part)[:60]
        raise DataError(
            f"{type(partitioner).__name__} gave client {client} {came}. Return the indices of each client's examples: an int64 "
            "tensor of shape (m,) for each client."
        )
    return indices


def _whole(partitioner: Partitioner, partition: Partition, num_examples: int) -> Partition:
    """Return the partition after checking that every client has examples, and that no two share one.

    Raises:
        DataError: if a client has no examples, or an index occurs twice or is outside 0 .. num_examples - 1.
    """
    name, order = type(partitioner).__name__, partition.order
    if order.numel() and not 0 <= int(order.min()) <= int(order.max()) < num_examples:
        raise DataError(
            f"{name} returned indices from {int(order.min())} to {int(order.max())}, but there are {num_examples} examples to "
            "divide. Return indices below the 'num_examples' that the partitioner is given (a public share, and examples that "
            "the loader's sampler never reads, are left out first)."
        )
    counts = torch.bincount(order, minlength=num_examples)
    if order.numel() and int(counts.max()) > 1:
        raise DataError(
            f"{name} assigned example {int(counts.argmax())} more than once. Assign every example to at most one client."
        )
    empty = (partition.sizes == 0).nonzero().flatten().tolist()
    if empty or not len(partition):
        raise DataError(
            f"{name} left {_called(partition, empty[0]) if empty else 'every client'} without data. "
            "Every client needs at least one training example: use fewer clients or another partition."
        )
    return partition


def _called(partition: Partition, client: int) -> str:
    return f"client {client} ('{partition.names[client]}')" if partition.names else f"client {client}"


def _require_rest(partition: Partition, sizes: Tensor, name: str, share: float, units: Tensor, held: Tensor) -> None:
    empty = (sizes >= units).nonzero().flatten().tolist()
    if empty:
        client = empty[0]
        raise DataError(
            f"'data.client_{name}' is {share}, which leaves {_called(partition, client)} no examples to train on: it has "
            f"{int(held[client])} in total. Lower it, or use a partition with larger clients."
        )


def _public(labels: Tensor | None, num_examples: int, share: float, seed: int) -> Tensor:
    if labels is None:
        raise DataError(
            "'data.public_share' is balanced over classes, but the training data have no labels. Set it to 0, or add labels."
        )
    if int(labels.min()) < 0:
        raise DataError(
            f"'data.public_share' needs labels of 0 and above, but the lowest is {int(labels.min())}. Set it to 0, or number "
            "the classes from 0."
        )
    counts = torch.bincount(labels)
    present = counts[counts > 0]
    each = max(1, round(share * num_examples / len(present)))
    if int(present.min()) <= each:
        scarce = int((counts == present.min()).nonzero()[0])
        raise DataError(
            f"'data.public_share' is {share}, which takes {each} examples of each class, but class {scarce} has only "
            f"{int(present.min())}, and the clients need some of them. Lower it."
        )
    return class_balanced(labels, each, generator(seed, "public share"))
