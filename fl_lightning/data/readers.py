"""Choose the loader whose collation and workers read each part of a client's examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

from torch.utils.data import DataLoader

from fl_lightning.messages import Part

_SETTINGS = ("num_workers", "pin_memory", "timeout", "multiprocessing_context", "prefetch_factor")
_FUNCTIONS = ("collate_fn", "worker_init_fn")


class Readers:
    """Find the loader for a client's part: its own, or that of the one training set that was divided.

    Examples are evaluated as a validation loader reads them, because a training loader's collation may augment.

    Args:
        validation: returns the loader of the server's validation set; None if there is none.
        own: each client's own loaders by part, in the order of the clients; empty if one training set was divided.
    """

    def __init__(
        self,
        validation: Callable[[], Any] | None = None,
        own: Mapping[Part, Sequence[DataLoader[Any]]] | None = None,
    ) -> None:
        self._validation, self._own = validation, own or {}
        self._found: Any = None

    def in_order(self, clients: Sequence[int]) -> Readers:
        """Return readers in which client k reads as client ``clients[k]`` does here."""
        return Readers(self._validation, {part: [own[k] for k in clients] for part, own in self._own.items() if own})

    def training(self, client: int, source: DataLoader[Any]) -> DataLoader[Any]:
        """Return the loader on which a client trains.

        Args:
            client: the client's id.
            source: the loader of the whole training set.
        """
        return self._own["training"][client] if "training" in self._own else source

    def evaluation(self, client: int, part: Part, source: DataLoader[Any]) -> DataLoader[Any]:
        """Return the loader that shows how a part of a client's examples is read when it is evaluated."""
        own: tuple[Part, ...] = (part, "validation", "test") if part != "training" else ("validation", "test")
        for kind in own:
            if self._own.get(kind):
                return self._own[kind][client]
        if self._found is None and self._validation is not None:
            self._found = first_loader(self._validation())
        return self._found if isinstance(self._found, DataLoader) else self.training(client, source)

    def alike(self, part: Part, clients: int, source: DataLoader[Any]) -> bool:
        """Return whether the examples of all clients are read in the same way when a part of them is evaluated."""
        first = self.evaluation(0, part, source)
        return all(reads_alike(first, self.evaluation(client, part, source)) for client in range(1, clients))


def first_loader(loaders: Any) -> Any:
    """Return the first of one or several loaders."""
    while isinstance(loaders, Mapping | list | tuple) and len(loaders):
        loaders = next(iter(loaders.values())) if isinstance(loaders, Mapping) else loaders[0]
    return loaders


def reads_alike(one: DataLoader[Any], other: DataLoader[Any]) -> bool:
    """Return whether two loaders have the same workers and the same functions; two equal lambdas are not known to be."""
    same = all(getattr(one, name) == getattr(other, name) for name in _SETTINGS)
    return same and all(same_function(getattr(one, name), getattr(other, name)) for name in _FUNCTIONS)


def same_function(one: Any, other: Any) -> bool:
    """Return whether two functions are one, or the same method of one object."""
    return one is other or (isinstance(one, MethodType) and bool(one == other))


class OneAfterAnother:
    """Read several loaders, one after another."""

    def __init__(self, loaders: Sequence[Any]) -> None:
        self._loaders = loaders

    def __len__(self) -> int:
        return sum(map(len, self._loaders))

    def __iter__(self) -> Iterator[Any]:
        for loader in self._loaders:
            yield from loader
