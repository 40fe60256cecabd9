"""Store what clients keep between rounds: in memory up to a limit, beyond it in files."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fl_lightning.clients.client_files import ClientFiles, Kept, References
from fl_lightning.errors import CheckpointError
from fl_lightning.types import Snapshot
from fl_lightning.utilities.collectives import Collectives

MODEL, MOVED, HELD, RULES, TRAINING = "model", "moved", "held", "rules", "training"
"""The owners of a client's tensors, besides transforms and options, each of which has a name of its own."""
FILES = "files"
"""The key of the files among the clients in a checkpoint."""
_MOST_IN_MEMORY = 1000
"""The most clients whose state is in memory, and so in every checkpoint, which takes about 0.02 ms for each."""


class ClientMemory:
    """Hold every client's state on every rank, updated after each round, so that any rank can train any client next.

    The state is in CPU memory. Beyond the limit of :meth:`bound`, or with more than 1,000 clients, it is in files in the run's
    folder, so that the cost of a round does not grow with the number of clients that ever took part.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}  # in memory
        self._changed: dict[int, int] = {}  # the bytes in memory of clients that changed in this round
        self.files, self._limit, self._disk_limit = ClientFiles(Path("client_state")), math.inf, math.inf
        self._loaded: tuple[int, int, Kept] | None = None  # a client, the version of its file, and its contents
        self.undoable = False
        """Whether changes of a round may be undone, so that no stored tensor may be changed in place."""
        self._before: dict[int, Kept | None] = {}  # of clients that changed in this round; None if it is not in memory
        self.like_parameters: Mapping[str, Sequence[str]] = {}
        """The names of tensors that become invalid when other parameters are trained, by owner."""
        self._lengths = set[tuple[str, int]]()

    def bound(self, folder: Path, limit: float, disk_limit: float = math.inf) -> None:
        """Set the folder of the files, and the bytes that may stay in memory and that the files may take."""
        self.files.begin(folder)
        self._limit, self._disk_limit, self._loaded = limit, disk_limit, None

    def join(self, comm: Collectives) -> None:
        """Write files under the same name as the other ranks, in a fit that is about to begin."""
        self.files.session = comm.gather(self.files.session)[0]

    def forget(self) -> None:
        """Discard all state before the first round."""
        self._kept, self._changed, self._loaded, self._before, self._lengths = {}, {}, None, {}, set()
        self.files.forget()

    def last_model(self, client: int) -> Snapshot | None:
        """Return the model that a client has stored; None if it has none."""
        kept = self.kept(client)
        model = kept.get(MODEL)
        return Snapshot(model["vector"], model["counters"], kept.get(MOVED, {})) if model else None

    def held(self, client: int) -> dict[str, Tensor]:
        """Return the parameters and buffers that a client holds, by name; empty before its first training."""
        return dict(self.kept(client).get(HELD, {}))

    def lengths(self) -> Iterator[tuple[str, int]]:
        """Yield the owner and length of stored tensors that become invalid when other parameters are trained."""
        yield from self._lengths
        for kept in self._kept.values():
            yield from self._lengths_in(kept)

    def _lengths_in(self, kept: Kept) -> Iterator[tuple[str, int]]:
        for owner, names in self.like_parameters.items():
            own = kept.get(owner, {})
            yield from ((owner, own[name].numel()) for name in names if name in own)

    def drawer(self, client: int, owner: str) -> MutableMapping[str, Tensor]:
        """Return a view, for reading and writing, of the client's tensors of an owner."""
        return _Drawer(self, client, owner)

    def kept(self, client: int) -> Kept:
        """Return a client's state."""
        if client in self._kept or not (self.files.used or self._changed):
            return self._kept.get(client, {})
        key = client, self.files.version(client)
        if not key[1]:
            return {}
        if self._loaded is None or self._loaded[:2] != key:
            self._loaded = *key, self.files.read(client)
        return self._loaded[2]

    def put(self, client: int, owner: str, tensors: Mapping[str, Tensor]) -> None:
        """Store an owner's tensors by name, besides those that it has stored under other names."""
        if self.undoable:
            self._before.setdefault(client, self._kept.get(client))
        kept = self.kept(client)
        self._kept[client] = kept | {owner: kept.get(owner, {}) | {name: tensor.cpu() for name, tensor in tensors.items()}}
        self._loaded = None
        self.files.undo(client)
        if client not in self._changed and sum(self._changed.values()) > self._limit:  # of clients done in this round
            self._write([*self._changed])
        self._changed[client] = _nbytes(self._kept[client])

    def undo(self, client: int) -> None:
        """Restore the state that a client had before this round."""
        if client in self._before:
            before = self._before.pop(client)
            self.files.undo(client)
            self._kept.pop(client, None)
            if before is not None:
                self._kept[client] = before
            self._changed.pop(client, None)

    def end_round(self, accepted: Collection[int]) -> None:
        """Restore the state of the clients whose updates the server did not accept, and keep that of the others."""
        for client in self._before.keys() - set(accepted):
            self.undo(client)
        self._before.clear()

    def settle(self, comm: Collectives) -> None:
        """Move state to files if everything together exceeds the limit, and share what changed in this round among the ranks.

        Raises:
            CheckpointError: if the files take more than ``federation.storage.disk``.
        """
        sizes = dict[int, int]()
        for theirs in comm.gather(self._changed):
            sizes |= theirs
        if not sizes:
            return
        others = {client: _nbytes(kept) for client, kept in self._kept.items() if client not in sizes}
        if sum([*sizes.values(), *others.values()]) > self._limit or len(sizes) + len(others) > _MOST_IN_MEMORY:
            self._write([*self._changed, *(others if comm.rank == 0 else ())])  # every rank has the others
        mine = {client: self._kept.get(client) or self.files.new[client] for client in self._changed}
        written = dict[int, int]()
        for changes, lengths in comm.gather((mine, self._lengths)):
            self._lengths |= lengths
            for client, kept in changes.items():
                in_memory = isinstance(kept, dict)
                written[client] = 0 if in_memory else kept
                self._kept.pop(client, None)
                self._kept |= {client: kept} if in_memory else {}
        self.files.settle(written)
        self._changed, self._loaded = {}, None
        if self.files.nbytes > self._disk_limit:
            raise CheckpointError(
                f"Clients' state takes {self.files.nbytes / 2**30:.3g} GiB in 'client_state', above 'federation.storage.disk' "
                f"{self._disk_limit / 2**30:.3g}. Raise it, delete older checkpoints, which need former states, or use a "
                "strategy, transforms and a route that keep no client state, such as FedAvg."
            )

    def state_dict(self) -> dict[Any, Any]:
        """Return the state of all clients for a checkpoint: tensors by client and owner, and what tells its files."""
        state: dict[Any, Any] = {client: dict(kept) for client, kept in sorted(self._kept.items())}
        if self.files.used:
            state[FILES] = self.files.state_dict() | {"lengths": sorted(map(list, self._lengths))}
        return state

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Restore the state of all clients from a checkpoint.

        Raises:
            CheckpointError: if files are missing.
        """
        self.forget()
        self._kept = {client: dict(kept) for client, kept in state.items() if client != FILES}
        if FILES in state:
            self._lengths = {(owner, length) for owner, length in state[FILES]["lengths"]}
            self.files.load(state[FILES], self._kept)

    def _write(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client in self._kept:
                self.files.write(client, self._kept[client])
                self._lengths.update(self._lengths_in(self._kept.pop(client)))
                self._changed[client] = 0


def references_of(state: Mapping[Any, Any]) -> References:
    """Return the files to which a checkpoint refers; see :meth:`ClientMemory.state_dict`."""
    sessions = state[FILES]["sessions"] if FILES in state else ()
    return References({name: last for name, _, last in sessions}, state.keys() - {FILES})


def _nbytes(kept: Kept) -> int:
    return sum(tensor.nbytes for tensors in kept.values() for tensor in tensors.values())


class _Drawer(UserDict[str, Tensor]):
    def __init__(self, memory: ClientMemory, client: int, owner: str) -> None:
        self._memory, self._client, self._owner = memory, client, owner

    @property
    def data(self) -> dict[str, Tensor]:  # type: ignore[override]
        return self._memory.kept(self._client).get(self._owner, {})

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._memory.put(self._client, self._owner, {name: tensor})

    def __delitem__(self, name: str) -> None:
        raise TypeError("A client's state cannot be deleted. Overwrite it instead.")
