"""Use each client's own training loader as it is: streams, samplers of batches, and subclasses of DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fl_lightning.data.client_datasets import ClientDatasets
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.samplers import is_plain
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.functional.seeding import derive_seed, reseed
from fl_lightning.messages import Part

_NO_SETTING = (
    "Each client reads with a loader of its own (a stream, a sampler or a class of its own), so '{}' cannot change its "
    "examples. Remove it, or give datasets or plain DataLoaders."
)


def reads_alone(loader: DataLoader[Any]) -> bool:
    """Return whether a loader must be used as it is, because parts of the data would not be read in its way."""
    streams = isinstance(loader.dataset, IterableDataset)
    own_batches = type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None  # given as 'batch_sampler'
    if streams or own_batches or type(loader) is not DataLoader:
        return True
    return not is_plain(loader.sampler)


def known_size(loader: Any) -> int | None:
    """Return the number of a client's examples; None for a stream without a length."""
    try:
        return len(loader.dataset)
    except TypeError:
        return None


def is_unknown(loader: Any) -> bool:
    """Return whether a loader reads a stream without a length."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset) and known_size(loader) is None


class OwnLoaders(ClientDatasets):
    """Hold the loader of each client. The examples of a stream without a length are counted while a client trains on them.

    Args:
        splits: the clients' validation and test parts, and the sizes of their training sets, 1 if unknown.
        loaders: each client's training loader, by name, in the order of the clients.
        evaluation: a loader over the clients' validation and test sets.
    """

    def __init__(self, splits: ClientSplits, loaders: Mapping[str, DataLoader[Any]], evaluation: DataLoader[Any]) -> None:
        super().__init__(splits, evaluation, None, None, None)
        self._loaders = list(loaders.values())

    def size_is_unknown(self, client: int) -> bool:
        """Return whether a client reads a stream without a length."""
        return is_unknown(self._loaders[client])

    def training_loader(self, client: int, seed: int, full_batch: bool, drop_single: bool, poisson: Any = None) -> Any:
        """Return a client's loader, with its generators seeded; see :meth:`FederatedDataModule.client`.

        Raises:
            ConfigurationError: if a setting asks for other batches.
        """
        for setting, used in (("federation.local.full_batch", full_batch), ("federation.local.privacy", poisson is not None)):
            if used:
                raise ConfigurationError(_NO_SETTING.format(setting))
        loader = self._loaders[client]
        for part in (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
            for name, value in getattr(part, "__dict__", {}).items():
                reseed(value, derive_seed(seed, name))
        return loader

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return the clients' training loaders one after another, or another part of all clients in order."""
        return _OneAfterAnother(self._loaders) if part == "training" else super().union_loader(part, batch_size)

    def mislabel(self, attacks: Mapping[int, Any], seed: int, backdoors: Mapping[int, Any] | None = None) -> None:
        """Refuse attackers that change labels.

        Raises:
            ConfigurationError: if there are any.
        """
        if attacks or backdoors:
            raise ConfigurationError(_NO_SETTING.format("federation.attackers"))

    def place(self, device: torch.device, limit: float | None) -> None:
        """Do nothing: the clients' examples are not indexed."""

    def all_labels(self) -> Tensor:
        """Refuse to read the labels.

        Raises:
            DataError: always.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DataError(
            "The labels of clients that read with loaders of their own are not known beforehand. Use settings that do not need "
            "them, or give datasets."
        )


class _OneAfterAnother:
    """Read several loaders, one after another."""

    def __init__(self, loaders: Sequence[DataLoader[Any]]) -> None:
        self._loaders = loaders

    def __len__(self) -> int:
        return sum(map(len, self._loaders))

    def __iter__(self) -> Iterator[Any]:
        for loader in self._loaders:
            yield from loader
