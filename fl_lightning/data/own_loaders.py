"""Use each client's own training loader as it is: streams, samplers of batches, and subclasses of DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fl_lightning.data.client_source import ClientSource
from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.data.loaders import part_loader
from fl_lightning.data.readers import OneAfterAnother
from fl_lightning.data.samplers import is_plain, yields
from fl_lightning.errors import DataError
from fl_lightning.functional.seeding import derive_seed, reseed
from fl_lightning.messages import Part


def reads_alone(loader: DataLoader[Any]) -> bool:
    """Return whether a loader must be used as it is, because parts of the data would not be read in its way."""
    if is_stream(loader) or _own_batches(loader) or type(loader) is not DataLoader:
        return True
    return not is_plain(loader.sampler)


def _own_batches(loader: DataLoader[Any]) -> bool:
    return type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None  # given as 'batch_sampler'


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
    if size is None or isinstance(loader.dataset, IterableDataset) or (is_plain(loader.sampler) and not _own_batches(loader)):
        return size or 1
    found = yields(loader)
    if found is None:
        own = loader.batch_sampler if _own_batches(loader) else loader.sampler
        rank_zero_warn(
            f"It is not known which examples the sampler of client '{name}' reads ({type(own).__name__}), so the client counts "
            f"with all {size} of its dataset. If it never reads some of them, give the loader a dataset without those."
        )
    return size if found is None else max(1, found.numel())


def is_stream(loader: Any) -> bool:
    """Return whether a loader reads a stream."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


def is_unknown(loader: Any) -> bool:
    """Return whether a loader reads a stream without a length."""
    return is_stream(loader) and known_size(loader) is None


# ---------------------------------------------------------------- what is no DataLoader


class _Batches(IterableDataset[Any]):
    """Present the batches of a loader of another kind as a stream, whose examples are counted as they are read."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.loader, name)


def is_loader(given: Any) -> bool:
    """Return whether an object yields batches, like webdataset's ``WebLoader`` or NVIDIA's iterators, rather than examples."""
    named = any(kind.__name__.endswith("Loader") for kind in type(given).__mro__)
    iterates = hasattr(given, "__iter__") and not hasattr(given, "__getitem__") and not isinstance(given, IterableDataset)
    return named or iterates


def loader_of_batches(name: str, given: Any) -> DataLoader[Any]:
    """Return a DataLoader that passes on the batches of another kind of loader.

    Args:
        name: the client's name.
        given: the loader.

    Raises:
        DataError: if it is a list of loaders, or nothing that can be iterated over.
    """
    if isinstance(given, list | tuple) or not hasattr(given, "__iter__"):
        raise DataError(
            f"'train_dataloader' of client '{name}' returns a {type(given).__name__}, but a client trains on a single loader. "
            "Return a DataLoader."
        )
    return DataLoader(_Batches(given), batch_size=None, collate_fn=_as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


def warn_of_batches(name: str, examples: Any) -> None:
    """Warn of a list whose elements look like batches, because it is taken for a list of examples, which are batched.

    Args:
        name: the client's name.
        examples: the list, or a dataset of another kind, which is left alone.
    """
    if not isinstance(examples, list | tuple) or not isinstance(examples[0], list | tuple) or len(examples[0]) < 2:
        return
    tensors = [one for one in examples[0] if isinstance(one, Tensor)]
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in tensors}
    if len(tensors) == len(examples[0]) and len(sizes) == 1 and sizes != {0} and not tensors[-1].is_floating_point():
        rank_zero_warn(
            f"The examples of client '{name}' are a list whose first element has tensors of the shapes "
            f"{', '.join(str(tuple(tensor.shape)) for tensor in tensors)}. Each element is taken for one example. If they are "
            "batches, pass DataLoader(batches, batch_size=None)."
        )


class OwnLoaders(ClientSource):
    """Hold the loader of each client. The examples of a stream without a length are counted while a client trains on them.

    Args:
        splits: the clients' validation and test parts, and the sizes of their training sets, 1 if unknown.
        loaders: each client's training loader, by name, in the order of the clients.
        evaluation: the clients' validation and test sets.
    """

    reason = "Each client reads with a loader of its own (a stream, a sampler or a class of its own)"

    def __init__(self, splits: ClientSplits, loaders: Mapping[str, DataLoader[Any]], evaluation: DataLoader[Any]) -> None:
        self.splits, self.source, self._loaders = splits, evaluation, list(loaders.values())

    def size_is_unknown(self, client: int) -> bool:
        """Return whether a client reads a stream without a length."""
        return is_unknown(self._loaders[client])

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
        return part_loader(self.source, self.source.dataset, self.part(part)[client], batch_size)

    def union_loader(self, part: Part, batch_size: int) -> Any:
        """Return the clients' loaders one after another."""
        clients = range(len(self._loaders))
        each = self._loaders if part == "training" else [self.evaluation_loader(k, part, batch_size) for k in clients]
        return OneAfterAnother(each)
