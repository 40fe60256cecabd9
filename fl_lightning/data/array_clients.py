"""Read clients from arrays that are mapped into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.data.file_clients import ClientStore, Field, FileClients, require_fields, unreadable
from fl_lightning.errors import DataError

_ENDS = "ends"


class ArrayClients(FileClients):
    """Serve clients from ``.npy`` files that are mapped into memory, such as ``x.npy`` and ``y.npy``.

    ``ends.npy`` holds, for each client in turn, the number of rows up to its last one: clients with 7, 12 and 5 examples have
    the ends 7, 19 and 24. ``path`` is the folder of these files, or one whose subfolders are shards of that form, in the order
    of their names. The arguments are those of ``FileClients``, which ``fl-lightning fit --help ArrayClients`` lists.
    """

    def store(self, path: Path) -> ClientStore:
        """Return the clients of a folder; see ``FileClients.store``."""
        shards = [path] if (path / f"{_ENDS}.npy").exists() else sorted(ends.parent for ends in path.glob(f"*/{_ENDS}.npy"))
        if not shards:
            raise DataError(
                f"'{path}' has no file '{_ENDS}.npy', nor subfolders with one, which says where each client's rows end. Write "
                "it: np.save('ends.npy', np.cumsum(sizes))."
            )
        return _Shards([_Shard(shard, self.fields) for shard in shards])


class _Shard(ClientStore):
    def __init__(self, folder: Path, fields: list[str]) -> None:
        require_fields(folder, fields, sorted(file.stem for file in folder.glob("*.npy") if file.stem != _ENDS), "array")
        self._folder, self._fields = folder, fields
        ends = _mapped(folder / f"{_ENDS}.npy")
        if ends.ndim != 1 or ends.dtype.kind not in "iu":
            found = f"has {ends.dtype} of shape {ends.shape}"
            raise DataError(f"'{folder / _ENDS}.npy' must hold a whole number for each client, but {found}.")
        self._ends = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
        self.sizes = np.diff(self._ends)
        for name in fields:
            rows = len(_mapped(folder / f"{name}.npy"))
            if rows != self._ends[-1]:
                raise DataError(
                    f"'{folder / name}.npy' has {rows} rows, but '{_ENDS}.npy' ends at {self._ends[-1]}. Write both again."
                )

    def read(self, client: int) -> list[Field]:
        rows = slice(self._ends[client], self._ends[client + 1])
        return [np.array(_mapped(self._folder / f"{name}.npy")[rows]) for name in self._fields]


class _Shards(ClientStore):
    def __init__(self, shards: list[_Shard]) -> None:
        self._shards = shards
        self.sizes = np.concatenate([shard.sizes for shard in shards])
        self._firsts = np.cumsum([0, *(len(shard.sizes) for shard in shards)])

    def read(self, client: int) -> list[Field]:
        number = int(np.searchsorted(self._firsts, client, side="right")) - 1
        return self._shards[number].read(client - int(self._firsts[number]))


def _mapped(path: Path) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise unreadable(path, "an array of numpy", error) from error
    return array.reshape(1) if array.ndim == 0 else array
