"""Store clients' state in files in the run's folder when it exceeds the memory limit."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import CheckpointError
from fl_lightning.utilities.atomic_file import write_whole

Kept = dict[str, Tensor]
"""A client's tensors by name: ``control``, ``vector``, ``counters``, ``score``, and those of drawers."""


@dataclass(frozen=True)
class StoredState:
    """Refer to one client's state in a file that never changes; a checkpoint holds this instead of the tensors.

    Attributes:
        file: the name of the file.
        folder: the folder in which the file was written.
        digest: the BLAKE2b digest of its bytes, in hexadecimal.
        shapes: the shapes of its tensors, by name.
    """

    file: str
    folder: str
    digest: str
    shapes: Mapping[str, list[int]]

    def plain(self) -> dict[str, Any]:
        """Return the reference as plain types, for a checkpoint."""
        return {"stored": asdict(self)}


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
        buffer = io.BytesIO()
        torch.save({name: tensor.clone() if _is_part(tensor) else tensor for name, tensor in kept.items()}, buffer)
        digest = hashlib.blake2b(buffer.getbuffer(), digest_size=16).hexdigest()
        path = self.folder / f"{client}-{digest}.pt"
        try:
            write_whole(path, buffer.getbuffer())
        except OSError as error:
            raise CheckpointError(
                f"Cannot write the state of client {client} to '{path}' ({error.strerror}). Free disk space, or raise "
                "'federation.memory_limit' to keep the state in memory."
            ) from error
        shapes = {name: list(tensor.shape) for name, tensor in kept.items()}
        return StoredState(path.name, str(self.folder.absolute()), digest, shapes)

    def read(self, stored: StoredState) -> Kept:
        """Read a client's state from this run's folder, or otherwise from the folder in which it was written.

        Raises:
            CheckpointError: if the file is missing or has other contents.
        """
        places = [self.folder / stored.file, Path(stored.folder) / stored.file]
        path = next((place for place in places if place.exists()), None)
        content = b"" if path is None else path.read_bytes()
        if path is None or hashlib.blake2b(content, digest_size=16).hexdigest() != stored.digest:
            client, wrong = stored.file.split("-")[0], "is missing" if path is None else "is damaged"
            raise CheckpointError(
                f"'{path or places[0]}', which holds the state of client {client}, {wrong}. Restore the file "
                "(checkpoints need the folder 'client_state' of their run, which all ranks must see), or start again "
                "without 'ckpt_path'."
            )
        kept: Kept = torch.load(io.BytesIO(content), weights_only=True)
        return kept

    def sweep(self, needed: Collection[str]) -> None:
        """Delete the files that are not needed."""
        for path in self.folder.glob("*-*.p*"):
            if path.name not in needed:
                with suppress(OSError):  # a leftover file does no harm
                    path.unlink()


def stored_files(memory: Mapping[Any, Any]) -> set[str]:
    """Return the files to which a checkpoint's ``memory`` refers."""
    return {kept["stored"]["file"] for kept in memory.values() if "stored" in kept}


def _is_part(tensor: Tensor) -> bool:
    """Return whether the tensor is a view, for which torch would write all of the underlying memory."""
    return tensor.untyped_storage().nbytes() != tensor.nbytes
