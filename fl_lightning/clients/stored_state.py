"""What clients keep over rounds as files in the run's folder, where it takes more memory than it may."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import CheckpointError

Kept = dict[str, Tensor]
"""By name: ``control``, ``vector``, ``counters``, ``score``, and those of drawers."""


@dataclass(frozen=True)
class StoredState:
    """One client's state in a file that is never changed; a checkpoint holds this in place of the tensors.

    Attributes:
        file: its name.
        folder: where it was written.
        digest: BLAKE2b of its bytes, hexadecimal.
        shapes: of its tensors, by name.
    """

    file: str
    folder: str
    digest: str
    shapes: Mapping[str, list[int]]

    def plain(self) -> dict[str, Any]:
        """Plain types only, for a checkpoint."""
        return {"stored": asdict(self)}


class ClientFiles:
    """The files of a run. Each change of a client's state is a new file, so that older checkpoints keep theirs.

    Args:
        folder: made when something is written.
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
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise CheckpointError(
                f"What client {client} keeps over rounds cannot be written to '{path}' ({error.strerror}). Make room, or raise "
                "'federation.memory_limit' so that it stays in memory."
            ) from error
        shapes = {name: list(tensor.shape) for name, tensor in kept.items()}
        return StoredState(path.name, str(self.folder.absolute()), digest, shapes)

    def read(self, stored: StoredState) -> Kept:
        """Read a client's state back, from this run's folder or else from where it was written.

        Raises:
            CheckpointError: if the file is missing or is another.
        """
        places = [self.folder / stored.file, Path(stored.folder) / stored.file]
        path = next((place for place in places if place.exists()), None)
        content = b"" if path is None else path.read_bytes()
        if path is None or hashlib.blake2b(content, digest_size=16).hexdigest() != stored.digest:
            client, wrong = stored.file.split("-")[0], "is missing" if path is None else "is damaged"
            raise CheckpointError(
                f"'{path or places[0]}', which holds what client {client} keeps over rounds, {wrong}. Put the file "
                "back (checkpoints need the folder 'client_state' of their run, which all ranks must see), or start again "
                "without 'ckpt_path'."
            )
        kept: Kept = torch.load(io.BytesIO(content), weights_only=True)
        return kept

    def sweep(self, needed: Collection[str]) -> None:
        """Delete the files that are not needed."""
        for path in self.folder.glob("*-*.p*"):
            if path.name not in needed:
                with suppress(OSError):  # a file too many harms nobody
                    path.unlink()


def stored_files(memory: Mapping[Any, Any]) -> set[str]:
    """The files that a checkpoint's ``memory`` refers to."""
    return {kept["stored"]["file"] for kept in memory.values() if "stored" in kept}


def _is_part(tensor: Tensor) -> bool:
    """Whether torch would write more than the tensor: the whole memory that it is a view of."""
    return tensor.untyped_storage().nbytes() != tensor.nbytes
