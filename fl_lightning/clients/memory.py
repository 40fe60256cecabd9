"""Store the state that clients keep between rounds: tensors of rules and transforms, and models of their own."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.clients.stored_state import ClientFiles, Kept, StoredState
from fl_lightning.clients.training.kept_training import NAME, OWN
from fl_lightning.types import Snapshot

_MOVED = "moved "
_HELD = "held "


class ClientMemory:
    """Hold every client's state on every rank, updated after each round, so that any rank can train any client next.

    The state is in CPU memory. Beyond the limit of :meth:`bound`, it is in files in the run's folder.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Kept | StoredState] = {}
        self._changed: set[int] = set()
        self._files, self._limit = ClientFiles(Path("client_state")), math.inf
        self._loaded: tuple[StoredState, Kept] | None = None
        self.undoable = False
        """Whether changes of a round may be undone, so that no stored tensor may be changed in place."""
        self._before: dict[int, Kept | StoredState] = {}  # the entries of clients that changed in this round

    def bound(self, folder: Path, limit: float) -> None:
        """Set the folder of the files, and the number of bytes that may stay in memory."""
        self._files, self._limit = ClientFiles(folder), limit

    def forget(self) -> None:
        """Discard all state before the first round."""
        self._kept, self._changed, self._loaded, self._before = {}, set(), None, {}

    def last_model(self, client: int) -> Snapshot | None:
        """Return the model that a client has stored; None if it has none."""
        kept = self.kept(client)
        moved = {name.removeprefix(_MOVED): tensor for name, tensor in kept.items() if name.startswith(_MOVED)}
        return Snapshot(kept["vector"], kept["counters"], moved) if "vector" in kept else None

    def keep_model(self, client: int, model: Snapshot) -> None:
        """Store the model that a client trained."""
        moved = {_MOVED + name: tensor for name, tensor in model.moved.items()}
        self.put(client, vector=model.vector, counters=model.counters, **moved)

    def held(self, client: int) -> dict[str, Tensor]:
        """Return the parameters and buffers that a client holds, by name; empty before its first training."""
        return held_part(self.kept(client))

    def keep_held(self, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Store the parameters and buffers that a client holds."""
        if tensors:
            self.put(client, **{_HELD + name: tensor for name, tensor in tensors.items()})

    def vectors(self) -> Iterator[tuple[str, int]]:
        """Yield the name and length of stored tensors that may cover all parameters of a model."""
        for kept in self._kept.values():
            shapes: Mapping[str, Sequence[int]]
            shapes = kept.shapes if isinstance(kept, StoredState) else {name: tensor.shape for name, tensor in kept.items()}
            yield from (
                (name, shape[0])
                for name, shape in shapes.items()
                if len(shape) == 1 and name not in ("counters", NAME, OWN) and not name.startswith((_MOVED, _HELD))
            )

    def drawer(self, client: int, prefix: str) -> MutableMapping[str, Tensor]:
        """Return a view, for reading and writing, of the client's tensors whose names begin with a prefix."""
        return _Drawer(self, client, prefix)

    def drawers(self, num_clients: int, prefix: str) -> Sequence[Mapping[str, Tensor]]:
        """Return the drawers of clients 0 to ``num_clients`` - 1, each made when it is read."""
        return _Drawers(self, num_clients, prefix)

    def kept(self, client: int) -> Kept:
        """Return a client's state."""
        kept = self._kept.get(client, {})
        if not isinstance(kept, StoredState):
            return kept
        if self._loaded is None or self._loaded[0] != kept:
            self._loaded = kept, self._files.read(kept)
        return self._loaded[1]

    def undo(self, client: int) -> None:
        """Restore the state that a client had before this round."""
        if client in self._before:
            self._kept[client] = self._before.pop(client)
            self._changed.add(client)

    def end_round(self, accepted: Collection[int]) -> None:
        """Restore the state of the clients whose updates the server did not accept, and keep that of the others."""
        for client in self._before.keys() - set(accepted):
            self.undo(client)
        self._before.clear()

    def put(self, client: int, **kept: Tensor) -> None:
        """Store tensors by name."""
        if self.undoable:
            self._before.setdefault(client, self._kept.get(client, {}))
        self._kept[client] = self.kept(client) | {name: tensor.cpu() for name, tensor in kept.items()}
        self._loaded = None
        if client not in self._changed and self._in_memory(self._changed) > self._limit:  # clients done in this round
            self._write(self._changed)
        self._changed.add(client)

    def sizes(self) -> dict[int, int]:
        """Return the bytes in memory of the state that changed since :meth:`changes`, by client."""
        return {client: self._in_memory([client]) for client in self._changed}

    def settle(self, sizes: Mapping[int, int]) -> None:
        """Write this rank's changes to files, and the rest equally on every rank, if everything together exceeds the limit.

        Args:
            sizes: the sizes of the changed clients of all ranks.
        """
        others = set(self._kept) - set(sizes)
        if sum(sizes.values()) + self._in_memory(others) <= self._limit:
            return
        self._write(self._changed)
        self._write(others)  # equal contents give equal files on every rank
        self._loaded = None

    def changes(self) -> dict[int, Kept | StoredState]:
        """Return the state that changed since the last call, by client."""
        changed = {client: self._kept[client] for client in self._changed}
        self._changed = set()
        return changed

    def update(self, kept: Mapping[int, Kept | StoredState]) -> None:
        """Take over the state of other ranks' clients."""
        self._kept |= kept

    def state_dict(self) -> dict[int, dict[str, Any]]:
        """Return the state of all clients for a checkpoint: tensors, and the names and digests of files."""
        entries = sorted(self._kept.items())
        return {client: kept.plain() if isinstance(kept, StoredState) else dict(kept) for client, kept in entries}

    def load_state_dict(self, state: Mapping[int, Mapping[str, Any]]) -> None:
        """Restore the state of all clients from a checkpoint."""
        self.forget()
        self._kept = {
            client: StoredState(**kept["stored"]) if "stored" in kept else dict(kept) for client, kept in state.items()
        }

    def sweep(self, needed: Collection[str]) -> None:
        """Delete files to which neither this round nor a checkpoint refers.

        Args:
            needed: the names of the files to which checkpoints refer.
        """
        self._files.sweep({*needed, *(kept.file for kept in self._kept.values() if isinstance(kept, StoredState))})

    @property
    def has_files(self) -> bool:
        """Return whether some state is in files."""
        return any(isinstance(kept, StoredState) for kept in self._kept.values())

    def _in_memory(self, clients: Collection[int]) -> int:
        entries = (self._kept.get(client, {}) for client in clients)
        return sum(t.nbytes for kept in entries if not isinstance(kept, StoredState) for t in kept.values())

    def _write(self, clients: Collection[int]) -> None:
        for client in clients:
            kept = self._kept[client]
            if not isinstance(kept, StoredState) and kept:
                self._kept[client] = self._files.write(client, kept)


def held_part(kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the held parameters and buffers among a client's stored tensors, by name."""
    return {name.removeprefix(_HELD): tensor for name, tensor in kept.items() if name.startswith(_HELD)}


class _Drawer(MutableMapping[str, Tensor]):
    def __init__(self, memory: ClientMemory, client: int, prefix: str) -> None:
        self._memory, self._client, self._prefix = memory, client, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._memory.kept(self._client)[self._prefix + name]

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._memory.put(self._client, **{self._prefix + name: tensor})

    def __delitem__(self, name: str) -> None:
        raise TypeError("A client's state cannot be deleted. Overwrite it instead.")

    def __iter__(self) -> Iterator[str]:
        return (n.removeprefix(self._prefix) for n in self._memory.kept(self._client) if n.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Drawers(Sequence[Mapping[str, Tensor]]):
    def __init__(self, memory: ClientMemory, num_clients: int, prefix: str) -> None:
        self._memory, self._clients, self._prefix = memory, range(num_clients), prefix

    def __getitem__(self, client: Any) -> Any:
        one = self._clients[client]
        return self._memory.drawer(one, self._prefix) if isinstance(one, int) else [self[k] for k in one]

    def __len__(self) -> int:
        return len(self._clients)
