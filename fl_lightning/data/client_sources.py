"""Check what a client brings as its examples, and join datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from fl_lightning.data.in_memory import ImageDataModule, named_dataset
from fl_lightning.data.labels import names_of
from fl_lightning.data.schema import Schema
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import TRANSFER_HOOKS
from fl_lightning.errors import ConfigurationError, DataError, add_note, require
from fl_lightning.functional.description import own_class


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


@contextmanager
def of_client(name: str) -> Iterator[None]:
    """Name a client in the errors of its own code that loads its data."""
    try:
        yield
    except Exception as error:
        add_note(error, f"In the data of client '{name}'.")
        raise


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


def sized(name: str, dataset: Any) -> Any:
    """Return a dataset after checking that it has a length and examples.

    Raises:
        DataError: if it does not; it names the client.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"The examples of client '{name}' are a {type(dataset).__name__}, but must be a dataset with '__len__' and "
            "'__getitem__'."
        )
    with of_client(name):
        size = len(dataset)
    if not size:
        raise DataError(
            f"Client '{name}' has no examples in one of its sets ({type(dataset).__name__}). Remove the client, or add some."
        )
    return dataset


def joined(sets: list[Any]) -> Any:
    """Return datasets as one; tensors of equal shapes are joined, so that batches are indexed at once, with equal names."""
    if all(type(own) is TensorDataset for own in sets):
        columns = list(zip(*(own.tensors for own in sets), strict=False))
        kinds = {tuple((t.dtype, t.shape[1:]) for t in own.tensors) for own in sets}
        if len(kinds) == 1:
            named = {kind: names_of(ConcatDataset(sets), kind) for kind in ("classes", "feature_names")}
            return named_dataset(
                [torch.cat(column) for column in columns], **{kind: names for kind, names in named.items() if names}
            )
    return ConcatDataset(sets)
