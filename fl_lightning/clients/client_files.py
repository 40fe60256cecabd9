"""Keep clients' state in the run's folder: a file for each client and version, which never changes."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import CheckpointError
from fl_lightning.utilities.atomic_file import fill_whole
from fl_lightning.utilities.collectives import Collectives

Kept = dict[str, dict[str, Tensor]]
"""What a client keeps: each owner's tensors, by name."""

_NAME = re.compile(r"(\d+)-(\d+)-(\w+)\.pt")
_CLIENTS_PER_FOLDER = 1000
"""The clients of a subfolder, since a folder of a million files is slow."""
_DIGEST = 16
_BLOCK = 4096
"""The bytes that most file systems allocate at once."""


class References(NamedTuple):
    """The files that a checkpoint refers to: each client's newest one of these, unless the checkpoint itself has its state."""

    sessions: Mapping[str, int]
    """The sessions that wrote them, and the last version of each."""
    in_memory: Collection[int]
    """The clients whose state the checkpoint has."""


class _Former(NamedTuple):
    """A file that the run itself no longer needs, and the later ones of the same client."""

    client: int
    version: int
    session: str
    later: list[tuple[int, str]]

    def needed_by(self, checkpoint: References) -> bool:
        """Return whether this is the client's newest file to which a checkpoint refers."""
        last = checkpoint.sessions
        known = (version <= last.get(session, 0) for version, session in self.later)
        return self.version <= last.get(self.session, 0) and self.client not in checkpoint.in_memory and not any(known)


class ClientFiles:
    """Write and read the files, know each client's newest version, and delete what neither the run nor a checkpoint needs.

    Versions count the rounds that changed something. A fit writes under the name of its session, so two runs that continue the
    same checkpoint never write the same file. A checkpoint holds the sessions of its run with the last version of each; a
    client's state in it is the newest of these files. So its size does not grow with the clients that ever took part.

    Args:
        folder: the folder of the files, created on the first write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.session = folder, ""
        self.used = False
        """Whether the run has ever written files, so that some may be left that nothing needs; the same on every rank."""
        self._version = 0  # of the last round that was settled
        self.forget()
        self.begin(folder)

    def forget(self) -> None:
        """Discard all versions before the first round."""
        self._earlier: list[tuple[str, str, int]] = []  # sessions before this one: name, folder and last version
        self._versions = np.zeros(0, np.int64)  # by client; 0 without a file
        self.new: dict[int, int] = {}
        """The clients with a file of the current round, and the bytes that it takes."""
        self._seen = False

    def begin(self, folder: Path) -> None:
        """Begin a session in a folder, which continues the one before if that has written files."""
        self._seen = False
        if self:
            self._earlier.append((self.session, str(self._folder), self._version))
        self._folder, self.session = folder.absolute(), uuid4().hex[:12]
        self._former: list[_Former] = []
        self._needed: dict[Hashable, list[_Former]] = {}  # those that a checkpoint needs
        self.nbytes = 0
        """The bytes that all files in the folder take, as the first rank saw them in the last sweep."""

    def __bool__(self) -> bool:
        return bool(self._versions.any())

    def version(self, client: int) -> int:
        """Return the version of a client's file; 0 without one."""
        return self._version + 1 if client in self.new else self._settled(client)

    def write(self, client: int, kept: Kept) -> None:
        """Write a client's state of this round, and sync it to the disk.

        Raises:
            CheckpointError: if it cannot be written.
        """
        buffer = io.BytesIO()
        torch.save({owner: {name: _whole(t) for name, t in tensors.items()} for owner, tensors in kept.items()}, buffer)
        path, content = self._folder / _name(client, self._version + 1, self.session), buffer.getbuffer()
        try:
            fill_whole(path, lambda file: file.writelines((_digest(content), content)))
        except OSError as error:
            raise CheckpointError(
                f"Cannot write the state of client {client} to '{path}' ({error.strerror}). Free disk space, or raise "
                "'federation.storage.memory' to keep the state in memory."
            ) from error
        self.new[client] = _allocated(_DIGEST + len(content))

    def read(self, client: int) -> Kept:
        """Read a client's state from this run's folder, or otherwise from the folder in which it was written.

        Raises:
            CheckpointError: if the file is missing or damaged.
        """
        session, folder = self._session(self.version(client))
        name = _name(client, self.version(client), session)
        path = next((place / name for place in (self._folder, Path(folder)) if (place / name).exists()), None)
        content = b"" if path is None else path.read_bytes()
        if path is None or _digest(content[_DIGEST:]) != content[:_DIGEST]:
            wrong = "is missing" if path is None else "is damaged"
            raise CheckpointError(
                f"'{path or self._folder / name}', which holds the state of client {client}, {wrong}. {_REMEDY}"
            )
        found: Kept = torch.load(io.BytesIO(content[_DIGEST:]), weights_only=True)
        return found

    def undo(self, client: int) -> None:
        """Delete a client's file of this round, which no checkpoint refers to."""
        if client in self.new:
            del self.new[client]
            (self._folder / _name(client, self._version + 1, self.session)).unlink(missing_ok=True)

    def settle(self, sizes: Mapping[int, int]) -> None:
        """End a round.

        Args:
            sizes: the bytes of the new files of all ranks, by client; 0 for a client whose new state is in memory.
        """
        self._version += 1
        self.used = self.used or any(sizes.values())
        for client, size in sizes.items():
            before = self._settled(client)
            if before:
                self._former.append(_Former(client, before, self._session(before)[0], [(self._version, self.session)]))
            if before or size:
                self._set(client, self._version if size else 0)
            self.nbytes += size
        self.new.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what tells a checkpoint's files, as plain values; their versions have a sum, which lacks what is missing."""
        sessions = [*self._earlier, (self.session, str(self._folder), self._version)]
        return {"sessions": [list(one) for one in sessions], "sum": int(self._versions.sum())}

    def load(self, state: Mapping[str, Any], in_memory: Collection[int]) -> None:
        """Find the files of a checkpoint, and begin a new session.

        Args:
            state: from :meth:`state_dict`.
            in_memory: the clients whose state the checkpoint itself holds.

        Raises:
            CheckpointError: if files are missing.
        """
        self.forget()
        self.begin(self._folder)
        self.used = True
        self._earlier = [(name, folder, last) for name, folder, last in state["sessions"]]
        self._version, sessions = max(self._version, self._earlier[-1][2]), {name: last for name, _, last in self._earlier}
        for folder in {str(self._folder), *(folder for _, folder, _ in self._earlier)}:
            for client, versions in _versions_in(folder):
                last = max((version for version, session in versions if version <= sessions.get(session, 0)), default=0)
                if last > self.version(client) and client not in in_memory:
                    self._set(client, last)
        if self._versions.sum() != state["sum"]:
            raise CheckpointError(f"'{self._folder}' lacks files with clients' state to which the checkpoint refers. {_REMEDY}")

    def sweep(self, comm: Collectives, checkpoints: Mapping[Hashable, References] | None) -> None:
        """Delete the files to which neither this round nor a checkpoint refers, on the first rank while the others wait.

        The first call looks at all files, and later ones at those that were replaced. A file that a checkpoint needs is looked
        at again when that checkpoint is gone, so that a round looks at no others.

        Args:
            comm: the ranks.
            checkpoints: what each checkpoint refers to; None on other ranks, and if it is not known.
        """
        if checkpoints is not None:
            if not self._seen:
                self._find_all()
            for gone in self._needed.keys() - checkpoints.keys():
                self._former += self._needed.pop(gone)
            for file in self._former:
                holder = next((key for key, one in checkpoints.items() if file.needed_by(one)), None)
                if holder is not None:
                    self._needed.setdefault(holder, []).append(file)
                    continue
                path = self._folder / _name(*file[:3])
                with suppress(OSError):  # a leftover file does no harm
                    size = _allocated(path.stat().st_size)
                    path.unlink()
                    self.nbytes -= size
        if checkpoints is not None or comm.rank > 0:
            self._former = []
        self.nbytes = comm.gather(self.nbytes)[0]

    def _find_all(self) -> None:
        """Find the files that the run does not need, and delete those that a killed process did not finish."""
        self._seen, self.nbytes, self._former = True, 0, []
        for path in (Path(place, name) for place, _, names in os.walk(self._folder) for name in names):
            with suppress(OSError):
                if path.suffix == ".partial":
                    path.unlink()
                else:
                    self.nbytes += _allocated(path.stat().st_size)
        for client, versions in _versions_in(self._folder):
            live = self.version(client), self._session(self.version(client))[0]
            several = sorted(versions, reverse=True)
            self._former += [_Former(client, *one, several[:k]) for k, one in enumerate(several) if one != live]

    def _session(self, version: int) -> tuple[str, str]:
        """Return the session that wrote a version, and its folder."""
        found = ((name, folder) for name, folder, last in self._earlier if version <= last)
        return next(found, (self.session, str(self._folder)))

    def _settled(self, client: int) -> int:
        return int(self._versions[client]) if client < len(self._versions) else 0

    def _set(self, client: int, version: int) -> None:
        if client >= len(self._versions):
            self._versions = np.concatenate([self._versions, np.zeros(client + 1000, np.int64)])
        self._versions[client] = version


_REMEDY = (
    "Restore the file (checkpoints need the folder 'client_state' of their run, which all ranks must see), or start again "
    "without 'ckpt_path'."
)


def _name(client: int, version: int, session: str) -> str:
    return f"{client // _CLIENTS_PER_FOLDER}/{client}-{version}-{session}.pt"


def _versions_in(folder: str | Path) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield each client with files in a folder, and their versions and sessions."""
    for _, _, names in os.walk(folder):
        found: dict[int, list[tuple[int, str]]] = {}
        for match in filter(None, map(_NAME.fullmatch, names)):
            found.setdefault(int(match[1]), []).append((int(match[2]), match[3]))
        yield from found.items()


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _allocated(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _whole(tensor: Tensor) -> Tensor:
    """Return the tensor, as a copy if it is a view of more memory: torch would write all of that."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
