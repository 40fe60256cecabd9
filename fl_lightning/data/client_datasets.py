"""Manage the clients' examples, the labels on which they train, and the loaders that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, TensorDataset

from fl_lightning.data.changes import NOTHING, Changes, ExampleChange, FeatureNoise, LabelAveraging
from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.labels import read_labels, refuse_large_labels
from fl_lightning.data.loaders import client_loader, part_loader, reads_tensors
from fl_lightning.data.placement import free_memory, placed
from fl_lightning.data.poisson_loader import PoissonBatches
from fl_lightning.data.readers import OneAfterAnother, Readers, reads_alike
from fl_lightning.data.resident_loader import ResidentLoader
from fl_lightning.data.samplers import client_sampler, is_plain
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.labels import client_label_counts
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.splitting import sharing_clients
from fl_lightning.messages import Part


class ClientDatasets(ClientSource):
    """Hold the data of each client of one training set.

    Args:
        division: the clients' parts.
        source: the loader of the whole training set.
        labels: the labels of all examples, if they have been read.
        noise: the noise on the clients' inputs, or None.
        rebalancing: makes clients repeat examples of rare classes, or None.
        readers: the loaders that read each part of each client; by default, ``source`` reads all of them.
        possible: the number of examples that ``source`` can yield; None for all.
        unseen: the test examples of the held-out clients, whose ids follow those of the others; None without any.
    """

    whole = True

    def __init__(
        self,
        division: ClientSplits,
        source: DataLoader[Any],
        labels: Tensor | None,
        noise: FeatureNoise | None,
        rebalancing: LabelAveraging | None,
        readers: Readers | None = None,
        possible: int | None = None,
        unseen: Partition | None = None,
    ) -> None:
        self.unseen = unseen
        self.splits, self.source, self.labels = division, source, labels
        self._readers, self._possible = readers or Readers(), possible
        self._size = len(source.dataset)  # type: ignore[arg-type]
        self._noise, self._rebalancing = noise, rebalancing
        self._changed: Mapping[int, ExampleChange] = {}
        self._label_counts: Tensor | None = None
        self._resident: ResidentLoader | None = None
        self._placed: tuple[Any, Any] = (None, None)  # the training set, and its copy on the device

    @property
    def _dataset(self) -> Any:
        """Return the training set.

        Raises:
            DataError: if its length has changed since it was divided, so that the division no longer applies.
        """
        dataset: Any = self.source.dataset
        if len(dataset) != self._size:
            raise DataError(
                f"The training set has {len(dataset)} examples now, but had {self._size} when they were divided among the "
                f"clients. Make sure that {type(dataset).__name__} keeps its examples during a run, or build a new "
                "FederatedDataModule for another set."
            )
        return dataset

    def all_labels(self) -> Tensor:
        """Return the class of every example of the training set; read the labels if necessary."""
        if self.labels is None:
            self.labels = read_labels(self.source.dataset, self._owner_of)
        return self.labels

    def _owner_of(self, example: int) -> str:
        """Return the client of an example, in words; empty if no client has it."""
        for part in (self.splits.training, self.splits.validation, self.splits.test, self.unseen):
            found = [] if part is None else (part.order == example).nonzero().flatten().tolist()
            if part is not None and found:
                client = int(part.owners()[found[0]])
                return f" of client {client if part.names is None else part.names[client]}"
        return ""

    def num_classes(self) -> int:
        """Return the number of classes, from 0 to the highest label of the clients that train.

        Raises:
            DataError: if the data have only one class, or labels are not numbers of classes.
        """
        labels, own = self.all_labels(), self._trained
        if own is not None:  # in their places, which messages tell
            labels = torch.full_like(labels, int(labels[own[0]])).scatter(0, own, labels[own])
        refuse_large_labels(labels)
        if int(labels.min()) < 0:
            raise DataError(
                f"Example {int(labels.argmin())} has the label {int(labels.min())}, but classes are numbered from 0. Assign it "
                "a class, or remove it."
            )
        classes = int(labels.max()) + 1
        if classes < 2:
            settings = sorted({"data.rebalancing", *(change.setting for change in self._changed.values())})
            raise DataError(
                "The training data have a single class, so no label can be wrong and no class is rare. Use data with two or "
                f"more classes, or remove {' and '.join(map(repr, settings))}."
            )
        return classes

    @cached_property
    def _trained(self) -> Tensor | None:
        """Return the examples of the clients that train, ascending; None if no client is held out."""
        parts = (self.splits.training, self.splits.validation, self.splits.test)
        return None if self.unseen is None else torch.cat([p.order for p in parts if p is not None]).sort().values

    def _examples(self, client: int, part: Part) -> Tensor:
        """Return a part of a client's examples; of a held-out client, what it is tested on."""
        first = len(self.splits.training)
        return self.part(part)[client] if self.unseen is None or client < first else self.unseen[client - first]

    def _noise_of(self, client: int, part: Part) -> dict[str, Any]:
        """Return the noise of a client, whose draws are those of a run without the held-out clients."""
        if self._noise is None:
            return {}
        own, trained = self._examples(client, part), self._trained
        if trained is not None and client < len(self.splits.training):
            own = torch.searchsorted(trained, own)
        return {"noise": self._noise, "numbers": own}

    def label_counts(self) -> Tensor:
        """Count the training examples of each class at each client, int64, shape (K, C)."""
        if self._label_counts is None:
            training, classes = self.splits.training, self.num_classes()
            labels = self.all_labels()[training.order]
            for client in self._changed:
                believed = self._believed(client, "training")
                if believed is not None:
                    labels[training.offsets[client] : training.offsets[client + 1]] = believed
            self._label_counts = client_label_counts(training.owners(), labels, len(training), classes)
        return self._label_counts

    def change_examples(self, changes: Mapping[int, ExampleChange]) -> None:
        """Change clients' examples in training and validation parts from now on."""
        self._changed, self._label_counts = changes, None
        for client in changes:
            self._believed(client, "training")  # refuses what does not fit the classes

    def _believed(self, client: int, part: Part) -> Tensor | None:
        """Return the labels on which the client trains; None if they are the true ones."""
        if client not in self._changed or part == "test":
            return None
        labels = self.all_labels()[self.part(part)[client]]
        believed = self._changed[client].labels(labels, part, self.num_classes())
        return None if torch.equal(believed, labels) else believed

    def _changes(self, client: int, part: Part) -> Changes:
        believed = self._believed(client, part)
        change = None if part == "test" else self._changed.get(client)
        chosen = None if change is None else change.chosen(self.part(part)[client].numel(), part)
        return Changes(client, part, believed, change, chosen, **self._noise_of(client, part))

    @cached_property
    def sharing(self) -> Sequence[tuple[int, ...]]:  # type: ignore[override]
        """Return the clients that train on examples of the same person, each group once; all of them with a public share."""
        training, persons = self.splits.training, self.splits.persons
        groups = [] if persons is None else sharing_clients(training, persons)
        everyone = [tuple(range(len(training)))] if self.splits.public.numel() else []
        return groups + everyone

    def training_loader(
        self, client: int, seed: int, full_batch: bool, drop_single: bool, poisson: PoissonBatches | None = None
    ) -> Any:
        """Return a client's training part, with repeats and public share."""
        whole, indices, public = self._dataset, self.splits.training[client], self.splits.public
        changes = self._changes(client, "training")
        repeated = NOTHING
        if self._rebalancing is not None:
            labels = self.all_labels()[indices] if changes.labels is None else changes.labels
            repeated = self._rebalancing.repeated(labels, self.label_counts(), seed)
        dataset: Any = whole
        reader: Any = self._readers.training(client, self.source)
        augmentation = None if self._rebalancing is None else self._rebalancing.augmentation
        changes = replace(changes, repeated=repeated, augmentation=augmentation, public=public)
        if changes.none:
            indices = torch.cat([indices, public]) if public.numel() else indices
            reader, dataset = self._workers(reader), whole if self._training_set is None else self._training_set
        else:
            dataset = changes(whole, indices)
            indices = torch.arange(len(dataset))
        order = torch.Generator().manual_seed(seed)
        sampler = self._sampler(order, self.splits.training[client], public, poisson)
        return client_loader(self.source, dataset, indices, order, full_batch, drop_single, poisson or sampler, reader)

    def _sampler(
        self, order: torch.Generator, own: Tensor, public: Tensor, poisson: PoissonBatches | None
    ) -> Sampler[int] | None:
        """Return the user's sampler for a client's examples; None if they are read once each, shuffled or in order.

        Raises:
            ConfigurationError: if another setting draws the examples.
        """
        sampler = self.source.sampler
        if is_plain(sampler):
            return None
        drawing = [] if poisson is None else [poisson.setting]
        drawing += [] if self._rebalancing is None else ["data.rebalancing"]
        if drawing:
            raise ConfigurationError(
                f"The training loader uses {type(sampler).__name__}, but '{drawing[0]}' draws the examples itself. Remove one "
                "of them."
            )
        return self.sampler_of(torch.cat([own, public]), order)

    def sampler_of(self, indices: Tensor, order: torch.Generator | None) -> Sampler[int]:
        """Return a sampler of positions among some examples that reads them as the user's sampler does."""
        return client_sampler(self.source.sampler, self._size, indices, order, self._possible)

    def place(self, device: torch.device, limit: float | None) -> None:
        """Keep the training set's tensors on a GPU, if batches are indexed and they fit."""
        self._placed = None, None  # released first, so that two copies never exist
        if reads_tensors(self.source.dataset, self.source) and is_plain(self.source.sampler):
            self._placed = self.source.dataset, placed(self.source.dataset, device, _room(device, limit))

    def release(self) -> None:
        """Release the device's memory, and stop the workers."""
        self._placed = None, None
        super().release()

    @property
    def _training_set(self) -> Any:
        """Return the training set on the device; None if the dataset has been replaced since."""
        of, there = self._placed
        return there if there is not None and of is self.source.dataset else None

    def _workers(self, reader: DataLoader[Any]) -> DataLoader[Any] | ResidentLoader:
        """Return the workers of the training set, which are started once and kept for all clients and rounds.

        The reader itself if it has no workers, or reads a client's or a part's examples in another way.
        """
        if not reader.num_workers or not reads_alike(reader, self.source):
            return reader
        if self._resident is None or self._resident.dataset is not self.source.dataset:
            if self._resident is not None:
                self._resident.close()
            self._resident = ResidentLoader(self.source)
        return self._resident

    def evaluation_loader(self, client: int, part: Part, batch_size: int) -> Any:
        """Return a part of a client's examples in order, each once."""
        dataset, indices = self._dataset, self._examples(client, part)
        changes = self._changes(client, part)
        reader = self._readers.evaluation(client, part, self.source)
        if not changes.none:
            dataset = changes(dataset, indices)
            indices = torch.arange(len(indices))
        return part_loader(self._workers(reader) if changes.none else reader, dataset, indices, batch_size)

    def union(self, part: Part) -> tuple[Any, Tensor]:
        """Return a part of all clients' examples with their noise, as dataset and indices; training has the public share."""
        partition, dataset = self.part(part), self._dataset
        public = self.splits.public if part == "training" else NOTHING
        if self._noise is None:
            return dataset, torch.cat([partition.order, public]).sort().values
        parts = []
        for client, own in enumerate(partition):
            shared = public if client == 0 else NOTHING
            changes = Changes(client, part, public=shared, **self._noise_of(client, part))
            parts.append(changes(dataset, own))
        return _joined(parts), torch.arange(partition.order.numel() + public.numel())

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return a part of all clients' examples in order, each once."""
        clients = len(self.splits.training)
        if self._readers.alike(part, clients, self.source):
            reader = self._readers.evaluation(0, part, self.source)
            return part_loader(reader, *self.union(part), batch_size)
        return OneAfterAnother([self.evaluation_loader(client, part, batch_size) for client in range(clients)])


def _joined(parts: list[Dataset[Any]]) -> Dataset[Any]:
    if all(type(part) is TensorDataset for part in parts):
        columns = zip(*(part.tensors for part in parts if isinstance(part, TensorDataset)), strict=True)
        return TensorDataset(*(torch.cat(column) for column in columns))
    return ConcatDataset(parts)


def _room(device: torch.device, limit: float | None) -> float:
    """Return the bytes that tensors may take on a device."""
    free = free_memory(device)
    return free / 2 if limit is None else min(limit * 2**30, free)
