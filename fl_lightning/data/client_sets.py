"""Hold one dataset for each client, instead of one that is divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, TensorDataset, default_collate

from fl_lightning.data.class_names import names_of, require_alike
from fl_lightning.data.client_part import ClientPart
from fl_lightning.data.client_sources import (
    Source,
    as_loader,
    dataset_of,
    is_module,
    joined,
    of_client,
    refuse_package,
    said_of_examples,
    shared_hooks,
    sized,
    warn_of_unused,
)
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.labels import read_persons
from fl_lightning.data.own_loaders import OwnLoaders, is_loader, loader_of_batches, reads_alone, size_of, warn_of_batches
from fl_lightning.data.readers import OneAfterAnother, Readers, first_loader, reads_alike
from fl_lightning.data.samplers import is_plain, yields
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import leave_out
from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.functional.partition import Partition, offsets
from fl_lightning.messages import Part
from fl_lightning.partitioners.base import Partitioner

_LOADERS = {"validation": "val_dataloader", "test": "test_dataloader"}
_SHARED = ("batch_size", "drop_last", "num_workers", "pin_memory", "timeout")
"""The settings of loaders that all clients share."""


class ClientSets(LightningDataModule):
    """Present the clients' datasets as one, in which each client has its own range; clients are sorted by name.

    Args:
        clients: each client's training examples by name: a dataset, a DataLoader, or a LightningDataModule, whose validation
            and test loaders are then the client's own.
        val: the server's validation set, a dataset or DataLoader; or each client's own, by name, whose union is the server's.
        test: the same for the test set.
        batch_size: the examples per batch, >= 1, for clients given as datasets.
        shuffle: whether they shuffle their training examples.
        num_workers: the worker processes that read them.
        collate_fn: the function that makes a batch of examples; torch's by default.
    """

    def __init__(
        self,
        clients: Mapping[str, Source],
        val: Any = None,
        test: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(clients, Mapping):
            raise ConfigurationError(
                f"The clients' data are a {type(clients).__name__}, but must be a dictionary with each client's data by name. "
                "Write FederatedDataModule.from_clients({'a': ..., 'b': ...})."
            )
        require(bool(clients), "data.clients", "at least one client by name", dict(clients))
        require(batch_size >= 1, "data.batch_size", "1 or above", batch_size)
        by_name = {str(name): name for name in clients}
        if len(by_name) < len(clients):
            twice = next(name for name in clients if by_name[str(name)] is not name)
            raise ConfigurationError(
                f"Two clients have the name '{twice}', once as a {type(twice).__name__} and once as a "
                f"{type(by_name[str(twice)]).__name__}. Give each client a name of its own."
            )
        self.clients = {name: clients[by_name[name]] for name in sorted(by_name)}
        self.names = tuple(self.clients)
        self._modules: dict[str, LightningDataModule] = {name: own for name, own in self.clients.items() if is_module(own)}
        self.prepare_data_per_node = not self._modules or any(own.prepare_data_per_node for own in self._modules.values())
        self._val, self._test = val, test
        self._own: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "collate_fn": collate_fn}
        self._shuffle = shuffle
        self._loader: DataLoader[Any] | None = None
        self._own_loaders: dict[str, DataLoader[Any]] | None = None
        self._parts: dict[str, Partition] = {}
        self._readers: dict[Part, list[DataLoader[Any]]] = {}
        self._persons: Tensor | None = None
        self.held_out: Sequence[int] = ()
        """The clients that are held out, which the server's sets leave out."""
        for part, given in (("val", val), ("test", test)):
            if isinstance(given, Mapping) and {str(name) for name in given} != set(self.names):
                raise ConfigurationError(
                    f"'{part}' has sets for the clients {', '.join(sorted(map(str, given)))}, but the training sets are "
                    f"those of {', '.join(self.names)}. Give a set for each client, or one for the server."
                )
            if given is None and not self._of_modules(f"{part}_dataloader"):
                leave_out(self, f"{part}_dataloader")
                warn_of_unused(self.clients, f"{part}_dataloader")
        refuse_package(self.clients)
        for hook in shared_hooks(self.clients):
            vars(self)[hook] = self._image_hook(hook)
        vars(self).update(said_of_examples(self.clients))

    def _image_hook(self, hook: str) -> Callable[..., Any]:
        """Return a transfer hook that all clients share, in the Trainer that runs now."""
        first = next(iter(self.clients.values()))

        def transfer(*args: Any) -> Any:
            first.trainer = self.trainer
            return getattr(first, hook)(*args)

        return transfer

    def _of_modules(self, loader: str) -> bool:
        """Return whether every client is a datamodule that provides a loader."""
        return all(is_module(s) and is_overridden(loader, s, LightningDataModule) for s in self.clients.values())

    @property
    def origin(self) -> str:
        """Return the origin of the data, in words."""
        return f"{len(self.names)} clients with data of their own"

    # ---------------------------------------------------------------- set-up

    def prepare_data(self) -> None:
        """Let the clients' datamodules download."""
        for name, source in self._modules.items():
            with of_client(name):
                source.prepare_data()

    def setup(self, stage: str) -> None:
        """Set up the clients' datamodules, and arrange all examples, once.

        Raises:
            DataError: if a client's examples cannot be used; it names the client.
        """
        for source in self._modules.values():
            source.trainer = self.trainer
        if self._loader is not None:
            return
        tests = self._of_modules("test_dataloader")
        for name, source in self._modules.items():
            with of_client(name):
                for needed in ("fit", *(("test",) if tests else ())):
                    source.setup(needed)
        loaders = {name: self._training_loader(name, source) for name, source in self.clients.items()}
        first_name, first = next(iter(loaders.items()))
        given: tuple[tuple[Part, Any], ...] = (("validation", self._val), ("test", self._test))
        parts = {part: self._own_sets(part, sets, loaders) for part, sets in given}
        self._require_same_names(loaders, parts)
        self._readers["training"] = list(loaders.values())
        if any(reads_alone(loader) for loader in loaders.values()):
            self._own_loaders = loaders
            sizes = torch.tensor([size_of(name, loader) for name, loader in loaders.items()])
            self._parts["training"] = Partition(torch.arange(int(sizes.sum())), offsets(sizes), self.names)
            self._arrange(parts, first, shuffle=False)
            return
        for name, loader in loaders.items():
            self._require_alike(first_name, first, name, loader)
        parts = {"training": [loader.dataset for loader in loaders.values()], **parts}
        self._arrange(parts, first, isinstance(first.sampler, RandomSampler))

    def _training_loader(self, name: str, source: Source) -> DataLoader[Any]:
        with of_client(name):
            given = source.train_dataloader() if is_module(source) else source
        if isinstance(given, Mapping | CombinedLoader):
            raise DataError(
                f"'train_dataloader' of client '{name}' returns a {type(given).__name__} of loaders, but a client trains on a "
                "single one. Return one DataLoader, over a dataset that joins the examples."
            )
        if not isinstance(given, DataLoader) and (is_module(source) or is_loader(given)):
            return loader_of_batches(name, given)
        streams = isinstance(dataset_of(given), IterableDataset)
        if not streams:
            sized(name, dataset_of(given))
        if isinstance(given, DataLoader):
            return given
        warn_of_batches(name, given)
        return DataLoader(given, shuffle=False if streams else self._shuffle, **self._own)

    @staticmethod
    def _require_alike(first_name: str, first: DataLoader[Any], name: str, loader: DataLoader[Any]) -> None:
        differing = [s for s in _SHARED if getattr(first, s) != getattr(loader, s)]
        values = [(s, getattr(first, s), getattr(loader, s)) for s in differing]
        if type(first.sampler) is not type(loader.sampler):
            values.append(("shuffle", type(first.sampler) is RandomSampler, type(loader.sampler) is RandomSampler))
        for setting, one, other in values[:1]:
            raise DataError(
                f"The loaders of the clients differ: '{setting}' is {one} for '{first_name}', but {other} for '{name}'. Use "
                "the same settings for all clients."
            )

    def _require_same_names(self, loaders: Mapping[str, Any], parts: Mapping[Part, list[Any]]) -> None:
        """Refuse clients or sets whose classes or features have other names than the first client's that has names."""
        every = [(f"the training set of client '{name}'", loader) for name, loader in loaders.items()]
        for part, sets in parts.items():
            every += [(f"the {part} set of client '{name}'", own) for name, own in zip(self.names, sets, strict=False)]
        every += [(f"the server's {part} set", one) for part, one in (("validation", self._val), ("test", self._test))]
        for kind in ("classes", "feature_names"):
            named = [(owner, data) for owner, data in every if not isinstance(data, Mapping) and names_of(data, kind)]
            for owner, data in named[1:]:
                first = named[0][0]
                require_alike(first[0].upper() + first[1:], named[0][1], owner, data)

    def _own_sets(self, part: Part, given: Any, training: Mapping[str, DataLoader[Any]]) -> list[Any]:
        """Return each client's own set of a part, of which its loader can yield all examples; empty if clients have none."""
        loader = _LOADERS[part]
        if isinstance(given, Mapping):
            own = {str(name): as_loader(one) for name, one in given.items()}
        elif given is None and self._of_modules(loader):
            own = {}
            for name, source in self.clients.items():
                with of_client(name):
                    own[name] = as_loader(first_loader(getattr(source, loader)()))
        else:
            return []
        sets = []
        self._readers[part] = []
        for name in self.names:
            dataset = sized(name, dataset_of(own[name]))
            reader = own[name] if isinstance(own[name], DataLoader) else self._reader(part, dataset, training[name])
            if isinstance(own[name], DataLoader) and not is_plain(reader.sampler):
                chosen = yields(reader)
                if chosen is None:
                    raise DataError(
                        f"The {part} loader of client '{name}' uses {type(reader.sampler).__name__}, so which examples it "
                        "reads is not known. Give the loader a dataset of these examples alone (torch.utils.data.Subset)."
                    )
                dataset = dataset if chosen.numel() == len(dataset) else Subset(dataset, chosen.tolist())
            self._readers[part].append(reader)
            sets.append(sized(name, dataset))
        return sets

    def _reader(self, part: Part, dataset: Any, training: DataLoader[Any]) -> DataLoader[Any]:
        """Return a loader for a set without one, as the training set is read if nothing else is known."""
        own = self._own["collate_fn"]
        collate = own or training.collate_fn
        if own is None and collate is not default_collate and training.collate_fn is not self._own["collate_fn"]:
            rank_zero_warn(
                f"The {part} set has no loader, so it is read with the 'collate_fn' of the training loader. If that changes "
                "examples at random, give a DataLoader instead of a dataset, or pass 'collate_fn'."
            )
        size = training.batch_size or self._own["batch_size"]
        return DataLoader(dataset, size, collate_fn=collate, num_workers=training.num_workers)

    def readers(self) -> Readers:
        """Return what reads each part of each client, after ``setup``."""
        val = as_loader(self._val) if isinstance(self._val, DataLoader | TensorLoader) else None
        return Readers(None if val is None else lambda: val, self._readers)

    def _arrange(self, parts: Mapping[Part, list[Any]], first: DataLoader[Any], shuffle: bool) -> None:
        sets = [own for datasets in parts.values() for own in datasets] or [TensorDataset(torch.zeros(0))]
        begin = 0
        for part, datasets in parts.items():
            sizes = [len(own) for own in datasets]
            ends = torch.tensor([0, *sizes]).cumsum(0) + begin
            ranges = [torch.arange(a, b) for a, b in pairwise(ends.tolist())]
            if datasets:
                self._parts[part] = Partition.of_parts(ranges, self.names)
            begin += sum(sizes)
        self._persons = read_persons(*(own for datasets in parts.values() for own in datasets))
        shared = {name: getattr(first, name) for name in (*_SHARED, "collate_fn", "worker_init_fn")}
        shared["batch_size"] = shared["batch_size"] or self._own["batch_size"]
        self._loader = DataLoader(joined(sets), shuffle=shuffle and len(sets[0]) > 0, **shared)

    def own_loaders(self) -> OwnLoaders | None:
        """Return the clients' data if they are read by loaders of their own; None if they are arranged as one set.

        Call it after ``setup``.
        """
        if self._own_loaders is None:
            return None
        none = torch.zeros(0, dtype=torch.int64)
        splits = ClientSplits(self.partition, self._parts.get("validation"), self._parts.get("test"), none)
        return OwnLoaders(splits, self._own_loaders, self.train_dataloader())

    # ---------------------------------------------------------------- what a federation reads

    @property
    def partition(self) -> Partition:
        """Return the clients' training examples, after ``setup``."""
        return self._parts["training"]

    @property
    def persons(self) -> Tensor | None:
        """Return the person of each example, after ``setup``; None if no client's set names persons."""
        return self._persons

    def with_own_sets(self, splits: ClientSplits, shares: Mapping[str, float]) -> ClientSplits:
        """Return the clients' parts with their own validation and test sets.

        Args:
            splits: the division of their training examples.
            shares: the shares of the training examples for validation and test.

        Raises:
            ConfigurationError: if a client has its own set and a share for the same part.
        """
        for part in ("validation", "test"):
            if part in self._parts and shares[part]:
                raise ConfigurationError(
                    f"'data.client_{part}' is {shares[part]}, but the clients have {part} sets of their own. Set it to 0."
                )
        return replace(
            splits,
            validation=self._parts.get("validation", splits.validation),
            test=self._parts.get("test", splits.test),
        )

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the loader over all examples, of which a federation uses each client's ranges."""
        assert self._loader is not None
        return self._loader

    def val_dataloader(self) -> Any:
        """Return the server's validation set, or the union of the clients' own."""
        return self._server_set(self._val, "validation")

    def test_dataloader(self) -> Any:
        """Return the server's test set, or the union of the clients' own."""
        return self._server_set(self._test, "test")

    def _server_set(self, given: Any, part: Part) -> Any:
        if isinstance(given, DataLoader | TensorLoader):
            return given
        if given is not None and not isinstance(given, Mapping):
            return self._reader(part, given, self.train_dataloader())
        loader, out = self.train_dataloader(), set(self.held_out)
        kept = [k for k in range(len(self.names)) if k not in out]
        readers, union = [self._readers[part][k] for k in kept], [self._parts[part][k] for k in kept]
        parts = [torch.cat(union)] if all(reads_alike(readers[0], one) for one in readers[1:]) else union
        sets = [
            DataLoader(
                ClientPart(loader.dataset, own.tolist()),
                loader.batch_size,
                collate_fn=one.collate_fn,
                num_workers=one.num_workers,
            )
            for own, one in zip(parts, readers, strict=False)
        ]
        return sets[0] if len(sets) == 1 else OneAfterAnother(sets)

    def teardown(self, stage: str) -> None:
        """Let the clients' datamodules clean up."""
        for source in self._modules.values():
            source.teardown(stage)

    def on_exception(self, exception: BaseException) -> None:
        """Let the clients' datamodules clean up after an error."""
        for source in self._modules.values():
            source.on_exception(exception)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the clients' datamodules, by name."""
        return {name: source.state_dict() for name, source in self._modules.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the states of the clients' datamodules."""
        for name, source in self._modules.items():
            if name in state_dict:
                source.load_state_dict(state_dict[name])


class OwnSets(Partitioner):
    """Give each client of a :class:`ClientSets` its own examples."""

    needs_labels = False

    def __init__(self, sets: ClientSets) -> None:
        self._sets = sets

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Return the clients' ranges; see :meth:`Partitioner.partition`."""
        return self._sets.partition
