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

from fl_lightning.data.class_names import names_of
from fl_lightning.data.in_memory import ImageDataModule
from fl_lightning.data.schema import Schema
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import TRANSFER_HOOKS
from fl_lightning.errors import ConfigurationError, DataError, add_note
from fl_lightning.functional.description import own_class

Source = Any
"""A client's examples: a dataset, a DataLoader, or a LightningDataModule."""
OTHER_PACKAGE = (
    "fl_lightning works with the package 'lightning', whose classes are not those of 'pytorch_lightning': import from "
    "'lightning.pytorch' instead of 'pytorch_lightning'."
)
"""What to do about objects of the other package."""


def refuse_package(clients: Mapping[str, Source]) -> None:
    """Refuse data of the other package.

    Raises:
        ConfigurationError: naming the client.
    """
    for name, source in clients.items():
        if any(kind.__module__.startswith("pytorch_lightning.") for kind in type(source).__mro__):
            raise ConfigurationError(f"The data of client '{name}' are a {type(source).__name__}. {OTHER_PACKAGE}")


def shared_hooks(clients: Mapping[str, Source]) -> list[str]:
    """Return the transfer hooks of the clients' datamodules, which all clients share.

    Raises:
        ConfigurationError: if it is not known that they are alike; it names the client.
    """
    for name, source in clients.items():
        base = ImageDataModule if isinstance(source, ImageDataModule) else LightningDataModule
        hooks = [hook for hook in TRANSFER_HOOKS if is_module(source) and is_overridden(hook, source, base)]
        if hooks:
            raise ConfigurationError(
                f"The datamodule of client '{name}' overrides '{hooks[0]}', which all clients would share. Move it to the "
                "LightningModule, or into the dataset."
            )
    images = [(name, source) for name, source in clients.items() if isinstance(source, ImageDataModule)]
    if not images:
        return []
    first, own = images[0]
    for name, source in clients.items():
        if not own.transfers_like(source):
            raise ConfigurationError(
                f"The {type(own).__name__} of client '{first}' and the {type(source).__name__} of client '{name}' scale or "
                "augment images in different ways, but all clients share one. Give all of them the same 'mean', 'std' (or "
                "'normalize') and 'augmentation'; for a dataset, do it in the LightningModule."
            )
    return ["on_after_batch_transfer"]


def said_of_examples(clients: Mapping[str, Source]) -> dict[str, Any]:
    """Return what the clients' datamodules say of their examples, by the attributes that models and reports read.

    Raises:
        ConfigurationError: if they say different things.
    """
    found: dict[str, Any] = {}
    modules = {name: source for name, source in clients.items() if is_module(source) and own_class(type(source))}
    for name in ("schema", "density_scale"):
        said = {client: getattr(source, name, None) for client, source in modules.items()}
        said = {client: value for client, value in said.items() if isinstance(value, Schema | int | float)}
        for client, value in said.items():
            if value != found.setdefault(name, value):
                raise ConfigurationError(
                    f"'{name}' of the datamodules of clients '{next(iter(said))}' and '{client}' differs, so the same number "
                    "would mean different things. Give both the same."
                )
    if any(getattr(source, "standardize", False) is True for source in modules.values()):
        found["standardize"] = True
        rank_zero_warn(
            "Each client's table is scaled by its own rows ('standardize' of its datamodule is true), so the same number means "
            "different things at different clients. Set it to false, and let the model scale: Standardized uses the rows of "
            "all clients."
        )
    return found


def warn_of_unused(clients: Mapping[str, Source], loader: str) -> None:
    """Warn of clients' own sets that are not used, because other clients lack them."""
    having = [name for name, own in clients.items() if is_module(own) and is_overridden(loader, own, LightningDataModule)]
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


def is_module(source: Source) -> bool:
    """Return whether a client's examples come from a datamodule of its own."""
    return isinstance(source, LightningDataModule)


def dataset_of(given: Any) -> Any:
    """Return the dataset that a loader reads, or the dataset itself."""
    return given.dataset if isinstance(given, DataLoader) else given


def sized(name: str, dataset: Any) -> Any:
    """Return a dataset after checking that it has a length and examples.

    Raises:
        DataError: if it does not; it names the client.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"The examples of client '{name}' are a {type(dataset).__name__}, but must be a dataset with '__len__' and "
            "'__getitem__', a DataLoader, or a LightningDataModule."
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
            whole = TensorDataset(*(torch.cat(column) for column in columns))
            named = {kind: names_of(ConcatDataset(sets), kind) for kind in ("classes", "feature_names")}
            vars(whole).update({kind: names for kind, names in named.items() if names})
            return whole
    return ConcatDataset(sets)
