"""Read clients' examples when the clients are drawn, instead of all of them before the first round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_sources import of_client
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.given_loaders import GivenLoaders
from fl_lightning.data.labels import read_persons
from fl_lightning.data.loaders import client_loader, part_loader
from fl_lightning.data.own_loaders import is_loader
from fl_lightning.data.poisson_loader import PoissonBatches
from fl_lightning.data.readers import OneAfterAnother
from fl_lightning.data.remote import RemotePartition
from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.messages import Part
from fl_lightning.utilities.argument_types import ChecksTypes

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


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


class OpenedClients(GivenLoaders, LazyClients):
    """Describe clients by a function that opens one of them; see :meth:`~fl_lightning.FederatedDataModule.from_clients`."""

    def __init__(
        self,
        opens: Callable[[int], Dataset[Any]],
        num_clients: int | None,
        num_examples: int | Sequence[int] | Tensor | None,
        val: Any,
        test: Any,
        batch_size: int,
        shuffle: bool,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        if num_clients is None or num_examples is None:
            name = "num_clients" if num_clients is None else "num_examples"
            raise ConfigurationError(
                f"'{name}' is missing, which must be known without reading the clients' examples. Write "
                "FederatedDataModule.from_clients(open_client, num_clients=1000, num_examples=20), or give 'num_examples' one "
                "number for each client."
            )
        require(isinstance(num_clients, int) and num_clients >= 1, "num_clients", "a whole number of 1 or above", num_clients)
        for part, given in (("val", val), ("test", test)):
            wanted = "the server's dataset or DataLoader if clients are opened by a function"
            require(not isinstance(given, Mapping), part, wanted, type(given).__name__)
        val, test = (
            one if one is None or is_loader(one) else DataLoader(one, batch_size, collate_fn=collate_fn) for one in (val, test)
        )
        GivenLoaders.__init__(self, None, val, test)
        LazyClients.__init__(self, batch_size, shuffle, collate_fn)
        self._opens, self._num_clients, self._num_examples = opens, num_clients, num_examples

    def num_examples(self) -> Sequence[int] | Tensor:
        """Return the numbers that were given.

        Raises:
            ConfigurationError: if they are not one for each client.
        """
        given, clients = self._num_examples, self._num_clients
        if not hasattr(given, "__len__"):
            return _whole_numbers([given]).expand(clients)
        numbers = _whole_numbers(given)
        require(len(numbers) == clients, "num_examples", f"one number for each of {clients} clients", len(numbers))
        return numbers

    def open(self, client: int) -> Dataset[Any]:
        """Call the function."""
        return self._opens(client)


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
        sizes = _whole_numbers(clients.num_examples())
        if not sizes.numel() or int(sizes.min()) < 1:
            found = f"{int(sizes.min())} for client {int(sizes.argmin())}" if sizes.numel() else "no numbers"
            raise DataError(f"'num_examples' has {found}. Give each client a number of 1 or above, and leave out the others.")
        empty = torch.zeros(0, dtype=torch.int64)
        self.splits = ClientSplits(RemotePartition(sizes, None), None, None, empty)
        self.source = self._loader(TensorDataset(empty))

    def _loader(self, dataset: Any) -> DataLoader[Any]:
        own, shuffle = self._clients, self._clients.shuffle and len(dataset) > 0
        return DataLoader(dataset, own.batch_size, shuffle=shuffle, collate_fn=own.collate_fn)

    def _open(self, client: int) -> tuple[DataLoader[Any], Tensor]:
        """Return a loader of a client's examples, and their indices.

        Raises:
            DataError: if they are no dataset, or not as many as ``num_examples`` says.
        """
        with of_client(str(client)):
            dataset: Any = self._clients.open(client)
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise DataError(
                f"Client {client} was opened as a {type(dataset).__name__}, but must be a dataset with '__len__' and "
                "'__getitem__'. Return the dataset; batches are set by 'batch_size' and 'collate_fn'."
            )
        size = self.splits.training[client].numel()
        if len(dataset) != size:
            raise DataError(
                f"Client {client} has {len(dataset)} examples, but its 'num_examples' is {size}. Make both agree: clients"
                " are weighed by it."
            )
        return self._loader(dataset), torch.arange(size)

    def training_loader(
        self, client: int, seed: int, full_batch: bool, drop_single: bool, poisson: PoissonBatches | None = None
    ) -> Any:
        """Return a client's examples, opened now."""
        source, indices = self._open(client)
        order = torch.Generator().manual_seed(seed)
        if poisson is not None and read_persons(source.dataset) is not None:  # epsilon would need all clients that hold one
            self.refuse(f"their persons are not known beforehand, which '{poisson.setting}' needs")
        return client_loader(source, source.dataset, indices, order, full_batch, drop_single, poisson)

    def persons_of(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each of a client's examples, opened now; None if they name no persons."""
        return read_persons(self._open(client)[0].dataset)

    def evaluation_loader(self, client: int, part: Part, batch_size: int) -> Any:
        """Return a client's training examples in order, each once, opened now."""
        self.part(part)
        source, indices = self._open(client)
        return part_loader(source, source.dataset, indices, batch_size)

    def part(self, part: Part) -> Partition:
        """Return the sizes of the clients' training examples; clients have no other part."""
        return self.splits.training if part == "training" else self.refuse(f"they have no {part} part")

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return the clients' training examples, opened one after another."""
        return OneAfterAnother([_Turn(self, client) for client in range(len(self.part(part)))])


def _whole_numbers(given: Any) -> Tensor:
    try:
        numbers = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        numbers = torch.zeros(())
    if numbers.dim() != 1 or (numbers.numel() and numbers.dtype not in _INTEGERS):
        shown = given if len(repr(given)) < 60 else f"{type(given).__name__} {repr(given)[:50]} ..."
        raise DataError(
            f"'num_examples' must be a whole number for each client, but is {shown}. Give a list or tensor of them."
        )
    return numbers.long()


class _Turn:
    """Open a client each time its examples are read."""

    def __init__(self, datasets: LazyDatasets, client: int) -> None:
        self._datasets, self._client = datasets, client

    def __len__(self) -> int:
        size, own = self._datasets.splits.training[self._client].numel(), self._datasets.source.batch_size or 1
        return -(-size // own)

    def __iter__(self) -> Iterator[Any]:
        yield from self._datasets.evaluation_loader(self._client, "training", self._datasets.source.batch_size or 1)
