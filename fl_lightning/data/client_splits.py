"""Divide a training set into the clients' parts and a public share, and choose clients that never train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.data.changes import NOTHING
from fl_lightning.data.labels import labels_at_hand, read_column, read_labels, read_persons, refuse_other_labels
from fl_lightning.data.samplers import yields
from fl_lightning.errors import ConfigurationError, DataError, did_you_mean, require, share_hint
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import class_balanced, count_units, hold_out
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.column import ColumnPartitioner

HeldOut = int | float | list[str | int]
"""A share of the clients, their number, or their names; 0 for none."""
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_HELD = "data.held_out_clients"
_MOST_NAMES = 10


@dataclass(frozen=True)
class ClientSplits:
    """Hold the parts of each client, and the public share. No example is in two of them.

    Args:
        training: the examples that the clients train on.
        validation: the examples that they hold back for their own validation, or None.
        test: the examples that they hold back for their own test, or None.
        public: class-balanced examples that every client also trains on, ascending, int64.
        persons: the person of each example of the data set, int64, shape (n,); None if each example is a person of its own.
        unseen: the test examples of the held-out clients, whose ids follow those of the others; None without any.
    """

    training: Partition
    validation: Partition | None = None
    test: Partition | None = None
    public: Tensor = NOTHING
    persons: Tensor | None = None
    unseen: Partition | None = None


def check_parts(validation: float, test: float, server_set: str, public: float, held_out: HeldOut, own: bool) -> None:
    """Reject shares and held-out clients outside their range, or that exclude each other.

    Args:
        validation: the share that clients hold back for validation.
        test: the share for test.
        server_set: whose sets the server validates and tests on.
        public: the share that all clients get.
        held_out: the clients that are held out.
        own: whether each client has a dataset of its own.

    Raises:
        ConfigurationError: if a setting is invalid; the message names it.
    """
    for name, share in (("client_validation", validation), ("client_test", test), ("public_share", public)):
        require(0 <= share < 1, f"data.{name}", "at least 0 and below 1", share, share_hint(share))
    together = validation + test
    require(together < 1, "data.client_validation", "below 1 together with 'data.client_test'", together)
    known = "'datamodule', or 'clients' with 'data.client_test' above 0"
    require(server_set == "datamodule" or test > 0, "data.server_set", known, server_set)
    if isinstance(held_out, list):
        require(len(set(map(str, held_out))) == len(held_out), _HELD, "names that differ", held_out)
    else:
        share = isinstance(held_out, float)
        known = "a share of at least 0 and below 1, a number of clients, or a list of their names"
        hint = share_hint(held_out, counts=True) if share else ""
        require(0 <= held_out < 1 if share else held_out >= 0, _HELD, known, held_out, hint)
    known = "0 if each client has a dataset of its own, or with held-out clients, whose examples it would contain"
    require(public == 0 or not (own or held_out), "data.public_share", known, public)


def divide(
    source: DataLoader[Any], partitioner: Partitioner, public_share: float, seed: int, stand_in: bool = False
) -> tuple[ClientSplits, Tensor | None]:
    """Set the public share aside, and split the rest over the clients; return also the labels, if they are in memory.

    Examples that the loader's sampler never reads belong to no part.

    Args:
        source: the loader of the training set.
        partitioner: decides which example belongs to which client.
        public_share: the share of the training set, in [0, 1).
        seed: draws the share.
        stand_in: whether a smaller set replaces the one that the partitioner is for.

    Raises:
        ConfigurationError: if there is a public share of persons.
        DataError: if a client is left without examples, or a class has too few for the public share.
    """
    dataset: Any = source.dataset
    persons, read = read_persons(dataset), partitioner.needs_labels or public_share > 0
    chosen, public = yields(source), NOTHING
    assert chosen is not None  # other samplers are refused
    labels = read_labels(dataset) if read else labels_at_hand(dataset)
    if labels is not None and read and stand_in:
        partitioner = partitioner.for_stand_in(labels)
    if labels is not None and public_share:
        require(persons is None, "data.public_share", "0 if the data name persons, who would be in several parts", public_share)
        positions = _public(labels[chosen], public_share, seed)
        private = torch.ones(len(chosen), dtype=torch.bool)
        private[positions] = False
        public, chosen = chosen[positions], chosen[private]
    if isinstance(partitioner, ColumnPartitioner):
        codes, names = read_column(dataset, partitioner.column)
        found: Any = partitioner.partition_by(codes[chosen], names)
    else:
        own = labels[chosen] if partitioner.needs_labels and labels is not None else None
        found = partitioner.partition(len(chosen), own)
    partition = _checked(type(partitioner).__name__, found, len(chosen))
    return ClientSplits(replace(partition, order=chosen[partition.order]), public=public, persons=persons), labels


def hold_back(splits: ClientSplits, shares: dict[str, float], labels: Tensor | None, seed: int, first: int = 0) -> ClientSplits:
    """Return the clients' parts after they have held back shares of their training examples.

    A client's parts depend only on its own examples, its number and the seed, so a site of its own draws the same ones. All
    examples that a client has of a person are in one part.

    Args:
        splits: the clients' examples.
        shares: the shares of ``validation`` and ``test`` in each client's examples, in [0, 1).
        labels: the labels of all examples, whose proportions the parts have; None without labels.
        seed: draws the parts.
        first: the number of the first client.

    Raises:
        ConfigurationError: if clients have a set of their own for a part.
        DataError: if a client is left without training examples.
    """
    parts: dict[str, Any] = {}
    partition, persons = splits.training, splits.persons
    held = count_units(partition, persons)
    for name in ("test", "validation"):
        if not (share := shares[name]):
            continue
        require(getattr(splits, name) is None, f"data.client_{name}", f"0 if clients have {name} sets of their own", share)
        sizes = (share * held.double()).round().long().clamp(min=1)
        empty = (sizes >= count_units(partition, persons)).nonzero().flatten().tolist()
        if empty:
            raise DataError(
                f"'data.client_{name}' is {share}, which leaves {_called(partition, empty[0])} no examples to train on: it has "
                f"{int(held[empty[0]])} in total. Lower it, or use a partition with larger clients."
            )
        draws = [generator(seed, first + client, name, "client's part") for client in range(len(partition))]
        partition, parts[name] = hold_out(partition, sizes, labels, draws, persons)
    return replace(splits, training=partition, **parts)


def _checked(name: str, found: Any, num_examples: int) -> Partition:
    """Return the partition of a partitioner after checking that every client has examples, and that no two share one.

    Raises:
        DataError: if a client has no examples, or indices are no whole numbers, outside 0 .. num_examples - 1 or not unique.
    """
    if isinstance(found, Partition):
        partition = found
    else:
        fix = "Return the indices of each client's examples."
        parts = [whole_numbers(part, f"{name} gave client {client}", fix) for client, part in enumerate(found)]
        partition = Partition.of_parts(parts)
    order = partition.order
    if order.numel() and not 0 <= int(order.min()) <= int(order.max()) < num_examples:
        raise DataError(
            f"{name} returned indices from {int(order.min())} to {int(order.max())}, but there are {num_examples} examples to "
            "divide (without a public share and what the loader's sampler never reads). Return indices below 'num_examples'."
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


def whole_numbers(given: Any, what: str, fix: str) -> Tensor:
    """Return what a user's method has returned as a tensor of whole numbers, int64, shape (m,).

    Args:
        given: what it has returned.
        what: the beginning of the message for anything else.
        fix: its end.

    Raises:
        DataError: if it is anything else.
    """
    try:
        numbers = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.zeros(())
    if numbers.dim() != 1 or (numbers.numel() and numbers.dtype not in _INTEGERS):
        came = " ".join(repr(given).split())[:60]
        raise DataError(f"{what} {came}, which is not a list of whole numbers. {fix}")
    return numbers.long()


def _called(partition: Partition, client: int) -> str:
    return f"client {client} ('{partition.names[client]}')" if partition.names else f"client {client}"


def _public(labels: Tensor, share: float, seed: int) -> Tensor:
    refuse_other_labels(labels)
    counts = torch.bincount(labels)
    present = counts[counts > 0]
    each = max(1, round(share * len(labels) / len(present)))
    if int(present.min()) <= each:
        scarce = int((counts == present.min()).nonzero()[0])
        raise DataError(
            f"'data.public_share' is {share}, which takes {each} examples of each class, but class {scarce} has only "
            f"{int(present.min())}, and the clients need some of them. Lower it."
        )
    return class_balanced(labels, each, generator(seed, "public share"))


# ---------------------------------------------------------------- clients that never train


def chosen(given: HeldOut, names: Sequence[str], seed: int) -> list[int]:
    """Return the positions of the clients that are held out, ascending.

    Args:
        given: a share, of which at least one client, a number, or names.
        names: the names of all clients; clients without names are called by their numbers.
        seed: draws the clients of a share or a number.

    Raises:
        ConfigurationError: if a name is unknown, or no client is left to train.
    """
    count = len(names)
    if isinstance(given, list):
        for name in map(str, given):
            if name not in names:
                shown = ", ".join([*names[:_MOST_NAMES], *(["..."] if count > _MOST_NAMES else [])])
                raise ConfigurationError(
                    f"'{_HELD}' has '{name}', but the clients are: {shown}. Use their names.{did_you_mean(name, names)}"
                )
        found = sorted(names.index(str(name)) for name in given)
    else:
        number = max(1, round(given * count)) if isinstance(given, float) and given else int(given)
        found = sorted(torch.randperm(count, generator=generator(seed, "held-out clients"))[:number].tolist())
    require(len(found) < count, _HELD, f"fewer than the {count} clients, so that some train", given)
    return found


def held_out_last(splits: ClientSplits, given: HeldOut, seed: int) -> tuple[ClientSplits, Sequence[int]]:
    """Return the parts of the clients that train, with what the others are tested on, and the order of all clients.

    Clients keep their names, or as a name the number that they had. A held-out client is tested on its test part, as the
    others are; without test parts, on all of its examples.

    Args:
        splits: the parts of all clients.
        given: the clients that are held out.
        seed: draws them.
    """
    everyone = range(len(splits.training))
    if not given:
        return splits, everyone
    held = chosen(given, splits.training.names or tuple(map(str, everyone)), seed)
    trained = sorted(set(everyone) - set(held))
    own = {name: _of(getattr(splits, name), trained) for name in ("training", "validation", "test")}
    unseen = _of(splits.test, held)
    if unseen is None:
        kept = [part for part in (splits.training, splits.validation) if part is not None]
        unseen = _of(Partition.of_parts([torch.cat(one) for one in zip(*kept, strict=True)], splits.training.names), held)
    return replace(splits, **own, unseen=unseen), [*trained, *held]


def _of(partition: Partition | None, clients: Sequence[int]) -> Any:
    """Return the examples of some clients; None without a partition."""
    if partition is None:
        return None
    names = tuple(str(k) if partition.names is None else partition.names[k] for k in clients)
    return Partition.of_parts([partition[k] for k in clients], names)
