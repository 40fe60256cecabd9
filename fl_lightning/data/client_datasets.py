"""Manage the clients' examples, the labels on which they train, and the loaders that read them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.data.changes import NOTHING, Changes, ExampleChange, FeatureNoise, LabelAveraging
from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.in_memory import joined
from fl_lightning.data.labels import read_labels, refuse_other_labels
from fl_lightning.data.loaders import client_loader, part_loader, reads_tensors
from fl_lightning.data.resident_loader import ResidentLoader, reader_settings
from fl_lightning.data.samplers import client_sampler, is_plain
from fl_lightning.data.tensor_loader import PoissonBatches
from fl_lightning.errors import DataError, require
from fl_lightning.functional.labels import client_label_counts
from fl_lightning.functional.splitting import sharing_clients
from fl_lightning.messages import Part


class ClientDatasets(ClientSource):
    """Hold the data of each client of one training set.

    Args:
        splits: the clients' parts.
        source: the loader of the whole training set.
        labels: the labels of all examples, if they have been read.
        noise: the noise on the clients' inputs, or None.
        rebalancing: makes clients repeat examples of rare classes, or None.
        readers: each client's own loaders by part, in the order of the clients; empty if one training set was divided.
        validation: returns the loader of the server's validation set; None if the server has none.
    """

    whole = True

    def __init__(
        self,
        splits: ClientSplits,
        source: DataLoader[Any],
        labels: Tensor | None = None,
        noise: FeatureNoise | None = None,
        rebalancing: LabelAveraging | None = None,
        readers: Mapping[Part, Sequence[DataLoader[Any]]] | None = None,
        validation: Callable[[], Any] | None = None,
    ) -> None:
        self.splits, self.source, self.labels = splits, source, labels
        self._readers, self._validation = readers or {}, validation
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
                f"clients. Let {type(dataset).__name__} keep its examples, or build a new FederatedDataModule."
            )
        return dataset

    def all_labels(self) -> Tensor:
        """Return the class of every example of the training set; read the labels if necessary."""
        if self.labels is None:
            self.labels = read_labels(self.source.dataset)
        return self.labels

    def num_classes(self) -> int:
        """Return the number of classes, from 0 to the highest label of the clients that train.

        Raises:
            DataError: if the data have only one class, or labels are not numbers of classes.
        """
        labels, parts = self.all_labels(), (self.splits.training, self.splits.validation, self.splits.test)
        if self.splits.unseen is not None:
            labels = labels[torch.cat([part.order for part in parts if part is not None])]
        refuse_other_labels(labels)
        classes = int(labels.max()) + 1
        if classes < 2:
            settings = sorted({"data.rebalancing", *(change.setting for change in self._changed.values())})
            raise DataError(
                "The training data have a single class, so no label can be wrong and no class is rare. Use data with two or "
                f"more classes, or remove {' and '.join(map(repr, settings))}."
            )
        return classes

    def _examples(self, client: int, part: Part) -> Tensor:
        """Return a part of a client's examples; of a held-out client, what it is tested on."""
        first, unseen = len(self.splits.training), self.splits.unseen
        return self.part(part)[client] if unseen is None or client < first else unseen[client - first]

    def _noise_of(self, client: int, part: Part) -> dict[str, Any]:
        """Return the noise of a client, drawn by the numbers of its examples."""
        return {} if self._noise is None else {"noise": self._noise, "numbers": self.part(part)[client]}

    def label_counts(self) -> Tensor:
        """Count the training examples of each class at each client, int64, shape (K, C)."""
        if self._label_counts is None:
            training, classes = self.splits.training, self.num_classes()
            labels = self.all_labels()[training.order]
            for client in self._changed:
                believed = self._changes(client, "training").labels
                if believed is not None:
                    labels[training.offsets[client] : training.offsets[client + 1]] = believed
            self._label_counts = client_label_counts(training.owners(), labels, len(training), classes)
        return self._label_counts

    def change_examples(self, changes: Mapping[int, ExampleChange]) -> None:
        """Change clients' examples in training and validation parts from now on."""
        self._changed, self._label_counts = changes, None
        for client in changes:
            self._changes(client, "training")  # refuses what does not fit the classes

    def _changes(self, client: int, part: Part) -> Changes:
        """Return how a part of a client's examples differs from those of the data set; test parts have noise alone."""
        noise, change = self._noise_of(client, part), None if part == "test" else self._changed.get(client)
        if change is None:
            return Changes(client, part, **noise)
        true = self.all_labels()[self.part(part)[client]]
        believed = change.labels(true, part, self.num_classes())
        labels = None if torch.equal(believed, true) else believed
        return Changes(client, part, labels, change, change.chosen(true.numel(), part), **noise)

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
        reader: Any = self._training_reader(client)
        augmentation = None if self._rebalancing is None else self._rebalancing.augmentation
        changes = replace(changes, repeated=repeated, augmentation=augmentation, public=public)
        if changes.none:
            indices = torch.cat([indices, public]) if public.numel() else indices
            reader, dataset = self._workers(reader), whole if self._training_set is None else self._training_set
        else:
            dataset = changes(whole, indices)
            indices = torch.arange(len(dataset))
        order = torch.Generator().manual_seed(seed)
        sampler = None
        if not is_plain(self.source.sampler):
            setting = poisson.setting if poisson is not None else "data.rebalancing" if self._rebalancing is not None else ""
            known = f"off if the training loader draws the examples itself ({type(self.source.sampler).__name__})"
            require(not setting, setting, known, "in use")
            sampler = client_sampler(self.source, torch.cat([self.splits.training[client], public]), order)
        return client_loader(self.source, dataset, indices, order, full_batch, drop_single, poisson or sampler, reader)

    def place(self, device: torch.device, limit: float | None) -> None:
        """Keep the training set's tensors on a GPU, if batches are indexed and they fit."""
        self._placed = None, None  # released first, so that two copies never exist
        if reads_tensors(self.source.dataset, self.source) and is_plain(self.source.sampler):
            self._placed = self.source.dataset, placed(self.source.dataset, device, limit)

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

    def _training_reader(self, client: int) -> DataLoader[Any]:
        return self._readers["training"][client] if "training" in self._readers else self.source

    @cached_property
    def _server_reader(self) -> DataLoader[Any] | None:
        """Return the loader of the server's validation set, if it is a DataLoader."""
        found = None if self._validation is None else first_loader(self._validation())
        return found if isinstance(found, DataLoader) else None

    def _reader(self, client: int, part: Part) -> DataLoader[Any]:
        """Return the loader that shows how a part is read in an evaluation: a training loader's collation may augment."""
        own: tuple[Part, ...] = ("validation", "test") if part == "training" else (part, "validation", "test")
        found = next((self._readers[kind][client] for kind in own if kind in self._readers), self._server_reader)
        return self._training_reader(client) if found is None else found

    def evaluation_loader(self, client: int, part: Part, batch_size: int) -> Any:
        """Return a part of a client's examples in order, each once."""
        dataset, indices = self._dataset, self._examples(client, part)
        changes, reader = self._changes(client, part), self._reader(client, part)
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
        return joined(parts), torch.arange(partition.order.numel() + public.numel())

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return a part of all clients' examples in order, each once."""
        clients = range(len(self.splits.training))
        readers = [self._reader(client, part) for client in clients] if self._readers else [self._reader(0, part)]
        if all(reads_alike(readers[0], reader) for reader in readers[1:]):
            return part_loader(readers[0], *self.union(part), batch_size)
        return OneAfterAnother([self.evaluation_loader(client, part, batch_size) for client in clients])


class OneAfterAnother:
    """Read several loaders, one after another.

    Args:
        loaders: the loaders, or functions that open them.
        length: the number of batches; None for the sum of the loaders'.
    """

    def __init__(self, loaders: Sequence[Any], length: int | None = None) -> None:
        self._loaders, self._length = loaders, length

    def __len__(self) -> int:
        return sum(map(len, self._loaders)) if self._length is None else self._length

    def __iter__(self) -> Iterator[Any]:
        for loader in self._loaders:
            yield from loader() if callable(loader) else loader


def first_loader(loaders: Any) -> Any:
    """Return the first of one or several loaders."""
    while isinstance(loaders, Mapping | list | tuple) and len(loaders):
        loaders = next(iter(loaders.values())) if isinstance(loaders, Mapping) else loaders[0]
    return loaders


def reads_alike(one: DataLoader[Any], other: DataLoader[Any]) -> bool:
    """Return whether two loaders have the same workers and the same functions; two equal lambdas are not known to be."""
    return reader_settings(one) == reader_settings(other)


def placed(dataset: Any, device: torch.device, limit: float | None) -> Any:
    """Return a TensorDataset on a GPU; other datasets, and those that do not fit, unchanged.

    Args:
        dataset: the dataset.
        device: the GPU.
        limit: the GiB that it may take; None for half of the free memory.
    """
    if type(dataset) is not TensorDataset:
        return dataset
    free, size = free_memory(device), sum(tensor.numel() * tensor.element_size() for tensor in dataset.tensors)
    fits = size <= (free / 2 if limit is None else min(limit * 2**30, free))
    if not fits:
        return dataset
    moved = copy.copy(dataset)  # with its names of classes
    moved.tensors = tuple(tensor.to(device) for tensor in dataset.tensors)
    return moved


def free_memory(device: torch.device) -> int:
    """Return the free bytes on a GPU; 0 for other devices, on which tensors are not moved."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
