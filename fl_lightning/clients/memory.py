"""What clients keep over rounds: tensors of their rules and transforms, and models of their own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.clients.stored_state import ClientFiles, Kept, StoredState
from fl_lightning.types import Snapshot


class ClientMemory:
    """Every rank knows every client's state, brought up to date after each round: any may train any client next.

    It lies in the CPU's memory, and in files of the run's folder where it takes more than the limit of :meth:`bound`.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Kept | StoredState] = {}
        self._changed: set[int] = set()
        self._files, self._limit = ClientFiles(Path("client_state")), math.inf
        self._loaded: tuple[StoredState, Kept] | None = None

    def bound(self, folder: Path, limit: float) -> None:
        """Set where files lie, and how many bytes may stay in memory."""
        self._files, self._limit = ClientFiles(folder), limit

    def forget(self) -> None:
        """Begin anew: the first round starts."""
        self._kept, self._changed, self._loaded = {}, set(), None

    def last_model(self, client: int) -> Snapshot | None:
        """The model that a client has kept; None where it keeps none."""
        kept = self.kept(client)
        return Snapshot(kept["vector"], kept["counters"]) if "vector" in kept else None

    def keep_model(self, client: int, model: Snapshot) -> None:
        """Keep the model that a client trained."""
        self.put(client, vector=model.vector, counters=model.counters)

    def vectors(self) -> Iterator[tuple[str, int]]:
        """Name and length of what clients keep that may be of all parameters of a model."""
        for kept in self._kept.values():
            shapes: Mapping[str, Sequence[int]]
            shapes = kept.shapes if isinstance(kept, StoredState) else {name: tensor.shape for name, tensor in kept.items()}
            yield from ((name, shape[0]) for name, shape in shapes.items() if len(shape) == 1 and name != "counters")

    def former_scores(self) -> dict[int, float]:
        """Return the scores that checkpoints of version 0.1 kept here, by client."""
        found = {client: self.kept(client).get("score") for client in self._kept}
        return {client: float(score) for client, score in found.items() if score is not None}

    def drawer(self, client: int, prefix: str) -> MutableMapping[str, Tensor]:
        """Return a view of the client's state under names that begin with a prefix; it reads and writes through."""
        return _Drawer(self, client, prefix)

    def kept(self, client: int) -> Kept:
        """All that a client keeps."""
        kept = self._kept.get(client, {})
        if not isinstance(kept, StoredState):
            return kept
        if self._loaded is None or self._loaded[0] != kept:
            self._loaded = kept, self._files.read(kept)
        return self._loaded[1]

    def entry(self, client: int) -> Kept | StoredState:
        """Return the entry that :meth:`restore` takes back later."""
        kept = self._kept.get(client, {})
        return kept if isinstance(kept, StoredState) else dict(kept)

    def restore(self, client: int, kept: Kept | StoredState) -> None:
        """Let a client keep what it kept before."""
        self._kept[client] = kept
        self._changed.add(client)

    def put(self, client: int, **kept: Tensor) -> None:
        """Keep tensors by name."""
        self._kept[client] = self.kept(client) | {name: tensor.cpu() for name, tensor in kept.items()}
        self._loaded = None
        if client not in self._changed and self._in_memory(self._changed) > self._limit:  # what is done in this round
            self._write(self._changed)
        self._changed.add(client)

    def sizes(self) -> dict[int, int]:
        """Bytes in memory of what has changed since :meth:`changes`, by client."""
        return {client: self._in_memory([client]) for client in self._changed}

    def settle(self, sizes: Mapping[int, int]) -> None:
        """Write what changed on this rank, and on every rank alike the rest, where everything together is above the limit.

        Args:
            sizes: of all ranks' changed clients.
        """
        others = set(self._kept) - set(sizes)
        if sum(sizes.values()) + self._in_memory(others) <= self._limit:
            return
        self._write(self._changed)
        self._write(others)  # the same contents and so the same files on every rank
        self._loaded = None

    def changes(self) -> dict[int, Kept | StoredState]:
        """Return what changed since the last call, by client."""
        changed = {client: self._kept[client] for client in self._changed}
        self._changed = set()
        return changed

    def update(self, kept: Mapping[int, Kept | StoredState]) -> None:
        """Take over what other ranks' clients keep."""
        self._kept |= kept

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """Everything, for a checkpoint: tensors, and of what lies in files their names and digests."""
        entries = sorted(self._kept.items())
        return {client: kept.plain() if isinstance(kept, StoredState) else dict(kept) for client, kept in entries}

    def load_state_dict(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Take everything back."""
        self.forget()
        self._kept = {
            client: StoredState(**kept["stored"]) if "stored" in kept else dict(kept) for client, kept in state.items()
        }

    def sweep(self, needed: Collection[str]) -> None:
        """Delete files that neither this round nor checkpoints refer to.

        Args:
            needed: names of files that checkpoints refer to.
        """
        self._files.sweep({*needed, *(kept.file for kept in self._kept.values() if isinstance(kept, StoredState))})

    @property
    def has_files(self) -> bool:
        """Whether something lies in files."""
        return any(isinstance(kept, StoredState) for kept in self._kept.values())

    def _in_memory(self, clients: Collection[int]) -> int:
        entries = (self._kept.get(client, {}) for client in clients)
        return sum(t.nbytes for kept in entries if not isinstance(kept, StoredState) for t in kept.values())

    def _write(self, clients: Collection[int]) -> None:
        for client in clients:
            kept = self._kept[client]
            if not isinstance(kept, StoredState) and kept:
                self._kept[client] = self._files.write(client, kept)


class _Drawer(MutableMapping[str, Tensor]):
    def __init__(self, memory: ClientMemory, client: int, prefix: str) -> None:
        self._memory, self._client, self._prefix = memory, client, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._memory.kept(self._client)[self._prefix + name]

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._memory.put(self._client, **{self._prefix + name: tensor})

    def __delitem__(self, name: str) -> None:
        raise TypeError("What a client keeps is overwritten, not deleted.")

    def __iter__(self) -> Iterator[str]:
        return (n.removeprefix(self._prefix) for n in self._memory.kept(self._client) if n.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
