"""Hold one dataset for each client, instead of one that is divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset, TensorDataset, default_collate

from fl_lightning.data.client_datasets import first_loader
from fl_lightning.data.client_source import Sizes
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.in_memory import ImageDataModule, joined
from fl_lightning.data.labels import names_of, read_persons, require_alike
from fl_lightning.data.opened_clients import of_client, reads_alone, size_of, sized
from fl_lightning.data.samplers import check_sampler, is_plain, yields
from fl_lightning.data.schema import Schema
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import TRANSFER_HOOKS, leave_out
from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.functional.description import own_class
from fl_lightning.functional.partition import Partition
from fl_lightning.messages import Part

_LOADERS: dict[Part, str] = {"validation": "val_dataloader", "test": "test_dataloader"}
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

    Attributes:
        splits: the clients' examples, after ``setup``.
        given: the validation and test sets, as they are given.
        readers: the loader of each client for each part that clients have of their own, after ``setup``.
        opened: the clients' training loaders, after ``setup``, if they must be used as they are.
    """

    splits: ClientSplits

    def __init__(
        self,
        clients: Mapping[str, Any],
        val: Any = None,
        test: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__()
        known = "a dictionary with the data of one or more clients: {'a': ..., 'b': ...}"
        hint = "To open clients when they are drawn, subclass LazyClients."
        require(isinstance(clients, Mapping) and bool(clients), "data.clients", known, clients, hint)
        require(batch_size >= 1, "data.batch_size", "1 or above", batch_size)
        by_name = {str(name): own for name, own in clients.items()}
        require(len(by_name) == len(clients), "data.clients", "clients whose names differ as texts", list(clients))
        self.clients = {name: by_name[name] for name in sorted(by_name)}
        self.names = tuple(self.clients)
        self._modules = {name: own for name, own in self.clients.items() if isinstance(own, LightningDataModule)}
        self.prepare_data_per_node = not self._modules or any(own.prepare_data_per_node for own in self._modules.values())
        self.given: dict[Part, Any] = {"validation": val, "test": test}
        self._own: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers, "collate_fn": collate_fn}
        self._shuffle = shuffle
        self._loader: DataLoader[Any] | None = None
        self.readers: dict[Part, list[DataLoader[Any]]] = {}
        self.opened: list[DataLoader[Any]] = []
        for part, given in self.given.items():
            if isinstance(given, Mapping):
                known, found = f"sets of the clients {', '.join(self.names)}, or one for the server", sorted(map(str, given))
                require(set(found) == set(self.names), _LOADERS[part].split("_")[0], known, found)
            if given is None and not self._of_modules(_LOADERS[part]):
                leave_out(self, _LOADERS[part])
                warn_of_unused(self.clients, _LOADERS[part])
        for name, source in self.clients.items():
            refuse_package(f"the data of client '{name}'", source)
        if share_images(self.clients):
            vars(self)["on_after_batch_transfer"] = self._transfer
        vars(self).update(said_of_examples(self.clients))

    def _transfer(self, *args: Any) -> Any:
        """Scale and augment images as every client does, in the Trainer that runs now."""
        first = self._modules[self.names[0]]
        first.trainer = self.trainer
        return first.on_after_batch_transfer(*args)

    def _of_modules(self, loader: str) -> bool:
        """Return whether every client is a datamodule that provides a loader."""
        return all(brings(source, loader) for source in self.clients.values())

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
        sets: dict[Part, list[Any]] = {part: self._own_sets(part, given, loaders) for part, given in self.given.items()}
        self._require_same_names(loaders, sets)
        self.readers["training"] = each = list(loaders.values())
        if any(map(reads_alone, each)):
            self.opened = each
        else:
            for setting in _SHARED:
                require_same(setting, {name: getattr(loader, setting) for name, loader in loaders.items()})
            require_same("shuffle", {name: isinstance(loader.sampler, RandomSampler) for name, loader in loaders.items()})
            sets = {"training": [loader.dataset for loader in each], **sets}
        self._arrange({part: own for part, own in sets.items() if own}, each[0])
        if self.opened:
            sizes = [size_of(name, loader) for name, loader in loaders.items()]
            self.splits = replace(self.splits, training=Sizes(sizes, self.names), persons=None)

    def _training_loader(self, name: str, source: Any) -> DataLoader[Any]:
        given = training_source(name, source)
        loads = isinstance(given, DataLoader)
        dataset = given.dataset if loads else given
        streams = isinstance(dataset, IterableDataset)
        if not streams:
            sized(name, dataset)  # without a length, a client would be weighed as one of a single example
        return given if loads else DataLoader(dataset, shuffle=self._shuffle and not streams, **self._own)

    def _require_same_names(self, loaders: Mapping[str, Any], sets: Mapping[Part, list[Any]]) -> None:
        """Refuse clients or sets whose classes or features have other names than the first client's that has names."""
        every = {f"the training set of client '{name}'": loader for name, loader in loaders.items()}
        for part, given in self.given.items():
            own = zip(self.names, sets[part], strict=False)
            every |= {f"the {part} set of client '{name}'": one for name, one in own} | {f"the server's {part} set": given}
        for kind in ("classes", "feature_names"):
            named = [(owner, data) for owner, data in every.items() if names_of(data, kind)]
            for owner, data in named[1:]:
                first = named[0][0]
                require_alike(first[0].upper() + first[1:], named[0][1], owner, data)

    def _own_sets(self, part: Part, given: Any, training: Mapping[str, DataLoader[Any]]) -> list[Any]:
        """Return each client's own set of a part, of which its loader can yield all examples; empty if clients have none."""
        by_name = {str(name): one for name, one in given.items()} if isinstance(given, Mapping) else None
        if by_name is None and (given is not None or not self._of_modules(_LOADERS[part])):
            return []
        sets = []
        self.readers[part] = []
        for name, source in self.clients.items():
            with of_client(name):
                own = as_loader(first_loader(getattr(source, _LOADERS[part])()) if by_name is None else by_name[name])
            dataset = sized(name, own.dataset if isinstance(own, DataLoader) else own)
            reader = own if isinstance(own, DataLoader) else self._reader(part, dataset, training[name])
            if not is_plain(reader.sampler):
                check_sampler(reader, f"The {part} loader of client '{name}'")
                chosen = yields(reader)
                dataset = dataset if chosen is None or chosen.numel() == len(dataset) else Subset(dataset, chosen.tolist())
            self.readers[part].append(reader)
            sets.append(sized(name, dataset))
        return sets

    def _reader(self, part: Part, dataset: Any, training: DataLoader[Any]) -> DataLoader[Any]:
        """Return a loader for a set without one, as the training set is read if nothing else is known."""
        own = self._own["collate_fn"]
        known = "a DataLoader, or 'collate_fn' be passed, since the clients' loaders have one"
        require(own is not None or training.collate_fn is default_collate, part, known, type(dataset).__name__)
        size = training.batch_size or self._own["batch_size"]
        return DataLoader(dataset, size, collate_fn=own, num_workers=training.num_workers)

    def _arrange(self, parts: Mapping[Part, list[Any]], first: DataLoader[Any]) -> None:
        """Join the sets of all clients, training sets first, and note the range of each."""
        sets = [own for datasets in parts.values() for own in datasets]
        ranges = torch.split(torch.arange(sum(map(len, sets))), [len(own) for own in sets])
        count = len(self.names)
        found: dict[str, Any] = {"training": Partition.of_parts([torch.zeros(0)] * count, self.names)}
        for number, part in enumerate(parts):
            found[part] = Partition.of_parts(ranges[number * count : (number + 1) * count], self.names)
        self.splits = ClientSplits(**found, persons=read_persons(*sets))
        shared = {name: getattr(first, name) for name in (*_SHARED, "collate_fn", "worker_init_fn")}
        shared["batch_size"] = shared["batch_size"] or self._own["batch_size"]
        shuffle = not self.opened and isinstance(first.sampler, RandomSampler)
        self._loader = DataLoader(joined(sets or [TensorDataset(torch.zeros(0))]), shuffle=shuffle, **shared)

    # ---------------------------------------------------------------- what a federation reads

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the loader over all examples, of which a federation uses each client's ranges."""
        assert self._loader is not None
        return self._loader

    def val_dataloader(self, part: Part = "validation") -> Any:
        """Return the server's validation set, or test set; None if it is the union of the clients' own."""
        given = self.given[part]
        if isinstance(given, DataLoader | TensorLoader):
            return given
        return None if given is None or part in self.readers else self._reader(part, given, self.train_dataloader())

    def test_dataloader(self) -> Any:
        """Return the server's test set; None if it is the union of the clients' own."""
        return self.val_dataloader("test")

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


# ---------------------------------------------------------------- what clients bring


def refuse_package(what: str, given: object) -> None:
    """Refuse an object of the other package.

    Args:
        what: what it is to be, for the message.
        given: the object.

    Raises:
        ConfigurationError: naming it.
    """
    if any(kind.__module__.startswith("pytorch_lightning.") for kind in type(given).__mro__):
        raise ConfigurationError(
            f"{type(given).__name__}, {what}, is not a class of the package 'lightning', with which fl_lightning works: import "
            "from 'lightning.pytorch' instead of 'pytorch_lightning'."
        )


def share_images(clients: Mapping[str, Any]) -> bool:
    """Return whether the clients' datamodules scale and augment images in one way, in a hook that all clients share.

    Raises:
        ConfigurationError: if it is not known that their hooks are alike; it names the client.
    """
    images = [source for source in clients.values() if isinstance(source, ImageDataModule)]
    for name, source in clients.items():
        base = ImageDataModule if isinstance(source, ImageDataModule) else LightningDataModule
        hooks = [f"overrides '{hook}'" for hook in TRANSFER_HOOKS if brings(source, hook, base)]
        differs = images and not images[0].transfers_like(source)
        if hooks or differs:
            raise ConfigurationError(
                f"The {type(source).__name__} of client '{name}' {[*hooks, 'scales or augments images otherwise'][0]}, but all "
                "clients share one way. Give all of them the same 'mean' and 'std' (or 'normalize'), and one object as "
                "'augmentation'; in YAML use one datamodule with 'root: {a: ..., b: ...}' and DomainPartitioner, or let the "
                "LightningModule or the dataset change images."
            )
    return bool(images)


def brings(source: Any, method: str, base: type[LightningDataModule] = LightningDataModule) -> bool:
    """Return whether a client's examples come from a datamodule that overrides a loader or a hook."""
    return isinstance(source, LightningDataModule) and bool(is_overridden(method, source, base))


def said_of_examples(clients: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the clients' datamodules say of their examples, by the attributes that models and reports read.

    Raises:
        ConfigurationError: if they say different things.
    """
    found: dict[str, Any] = {}
    own_kinds = {name: s for name, s in clients.items() if isinstance(s, LightningDataModule) and own_class(type(s))}
    for name in ("schema", "density_scale"):
        said = {client: getattr(source, name, None) for client, source in own_kinds.items()}
        said = {client: value for client, value in said.items() if isinstance(value, Schema | int | float)}
        require_same(name, {c: value.digest() if isinstance(value, Schema) else value for c, value in said.items()})
        if said:
            found[name] = next(iter(said.values()))
    for client, source in own_kinds.items():
        known = "false, since each client's table would be scaled by its own rows, and the same number mean different things"
        own, hint = getattr(source, "standardize", False), "Let the model scale by the rows of all clients: Standardized."
        require(own is not True, f"data.clients.{client}.standardize", known, own, hint)
    return found


def require_same(setting: str, values: Mapping[str, Any]) -> None:
    """Refuse a setting that all clients share, but that differs between two of them.

    Args:
        setting: its name.
        values: its value for each client, by name.

    Raises:
        ConfigurationError: naming two clients and their values.
    """
    for name, value in values.items():
        first, one = next(iter(values.items()))
        if value != one:
            raise ConfigurationError(
                f"The clients differ: '{setting}' is {one!r} for '{first}', but {value!r} for '{name}'. All clients share it: "
                "give all of them the same."
            )


def warn_of_unused(clients: Mapping[str, Any], loader: str) -> None:
    """Warn of clients' own sets that are not used, because other clients lack them."""
    having = [name for name, own in clients.items() if brings(own, loader)]
    if having:
        lacking = next(name for name in clients if name not in having)
        rank_zero_warn(
            f"The datamodule of client '{having[0]}' has a '{loader}', but client '{lacking}' has none, so no client's is "
            "used. Give each client one (tables and folders: 'test_share'), or none of them."
        )


def as_loader(given: Any) -> Any:
    """Return a loader of tensors as the DataLoader that reads the same batches; anything else unchanged."""
    return DataLoader(given.dataset, given.batch_size) if isinstance(given, TensorLoader) else given


def training_source(name: str, source: Any) -> Any:
    """Return a client's training DataLoader, or its dataset.

    Args:
        name: the client's name.
        source: what it brings.

    Raises:
        DataError: if that is several loaders, or a loader of another kind, whose batches would be batched again.
    """
    module = isinstance(source, LightningDataModule)
    with of_client(name):
        given = source.train_dataloader() if module else source
    another = module or any(kind.__name__.endswith("Loader") for kind in type(given).__mro__)
    if another and not isinstance(given, DataLoader):
        raise DataError(
            f"Client '{name}' trains on a {type(given).__name__}, but needs a single torch DataLoader. Join several datasets, "
            "and for batches from elsewhere write DataLoader(stream, batch_size=None), over an IterableDataset of them."
        )
    return given
