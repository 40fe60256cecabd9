"""Read clients from HDF5 files in the layout of TensorFlow Federated: ``examples/<client>/<field>``."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.file_clients import ClientStore, Field, FileClients, require_fields, unreadable
from fl_lightning.errors import DataError, VersionError
from fl_lightning.utilities.atomic_file import write_whole

_GROUP = "examples"
_INDEX = ".index.npz"


class HDF5Clients(FileClients):
    """Serve clients from an HDF5 file with a group for each client and a data set for each field: ``examples/f0000_14/pixels``.

    This is the layout of TensorFlow Federated's files, such as FedEMNIST, CIFAR-100, Shakespeare and Stack Overflow. To count a
    client's examples, its group must be opened, so the numbers are kept in a file next to it, which is written once, and
    again when the HDF5 file changes. ``fl-lightning fit --help HDF5Clients`` lists the other arguments.

    Args:
        index_path: the file for the numbers of ``path``'s examples, where the folder of ``path`` cannot be written; by default
            the path followed by ``.index.npz``.
    """

    on_resume = ResumeRule(free=f"index_path {FileClients.on_resume.free}")

    def __init__(
        self,
        path: str,
        fields: list[str],
        shapes: dict[str, list[int]] | None = None,
        scales: dict[str, float] | None = None,
        test_path: str | None = None,
        test_clients: int | None = None,
        index_path: str | None = None,
        batch_size: int = 32,
        eval_batch_size: int = 1000,
        shuffle: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        given = (test_path, test_clients, batch_size, eval_batch_size, shuffle, collate_fn)
        super().__init__(path, fields, shapes, scales, *given)
        self.index_path = index_path

    def store(self, path: Path) -> ClientStore:
        """Return the clients of a file; see ``FileClients.store``."""
        own = self.index_path is not None and path == Path(self.path)
        return _HDF5Store(path, self.fields, Path(self.index_path) if own and self.index_path else Path(f"{path}{_INDEX}"))


class _HDF5Store(ClientStore):
    def __init__(self, path: Path, fields: list[str], index: Path) -> None:
        self._path, self._fields = path, fields
        with _opened(path) as file:
            status = path.stat()
            version = np.array([status.st_size, status.st_mtime_ns])
            self.ids, self.sizes = _indexed(index, version) or _listed(file[_GROUP], path, index, version)
            if len(self.ids):
                require_fields(path, fields, list(file[_GROUP][self.ids[0]]), "field")

    def read(self, client: int) -> list[Field]:
        with _opened(self._path) as file:
            group = file[_GROUP][self.ids[client]]
            require_fields(self._path, self._fields, list(group), f"field of client '{self.ids[client]}'")
            return [np.asarray(group[name][()]) for name in self._fields]


def _listed(group: Any, path: Path, index: Path, version: Any) -> tuple[Any, Any]:
    """Return the clients and the numbers of their examples, and keep them in the index."""
    ids = list(group)
    sizes = np.zeros(len(ids), np.int64)
    for number, client in enumerate(ids):
        lengths = {one.shape[0] if one.shape else 0 for one in group[client].values()}
        if len(lengths) != 1:
            found = ", ".join(f"'{name}' {[*one.shape]}" for name, one in group[client].items())
            raise DataError(
                f"'{path}': the fields of client '{client}' have {found or 'no values'}, but must have one value for each "
                "example. Write the file again, or remove the client."
            )
        sizes[number] = lengths.pop()
    buffer = io.BytesIO()
    np.savez(buffer, version=version, ids=np.array(ids, np.str_), sizes=sizes)
    try:
        write_whole(index, buffer.getbuffer())
    except OSError as error:
        rank_zero_warn(
            f"Cannot write '{index}' ({error.strerror}), so each run lists the clients again. Set "
            "'data.datamodule.index_path' to a file in a folder that can be written."
        )
    return np.array(ids, np.str_), sizes


def _indexed(index: Path, version: Any) -> tuple[Any, Any] | None:
    """Return the clients and numbers of the index; None if there is none, or one of another version of the file."""
    try:
        with np.load(index, allow_pickle=False) as held:
            if np.array_equal(held["version"], version):
                return held["ids"], held["sizes"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    return None


def _opened(path: Path) -> Any:
    """Return a file that is open for reading, with a group of clients.

    Raises:
        DataError: if it cannot be read as one.
    """
    try:
        file = _h5py().File(path, "r")
    except OSError as error:
        raise unreadable(path, "an HDF5 file", error) from error
    if _GROUP not in file:
        found = ", ".join(list(file)[:5]) or "nothing"
        file.close()
        raise DataError(
            f"'{path}' has no group '{_GROUP}', but {found}. Write a group for each client, with a data set for each field: "
            f"{_GROUP}/<client>/<field>."
        )
    return file


def _h5py() -> ModuleType:
    try:
        return import_module("h5py")
    except ImportError as error:
        raise VersionError(f"HDF5 files are read with h5py ({error}). Install it: pip install 'fl_lightning[hdf5]'") from error
