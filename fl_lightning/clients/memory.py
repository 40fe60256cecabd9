"""Store the state that clients keep between rounds: tensors of rules and transforms, and models of their own."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.clients.disk_room import DiskRoom
from fl_lightning.clients.state_index import StateIndex
from fl_lightning.clients.stored_state import ClientFiles, Kept, StoredState, size_on_disk
from fl_lightning.clients.superseded import FILES, References, Superseded, client_of, files_in
from fl_lightning.clients.training.kept_training import NAME, OWN
from fl_lightning.types import Snapshot

_MOVED = "moved "
_HELD = "held "
_MOST_IN_MEMORY = 1000
"""The most clients whose state is in memory, and so in every checkpoint, which takes about 0.02 ms for each."""
_MOST_RECENT = 8192
"""The most files that a checkpoint lists itself; the others are in the file of an index."""


class ClientMemory:
    """Hold every client's state on every rank, updated after each round, so that any rank can train any client next.

    The state is in CPU memory. Beyond the limit of :meth:`bound`, or with more than 1,000 clients, it is in files in the run's
    folder, so that the cost of a round does not grow with the number of clients that ever took part.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Kept | StoredState] = {}
        self._changed: set[int] = set()
        self._files, self._limit = ClientFiles(Path("client_state")), math.inf
        self._index = StateIndex.of({})
        self._index_file: StoredState | None = None
        self._superseded, self._room, self._measured = Superseded(), DiskRoom(), False
        self._loaded: tuple[StoredState, Kept] | None = None
        self.undoable = False
        """Whether changes of a round may be undone, so that no stored tensor may be changed in place."""
        self._before: dict[int, Kept | StoredState] = {}  # the entries of clients that changed in this round

    def bound(self, folder: Path, limit: float, room: DiskRoom = DiskRoom()) -> None:  # noqa: B008 (frozen)
        """Set the folder of the files, the number of bytes that may stay in memory, and the room on the disk."""
        self._files, self._limit, self._superseded = ClientFiles(folder), limit, Superseded()
        self._room, self._measured = room, False

    def forget(self) -> None:
        """Discard all state before the first round."""
        self._kept, self._changed, self._loaded, self._before = {}, set(), None, {}
        self._index, self._index_file, self._superseded = StateIndex.of({}), None, Superseded()

    def expect(self, each: int) -> None:
        """Refuse state of so many bytes for each client, before a client trains, if files of it would exceed the room.

        Raises:
            ConfigurationError: if the clients that can be drawn need more than ``federation.disk_limit``.
        """
        clients = self._room.clients
        if clients > _MOST_IN_MEMORY or clients * each > self._limit:
            self._room.require(each)

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
        listed: list[Mapping[str, Sequence[int]]] = [shapes for _, shapes in self._index.forms]
        for kept in self._kept.values():
            listed.append(kept.shapes if isinstance(kept, StoredState) else {n: tensor.shape for n, tensor in kept.items()})
        for shapes in listed:
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
        kept = self._entry(client)
        if not isinstance(kept, StoredState):
            return kept
        if self._loaded is None or self._loaded[0] != kept:
            self._loaded = kept, self._files.read(kept)
        return self._loaded[1]

    def undo(self, client: int) -> None:
        """Restore the state that a client had before this round."""
        if client in self._before:
            self._set(client, self._before.pop(client))
            self._changed.add(client)

    def end_round(self, accepted: Collection[int]) -> None:
        """Restore the state of the clients whose updates the server did not accept, and keep that of the others."""
        for client in self._before.keys() - set(accepted):
            self.undo(client)
        self._before.clear()

    def put(self, client: int, **kept: Tensor) -> None:
        """Store tensors by name."""
        if self.undoable:
            self._before.setdefault(client, self._entry(client))
        self._set(client, self.kept(client) | {name: tensor.cpu() for name, tensor in kept.items()})
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
        others = {client for client, kept in self._kept.items() if not isinstance(kept, StoredState)} - set(sizes)
        if sum(sizes.values()) + self._in_memory(others) <= self._limit and len(sizes) + len(others) <= _MOST_IN_MEMORY:
            return
        self._write(self._changed)
        self._write(others)  # equal contents give equal files on every rank
        self._loaded = None

    def changes(self) -> tuple[dict[int, Kept | StoredState], dict[str, int]]:
        """Return what changed since the last call: the state by client, and the files that may no longer be needed."""
        changed = {client: self._entry(client) for client in self._changed}
        self._changed = set()
        return changed, dict(self._superseded.files)

    def update(self, kept: Mapping[int, Kept | StoredState], superseded: Mapping[str, int]) -> None:
        """Take over the changes of another rank's clients."""
        for client, theirs in kept.items():
            self._set(client, theirs)
        self._superseded.files |= superseded

    def end_settling(self) -> None:
        """Move files that a checkpoint would list into an index if they are many, and check the room on the disk.

        Raises:
            ConfigurationError: if the clients that can be drawn will need more than the room.
            CheckpointError: if the files take more than the room.
        """
        stored = {client: kept for client, kept in self._kept.items() if isinstance(kept, StoredState)}
        if len(stored) > _MOST_RECENT:
            self._index = self._index.merged(StateIndex.of(stored))
            self._kept = {client: kept for client, kept in self._kept.items() if client not in stored}
            before, self._index_file = self._index_file, self._files.write_index(self._index.plain())
            self._superseded.add(before)
            stored = {}
        if self._room.limited:
            self._check_room(stored)

    def _check_room(self, stored: Mapping[int, StoredState]) -> None:
        first = next((kept for kept in self._kept.values() if kept), None)
        if first and not self._measured:
            self.expect(first.nbytes if isinstance(first, StoredState) else size_on_disk(first))
            self._measured = True
        needed = sum(one.nbytes for one in stored.values()) + self._index.nbytes - self._index.nbytes_of([*self._kept])
        self._room.check(needed, self._superseded.nbytes)

    def state_dict(self) -> dict[Any, Any]:
        """Return the state of all clients for a checkpoint: tensors by client, and the names and digests of files."""
        entries = sorted(self._kept.items())
        state: dict[Any, Any] = {client: dict(kept) for client, kept in entries if not isinstance(kept, StoredState)}
        if self.has_files:
            recent = StateIndex.of({client: kept for client, kept in entries if isinstance(kept, StoredState)})
            state[FILES] = {"recent": recent.plain(), "index": [one.plain() for one in (self._index_file,) if one]}
        return state

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Restore the state of all clients from a checkpoint."""
        self.forget()
        recent, self._index_file = files_in(state)
        self._kept = {client: dict(kept) for client, kept in state.items() if client != FILES}
        self._kept |= {client: one for client in recent.clients.tolist() if (one := recent.get(client))}
        self._index = self._read_index(self._index_file)

    def references(self, state: Mapping[Any, Any]) -> References:
        """Return the files to which the :meth:`state_dict` in a checkpoint refers."""
        return References(state, self._read_index)

    def sweep(self, checkpoints: Mapping[Hashable, References]) -> None:
        """Delete files to which neither this round nor a checkpoint refers."""
        self._superseded.sweep(self._files, self._is_live, checkpoints)

    @property
    def older_bytes(self) -> int:
        """Return the bytes of files that only checkpoints need, after :meth:`sweep`."""
        return self._superseded.older_bytes

    def end_sweep(self, older_bytes: int) -> None:
        """Take over what :meth:`sweep` found on the first rank."""
        self._superseded.end_round(older_bytes)

    @property
    def has_files(self) -> bool:
        """Return whether some state is in files."""
        return self._index_file is not None or any(isinstance(kept, StoredState) for kept in self._kept.values())

    def _entry(self, client: int) -> Kept | StoredState:
        return self._kept[client] if client in self._kept else self._index.get(client) or {}

    def _set(self, client: int, kept: Kept | StoredState) -> None:
        self._superseded.add(self._entry(client))
        self._superseded.discard(kept)
        self._kept[client] = kept

    def _read_index(self, file: StoredState | None) -> StateIndex:
        if file is None:
            return StateIndex.of({})
        if self._index_file is not None and file.file == self._index_file.file and len(self._index):
            return self._index
        return StateIndex.from_plain(self._files.read(file))

    def _is_live(self, file: str) -> bool:
        client = client_of(file)
        entry = self._index_file if client is None else self._entry(client)
        return isinstance(entry, StoredState) and entry.file == file

    def _in_memory(self, clients: Collection[int]) -> int:
        entries = (self._kept.get(client, {}) for client in clients)
        return sum(t.nbytes for kept in entries if not isinstance(kept, StoredState) for t in kept.values())

    def _write(self, clients: Collection[int]) -> None:
        for client in clients:
            kept = self._kept[client]
            if not isinstance(kept, StoredState) and kept:
                self._set(client, self._files.write(client, kept))


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
