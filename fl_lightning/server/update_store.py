"""Store a round's models on disk, for strategies that need all of them at once and cannot hold them in memory."""

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
    """Refer to an update whose state is in a file.

    Attributes:
        update: the update without its state.
        path: the path of the file.
        offset: the offset of the state in bytes.
        size: the length of the state in numbers.
        dtype: the dtype of the state, by its NumPy name.
    """

    update: ClientUpdate
    path: str
    offset: int
    size: int
    dtype: str

    def load(self) -> ClientUpdate:
        """Return the update with its state mapped from the file, so that the system reads and frees pages as needed.

        Raises:
            ClientError: if this rank cannot find the file.
        """
        if not Path(self.path).exists():
            raise ClientError(
                f"Another rank wrote a client's model to '{self.path}', but this rank cannot find it. Set "
                "'trainer.default_root_dir' to a file system that all ranks share, or raise 'federation.storage.memory'."
            )
        mapped = np.memmap(self.path, dtype=self.dtype, mode="c", offset=self.offset, shape=(self.size,))
        return self.update.with_state(torch.from_numpy(mapped))


class UpdateStore:
    """Store the models of this rank's clients in one round in one file.

    Args:
        folder: the folder of the file, created if necessary.
        rank: the rank of this process.
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
        self._file.write(array.data)
        self._file.flush()
        alone = update.with_state(torch.zeros(0)).to("cpu")
        self.kept.append(StoredUpdate(alone, str(self._path), offset, array.size, array.dtype.name))

    def close(self) -> None:
        """Delete the file; states mapped in this process stay readable."""
        self._file.close()
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others may still use the folder
            self._path.parent.rmdir()
