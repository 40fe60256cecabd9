"""Store clients' state in files in the run's folder when it exceeds the memory limit."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import CheckpointError
from fl_lightning.utilities.atomic_file import write_whole

Kept = dict[str, Tensor]
"""A client's tensors by name: ``control``, ``vector``, ``counters``, ``score``, and those of drawers."""

_CLIENTS_PER_FOLDER = 1000
_BLOCK = 4096
"""The bytes that most file systems allocate at once."""


@dataclass(frozen=True)
class StoredState:
    """Refer to a file that never changes, mostly with one client's state; checkpoints refer to it instead of holding tensors.

    Attributes:
        file: the path of the file in its folder.
        folder: the folder in which the file was written.
        digest: the BLAKE2b digest of its bytes, in hexadecimal.
        shapes: the shapes of its tensors, by name.
        nbytes: the bytes that it takes on the disk, in whole blocks.
    """

    file: str
    folder: str
    digest: str
    shapes: Mapping[str, list[int]]
    nbytes: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the reference as plain types, for a checkpoint."""
        return asdict(self)


class ClientFiles:
    """Manage the files of a run, one per change of a client's state, so that older checkpoints keep theirs.

    Args:
        folder: the folder of the files, created on the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, client: int, kept: Kept) -> StoredState:
        """Write a client's state and sync it to the disk.

        Raises:
            CheckpointError: if it cannot be written.
        """
        shapes = {name: list(tensor.shape) for name, tensor in kept.items()}
        return self._write(f"the state of client {client}", partial(client_file, client), _content(kept), shapes)

    def write_index(self, index: Mapping[str, Any]) -> StoredState:
        """Write an index of clients' files, as plain values; see :meth:`write`."""
        return self._write("the index of clients' state", "index-{}.pt".format, _content(index), {})

    def _write(
        self, what: str, name: Callable[[str], str], content: memoryview, shapes: Mapping[str, list[int]]
    ) -> StoredState:
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        path = self.folder / name(digest)
        try:
            write_whole(path, content)
        except OSError as error:
            raise CheckpointError(
                f"Cannot write {what} to '{path}' ({error.strerror}). Free disk space, or raise "
                "'federation.memory_limit' to keep the state in memory."
            ) from error
        return StoredState(name(digest), str(self.folder.absolute()), digest, shapes, _on_disk(len(content)))

    def read(self, stored: StoredState) -> Any:
        """Read a file from this run's folder, or otherwise from the folder in which it was written.

        Raises:
            CheckpointError: if the file is missing or has other contents.
        """
        places = [self.folder / stored.file, Path(stored.folder) / stored.file]
        path = next((place for place in places if place.exists()), None)
        content = b"" if path is None else path.read_bytes()
        if path is None or hashlib.blake2b(content, digest_size=16).hexdigest() != stored.digest:
            name, wrong = Path(stored.file).name.split("-")[0], "is missing" if path is None else "is damaged"
            what = "the index of clients' state" if name == "index" else f"the state of client {name}"
            raise CheckpointError(
                f"'{path or places[0]}', which holds {what}, {wrong}. Restore the file "
                "(checkpoints need the folder 'client_state' of their run, which all ranks must see), or start again "
                "without 'ckpt_path'."
            )
        return torch.load(io.BytesIO(content), weights_only=True)

    def all(self) -> Iterator[tuple[str, int]]:
        """Yield the path of each file in the folder, also of unfinished ones, and the bytes that it takes."""
        for path in self.folder.rglob("*-*.p*"):
            with suppress(OSError):  # another process deleted it
                yield path.relative_to(self.folder).as_posix(), _on_disk(path.stat().st_size)

    def delete(self, file: str) -> None:
        """Delete a file of the folder."""
        with suppress(OSError):  # a leftover file does no harm
            (self.folder / file).unlink()


def client_file(client: int, digest: str) -> str:
    """Return the path of a client's file: a folder for each thousand clients, since a folder of a million files is slow."""
    return f"{client // _CLIENTS_PER_FOLDER}/{client}-{digest}.pt"


def size_on_disk(kept: Kept) -> int:
    """Return the bytes that a client's file would take."""
    return _on_disk(len(_content(kept)))


def _on_disk(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _content(values: Mapping[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(
        {name: one.clone() if isinstance(one, Tensor) and _is_part(one) else one for name, one in values.items()}, buffer
    )
    return buffer.getbuffer()


def _is_part(tensor: Tensor) -> bool:
    """Return whether the tensor is a view, for which torch would write all of the underlying memory."""
    return tensor.untyped_storage().nbytes() != tensor.nbytes
