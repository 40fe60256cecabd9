"""Define what a federation asks of its clients' data, however a user has handed them in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.data.changes import ExampleChange
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.resident_loader import close_all
from fl_lightning.data.tensor_loader import Coins, PoissonBatches
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.labels import client_label_counts
from fl_lightning.functional.partition import Partition, offsets
from fl_lightning.messages import Part


class Sizes(Partition):
    """Store the sizes of clients' parts without indices, so that a claim of any size takes no memory.

    Args:
        sizes: the number of examples of each client.
        names: the names of the clients, if they have any.
    """

    def __init__(self, sizes: Sequence[int] | Tensor, names: tuple[str, ...] | None = None) -> None:
        bounds = offsets(torch.as_tensor(sizes))
        super().__init__(torch.zeros(1, dtype=torch.int64).expand(int(bounds[-1])), bounds, names)

    def owners(self) -> Tensor:
        """Refuse to list the client of each example.

        Raises:
            DataError: always.
        """
        raise DataError("The clients' examples are not known here. Use settings that do not read them at the server.")

    def digest(self) -> str:
        """Return a digest of the clients' names and sizes."""
        return hashlib.blake2b(repr((self.names, self.sizes.tolist())).encode(), digest_size=16).hexdigest()


class ClientSource:
    """Know the clients' names and sizes, and open a part of one of them. What a source cannot do, it refuses by its ``reason``.

    Attributes:
        splits: the clients' parts; of some sources only their sizes and names are known.
        labels: the class of each example of the one training set, int64, shape (n,); None if they have not been read.
        source: the loader that shows how training examples are read.
        whole: whether all clients' training examples are in the dataset of ``source``, of which each has indices.
        reason: why the examples of all clients cannot be read now, in words.
        sharing: the groups of clients that are known to train on examples of the same person.
    """

    splits: ClientSplits
    source: DataLoader[Any]
    labels: Tensor | None = None
    whole = False
    reason = "The clients' examples are not here"
    sharing: Sequence[tuple[int, ...]] = ()

    def refuse(self, what: str) -> NoReturn:
        """Refuse what needs the examples of all clients.

        Args:
            what: what cannot be done, in words.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(f"{self.reason}, so {what}. Leave out what needs it, or give the clients' datasets.")

    def part(self, part: Part) -> Partition:
        """Return one part of every client's examples.

        Raises:
            DataError: if the clients do not have this part.
        """
        partition: Partition | None = getattr(self.splits, part)
        if partition is None:
            raise DataError(f"The clients have no {part} examples. Set 'data.client_{part}' to a share above 0, e.g. 0.2.")
        return partition

    def size_is_unknown(self, client: int) -> bool:
        """Return whether a client trains on a stream without a length; its size is then 1 until it tells."""
        return False

    def streams(self, client: int) -> bool:
        """Return whether a client trains on a stream, which may yield fewer examples than its length says."""
        return False

    def training_loader(
        self, client: int, seed: int, full_batch: bool, drop_single: bool, poisson: PoissonBatches | None = None
    ) -> Any:
        """Return a client's training part; see :meth:`FederatedDataModule.client`."""
        self.refuse("they cannot be trained on")

    def evaluation_loader(self, client: int, part: Part, batch_size: int) -> Any:
        """Return a part of a client's examples in order, each once."""
        self.refuse("they cannot be evaluated on")

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return a part of all clients' examples in order, each once."""
        self.refuse("their union cannot be read")

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """Return Poisson-sampled batches of a client's training part, including the public share."""
        size = self.splits.training[client].numel() + self.splits.public.numel()
        batch_size = size if full_batch else self.source.batch_size
        assert batch_size is not None
        persons = self.splits.persons
        return PoissonBatches(size, batch_size, coins, None if persons is None else persons[self.splits.training[client]])

    def persons_of(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each example of a part of a client's, in order, int64; None if the data name no persons."""
        persons, division, first = self.splits.persons, getattr(self.splits, part), len(self.splits.training)
        if self.splits.unseen is not None and client >= first:
            client, division = client - first, self.splits.unseen
        return None if persons is None or division is None else persons[division[client]]

    def all_labels(self) -> Tensor:
        """Return the class of every example of the training set; read the labels if necessary."""
        self.refuse("their labels are not known beforehand")

    def label_counts(self) -> Tensor:
        """Count the training examples of each class at each client, by its own labels, int64, shape (K, C).

        Raises:
            DataError: if the training set does not have labels.
        """
        self.refuse("their labels are not known beforehand")

    def counts_at_hand(self, most: int) -> Tensor | None:
        """Count the training examples of each class at each client by true labels, int64, shape (K, C).

        Args:
            most: the number of classes from which they are not counted.

        Returns:
            The counts; None if labels are not in memory, or are no numbers of classes.
        """
        labels, own = self.labels, self.splits.training
        if labels is None or not labels.numel() or not 0 <= int(labels.min()) <= int(labels.max()) < most:
            return None
        return client_label_counts(own.owners(), labels[own.order], len(own), int(labels.max()) + 1)

    def change_examples(self, changes: Mapping[int, ExampleChange]) -> None:
        """Change clients' examples in training and validation parts from now on; their test parts stay true.

        Args:
            changes: the changes by client.
        """
        for change in changes.values():
            self.refuse(f"'{change.setting}' cannot change them")

    def place(self, device: torch.device, limit: float | None) -> None:
        """Keep the training set's tensors on a GPU, if batches are indexed and they fit.

        Args:
            device: the device on which the clients train.
            limit: the GiB that they may take; None for half of the free memory.
        """

    def release(self) -> None:
        """Release the device's memory, and stop the workers."""
        close_all()
