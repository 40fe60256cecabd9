"""Index clients' files in about 40 bytes for each client, so that a million of them fit into memory and a small file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.clients.stored_state import StoredState, client_file

_DIGEST = 16
"""The bytes of a digest."""


@dataclass(frozen=True, eq=False)
class StateIndex:
    """Map clients to the files of their state; immutable.

    Attributes:
        clients: the clients, ascending, int64, shape (n,).
        digests: the digest of each file, uint8, shape (n, 16).
        sizes: the bytes that each file takes on the disk, int64, shape (n,).
        kinds: the number of each file's folder and shapes in ``forms``, int64, shape (n,).
        forms: the folders in which files were written, with the shapes of their tensors; most clients share one.
    """

    clients: Tensor
    digests: Tensor
    sizes: Tensor
    kinds: Tensor
    forms: tuple[tuple[str, dict[str, list[int]]], ...]

    @classmethod
    def of(cls, stored: Mapping[int, StoredState]) -> StateIndex:
        """Return the index of these files."""
        found: dict[Any, int] = {}
        kinds = [found.setdefault(_key(one), len(found)) for one in stored.values()]
        forms = tuple((folder, {name: list(shape) for name, shape in shapes}) for folder, shapes in found)
        digests = np.frombuffer(bytearray.fromhex("".join(one.digest for one in stored.values())), np.uint8)
        columns = [*stored], [one.nbytes for one in stored.values()], kinds
        clients, sizes, numbers = (torch.tensor(column, dtype=torch.int64) for column in columns)
        return cls(clients, torch.from_numpy(digests).reshape(len(stored), _DIGEST), sizes, numbers, forms)._sorted()

    def __len__(self) -> int:
        return len(self.clients)

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes that all files take on the disk."""
        return int(self.sizes.sum())

    def nbytes_of(self, clients: Sequence[int]) -> int:
        """Return the bytes that the files of some clients take."""
        return int(self.sizes[torch.isin(self.clients, torch.tensor(clients, dtype=torch.int64))].sum())

    def get(self, client: int) -> StoredState | None:
        """Return a client's file; None without one."""
        if not len(self.clients):  # as in most runs, of which nothing need be read for each client
            return None
        place = int(torch.searchsorted(self.clients, client))
        if place == len(self.clients) or int(self.clients[place]) != client:
            return None
        folder, shapes = self.forms[int(self.kinds[place])]
        digest = bytes(self.digests[place].tolist()).hex()
        return StoredState(client_file(client, digest), folder, digest, shapes, int(self.sizes[place]))

    def merged(self, other: StateIndex) -> StateIndex:
        """Return the index of the files of both; those of ``other`` replace those of the same clients."""
        stays = ~torch.isin(self.clients, other.clients)
        forms = {_form_key(form): form for form in (*self.forms, *other.forms)}
        numbers = {key: number for number, key in enumerate(forms)}
        own, others = ([numbers[_form_key(form)] for form in one.forms] for one in (self, other))
        kinds = torch.cat([_renumbered(self.kinds, own)[stays], _renumbered(other.kinds, others)])
        clients, digests, sizes = (
            torch.cat([mine[stays], theirs])
            for mine, theirs in ((self.clients, other.clients), (self.digests, other.digests), (self.sizes, other.sizes))
        )
        return StateIndex(clients, digests, sizes, kinds, tuple(forms.values()))._sorted()

    def plain(self) -> dict[str, Any]:
        """Return the index as tensors and plain values, for a checkpoint or a file."""
        columns = {name: getattr(self, name) for name in ("clients", "digests", "sizes", "kinds")}
        return columns | {"forms": [[folder, dict(shapes)] for folder, shapes in self.forms]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> StateIndex:
        """Return the index of :meth:`plain`."""
        return cls(**{**plain, "forms": tuple((folder, dict(shapes)) for folder, shapes in plain["forms"])})

    def _sorted(self) -> StateIndex:
        order = self.clients.argsort()
        return StateIndex(self.clients[order], self.digests[order], self.sizes[order], self.kinds[order], self.forms)


def _renumbered(kinds: Tensor, numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)[kinds]


def _key(stored: StoredState) -> Any:
    return _form_key((stored.folder, stored.shapes))


def _form_key(form: tuple[str, Mapping[str, list[int]]]) -> Any:
    folder, shapes = form
    return folder, tuple((name, tuple(shape)) for name, shape in shapes.items())
