"""A round's models on disk, for strategies that need all of them at once and cannot hold them in memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fl_lightning.errors import ClientError
from fl_lightning.types import ClientUpdate


@dataclass(frozen=True)
class StoredUpdate:
    """An update whose state lies in a file.

    Attributes:
        update: without its state.
        path: of the file.
        offset: of the state, in bytes.
        size: of the state, in numbers.
        dtype: of the state, as numpy names it.
    """

    update: ClientUpdate
    path: str
    offset: int
    size: int
    dtype: str

    def load(self) -> ClientUpdate:
        """The update with its state mapped from the file: read piece by piece as it is used, and dropped under pressure.

        Raises:
            ClientError: if this rank does not see the file.
        """
        if not Path(self.path).exists():
            raise ClientError(
                f"A client's model was written to '{self.path}' by another rank, and this one does not find it. Let "
                "'trainer.default_root_dir' be on a file system that all ranks share, or raise 'federation.memory_limit'."
            )
        mapped = np.memmap(self.path, dtype=self.dtype, mode="c", offset=self.offset, shape=(self.size,))
        return self.update.with_state(torch.from_numpy(mapped))


class UpdateStore:
    """The models of this rank's clients in one round, in one file.

    Args:
        folder: where; made if need be.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(".bin", f"updates-{rank}-", folder)  # other runs may use the folder, too
        self._path = Path(path)
        self._file = os.fdopen(handle, "wb")
        self.kept: list[StoredUpdate] = []

    def keep(self, update: ClientUpdate) -> None:
        """Write an update's state; bfloat16, which NumPy lacks, as float32."""
        state = update.snapshot.vector.detach().cpu()
        array = (state.float() if state.dtype is torch.bfloat16 else state).numpy()
        offset = self._file.tell()
        array.tofile(self._file)
        self._file.flush()
        alone = update.with_state(torch.zeros(0)).to("cpu")
        self.kept.append(StoredUpdate(alone, str(self._path), offset, array.size, array.dtype.name))

    def close(self) -> None:
        """Delete the file; what is mapped here stays readable."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others may still use the folder
            self._path.parent.rmdir()
