"""Open a client's loader at its turn: examples read when the client is drawn, or a loader that is used as it is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning.data.changes import NOTHING
from fl_lightning.data.client_datasets import ClientDatasets, OneAfterAnother
from fl_lightning.data.client_source import ClientSource, Sizes
from fl_lightning.data.client_splits import ClientSplits, whole_numbers
from fl_lightning.data.labels import read_persons
from fl_lightning.data.samplers import is_plain, own_batches, yields
from fl_lightning.data.tensor_loader import PoissonBatches
from fl_lightning.errors import DataError, add_note, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import derive_seed, reseed
from fl_lightning.messages import Part
from fl_lightning.utilities.argument_types import ChecksTypes


@contextmanager
def of_client(name: str) -> Iterator[None]:
    """Name a client in the errors of its own code that loads its data."""
    try:
        yield
    except Exception as error:
        add_note(error, f"In the data of client '{name}'.")
        raise


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


class LazyClients(ChecksTypes, LightningDataModule):
    """Describe clients whose examples are read when they are drawn, and released after their turn.

    Pass it to :class:`~fl_lightning.FederatedDataModule` without a partitioner. Subclasses define :meth:`num_examples` and
    :meth:`open`, and ``val_dataloader`` and ``test_dataloader`` for the server's sets.

    Args:
        batch_size: the examples per batch, >= 1.
        shuffle: whether clients shuffle their training examples.
        collate_fn: the function that makes a batch of examples; torch's by default.
    """

    def __init__(
        self, batch_size: int = 32, shuffle: bool = True, collate_fn: Callable[[list[Any]], Any] | None = None
    ) -> None:
        super().__init__()
        require(batch_size >= 1, "data.datamodule.batch_size", "1 or above", batch_size)
        self.batch_size, self.shuffle, self.collate_fn = batch_size, shuffle, collate_fn

    @abstractmethod
    def num_examples(self) -> Sequence[int] | Tensor:
        """Return the number of training examples of each client, >= 1, without reading them; called after ``setup``."""

    @abstractmethod
    def open(self, client: int) -> Dataset[Any]:
        """Return the training examples of one client, a dataset with a length.

        Args:
            client: the client's id, from 0.
        """


class LazyDatasets(ClientSource):
    """Open a client's examples for each of its turns. No reference to them is kept.

    Args:
        clients: the clients, after ``setup``.

    Raises:
        DataError: if ``num_examples`` are not whole numbers of 1 or above.
    """

    reason = "The clients' examples are read when the clients are drawn"

    def __init__(self, clients: LazyClients) -> None:
        self._clients = clients
        sizes = whole_numbers(clients.num_examples(), "'num_examples' is", "Return one for each client.")
        if not sizes.numel() or int(sizes.min()) < 1:
            found = f"{int(sizes.min())} for client {int(sizes.argmin())}" if sizes.numel() else "no numbers"
            raise DataError(f"'num_examples' has {found}. Give each client a number of 1 or above, and leave out the others.")
        self.splits = ClientSplits(Sizes(sizes))
        self.source = self._loader(TensorDataset(NOTHING))

    def _loader(self, dataset: Any) -> DataLoader[Any]:
        own, shuffle = self._clients, self._clients.shuffle and len(dataset) > 0
        return DataLoader(dataset, own.batch_size, shuffle=shuffle, collate_fn=own.collate_fn)

    def _open(self, client: int) -> ClientDatasets:
        """Return a client's examples, opened now, as those of a single client.

        Raises:
            DataError: if they are no dataset, or not as many as ``num_examples`` says.
        """
        with of_client(str(client)):
            dataset: Any = self._clients.open(client)
        size, found = self.splits.training[client].numel(), len(sized(str(client), dataset))
        if found != size:
            raise DataError(
                f"Client {client} has {found} examples, but its 'num_examples', by which it is weighed, is {size}. Make both "
                "agree."
            )
        return ClientDatasets(ClientSplits(Partition(torch.arange(size), torch.tensor([0, size]))), self._loader(dataset))

    def training_loader(
        self, client: int, seed: int, full_batch: bool, drop_single: bool, poisson: PoissonBatches | None = None
    ) -> Any:
        """Return a client's examples, opened now."""
        opened = self._open(client)
        if poisson is not None and read_persons(opened.source.dataset) is not None:
            # epsilon of a person would need all clients that hold it
            self.refuse(f"their persons are not known beforehand, which '{poisson.setting}' needs")
        return opened.training_loader(0, seed, full_batch, drop_single, poisson)

    def persons_of(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each of a client's examples, opened now; None if they name no persons."""
        return read_persons(self._open(client).source.dataset)

    def evaluation_loader(self, client: int, part: Part, batch_size: int) -> Any:
        """Return a client's training examples in order, each once, opened now."""
        self.part(part)
        return self._open(client).evaluation_loader(0, "training", batch_size)

    def part(self, part: Part) -> Partition:
        """Return the sizes of the clients' training examples; clients have no other part."""
        return self.splits.training if part == "training" else self.refuse(f"they have no {part} part")

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return the clients' training examples, opened one after another."""
        sizes = self.part(part).sizes
        turns = (partial(self.evaluation_loader, client, part, batch_size) for client in range(len(sizes)))
        return OneAfterAnother(list(turns), int((-(-sizes // batch_size)).sum()))


# ---------------------------------------------------------------- loaders that are used as they are


def reads_alone(loader: DataLoader[Any]) -> bool:
    """Return whether a loader must be used as it is, because parts of the data would not be read in its way."""
    return is_stream(loader) or own_batches(loader) or type(loader) is not DataLoader or not is_plain(loader.sampler)


def known_size(loader: Any) -> int | None:
    """Return the number of a client's examples; None for a stream without a length. A stream may yield fewer."""
    try:
        return len(loader.dataset)
    except TypeError:
        return None


def size_of(name: str, loader: DataLoader[Any]) -> int:
    """Return the number of examples that a client's loader can yield; 1 for a stream without a length.

    A sampler of another class than torch's counts with all examples of the dataset, and a warning says so.

    Args:
        name: the client's name.
        loader: its training loader.
    """
    size = known_size(loader)
    if size is None or isinstance(loader.dataset, IterableDataset) or (is_plain(loader.sampler) and not own_batches(loader)):
        return size or 1
    found = yields(loader)
    if found is None:
        own = loader.batch_sampler if own_batches(loader) else loader.sampler
        rank_zero_warn(
            f"It is not known which examples the sampler of client '{name}' reads ({type(own).__name__}), so the client counts "
            f"with all {size} of its dataset. If it never reads some of them, give the loader a dataset without those."
        )
    return size if found is None else max(1, found.numel())


def is_stream(loader: Any) -> bool:
    """Return whether a loader reads a stream."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


class OwnLoaders(ClientSource):
    """Hold the loader of each client. The examples of a stream without a length are counted while a client trains on them.

    Args:
        sets: the clients' validation and test sets, and the sizes of their training sets, 1 if unknown.
        loaders: each client's training loader, in the order of the clients.
    """

    reason = "Each client reads with a loader of its own (a stream, a sampler or a class of its own)"

    def __init__(self, sets: ClientDatasets, loaders: Sequence[DataLoader[Any]]) -> None:
        self.splits, self.source, self._sets, self._loaders = sets.splits, sets.source, sets, loaders

    def size_is_unknown(self, client: int) -> bool:
        """Return whether a client reads a stream without a length."""
        return self.streams(client) and known_size(self._loaders[client]) is None

    def streams(self, client: int) -> bool:
        """Return whether a client reads a stream."""
        return is_stream(self._loaders[client])

    def training_loader(self, client: int, seed: int, full_batch: bool, drop_single: bool, poisson: Any = None) -> Any:
        """Return a client's loader, with its generators seeded.

        Raises:
            DataError: if a setting asks for other batches.
        """
        if full_batch or poisson is not None:
            self.refuse(f"'{'federation.local.full_batch' if full_batch else poisson.setting}' cannot change its batches")
        loader = self._loaders[client]
        for part in (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
            for name, value in getattr(part, "__dict__", {}).items():
                reseed(value, derive_seed(seed, name))
        return loader

    def evaluation_loader(self, client: int, part: Part, batch_size: int) -> Any:
        """Return a client's own validation or test set."""
        if part == "training":
            self.refuse("its training examples cannot be evaluated on")
        return self._sets.evaluation_loader(client, part, batch_size)

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return a part of all clients; of their training sets, the clients' loaders one after another."""
        return OneAfterAnother(self._loaders) if part == "training" else self._sets.union_loader(part, batch_size)
