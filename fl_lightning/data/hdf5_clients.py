"""Read clients from HDF5 files in the layout of TensorFlow Federated: ``examples/<client>/<field>``."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.opened_clients import LazyClients
from fl_lightning.data.views import leave_out
from fl_lightning.errors import DataError, VersionError, did_you_mean, require
from fl_lightning.utilities.atomic_file import write_whole

_GROUP = "examples"
_INDEX = ".index.npz"
_NAME = "data.datamodule."
_SHOWN = 8


class HDF5Clients(LazyClients):
    """Serve clients from an HDF5 file with a group for each client and a data set for each field: ``examples/f0000_14/pixels``.

    This is the layout of TensorFlow Federated's files, such as FedEMNIST, CIFAR-100, Shakespeare and Stack Overflow. To count a
    client's examples, its group must be opened, so the numbers are kept in ``<path>.index.npz``, which is written once, and
    again when the HDF5 file changes. Clients are numbered from 0 in the file's order. Floating-point numbers become float32,
    whole numbers int64, and text stays text.

    Args:
        path: the file with the clients.
        fields: the fields of an example, in the order in which batches hold them.
        shapes: the shape of one example's value, by field, such as ``{pixels: [1, 28, 28]}``; by default that in the file.
        scales: a factor by which a field is multiplied, which then is float32, such as ``{image: 0.00392}`` for bytes.
        test_path: a file of the same form, whose clients together are the server's set; none by default.
        test_clients: how many clients of ``test_path`` are read, the first ones; None for all.
        batch_size: the examples per training batch, >= 1.
        eval_batch_size: the examples per batch of the server's set, >= 1.
        shuffle: whether clients shuffle their training examples.
        collate_fn: the function that makes a batch of examples; torch's by default.

    Attributes:
        origin: the origin of the data, in words.
    """

    on_resume = ResumeRule(free="path test_path")

    def __init__(
        self,
        path: str,
        fields: list[str],
        shapes: dict[str, list[int]] | None = None,
        scales: dict[str, float] | None = None,
        test_path: str | None = None,
        test_clients: int | None = None,
        batch_size: int = 32,
        eval_batch_size: int = 1000,
        shuffle: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(batch_size, shuffle, collate_fn)
        named = isinstance(fields, list) and bool(fields) and len({*fields}) == len(fields)
        require(named, _NAME + "fields", "a list of different names, at least one", fields)
        require(eval_batch_size >= 1, _NAME + "eval_batch_size", "1 or above", eval_batch_size)
        require(test_clients is None or test_clients >= 1, _NAME + "test_clients", "1 or above, or null", test_clients)
        for name, given in (("shapes", shapes), ("scales", scales)):
            for field in given or {}:
                require(field in fields, f"{_NAME}{name}", f"for fields among {', '.join(fields)}", field)
        self.path, self.test_path, self.test_clients = path, test_path, test_clients
        self.fields, self.shapes, self.scales = fields, shapes or {}, scales or {}
        self.eval_batch_size = eval_batch_size
        self.origin = "not loaded yet"
        self._ids: Any = None
        self._sizes: Any = None
        self._test: Any = None
        if test_path is None:
            leave_out(self, "val_dataloader", "test_dataloader")

    def setup(self, stage: str) -> None:
        """Read the numbers of examples, and the server's set, once."""
        if self._ids is not None:
            return
        self._ids, self._sizes = _clients(Path(self.path))
        self._read(self.path, self._ids[:1])  # wrong settings are no failure of a client
        self.origin = f"{self.path} ({len(self._ids):,} clients, {int(self._sizes.sum()):,} examples, read when drawn)"
        if self.test_path is not None:
            self._test = self._read(self.test_path, _clients(Path(self.test_path))[0][: self.test_clients])

    def num_examples(self) -> Tensor:
        """Return the number of examples of each client."""
        return torch.from_numpy(self._sizes)

    def open(self, client: int) -> Dataset[Any]:
        """Read a client's examples.

        Raises:
            DataError: if they cannot be read.
        """
        found: Dataset[Any] = self._read(self.path, [self._ids[client]])
        return found

    def val_dataloader(self) -> Any:
        """Return the server's set."""
        return DataLoader(self._test, self.eval_batch_size, collate_fn=self.collate_fn)

    def test_dataloader(self) -> Any:
        """Return the server's set."""
        return self.val_dataloader()

    def _read(self, path: str, ids: Sequence[str]) -> Any:
        """Return the examples of clients."""
        parts: list[list[np.ndarray[Any, Any]]] = [[] for _ in self.fields]
        with _opened(Path(path)) as file:
            for client in ids:
                group = file[_GROUP][client]
                for name, part in zip(self.fields, parts, strict=True):
                    if name not in group:
                        raise DataError(
                            f"'{path}': client '{client}' has no field '{name}'.{did_you_mean(name, list(group))} It has "
                            f"{', '.join(list(group)[:_SHOWN])}. Correct '{_NAME}fields'."
                        )
                    part.append(np.asarray(group[name][()]))
        columns = [self._column(path, name, part) for name, part in zip(self.fields, parts, strict=True)]
        if all(isinstance(column, Tensor) for column in columns):
            return TensorDataset(*columns)
        return list(zip(*columns, strict=True))

    def _column(self, path: str, name: str, parts: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Return a field as a tensor; text as a list."""
        if parts[0].dtype.kind in "OSU":
            return [one.decode() if isinstance(one, bytes) else one for part in parts for one in part.tolist()]
        scale, shape = self.scales.get(name), self.shapes.get(name)
        kind = np.float32 if scale is not None or parts[0].dtype.kind == "f" else np.int64
        try:
            tensor = torch.from_numpy(np.concatenate(parts).astype(kind))
            tensor = tensor if shape is None else tensor.reshape(len(tensor), *shape)
        except (ValueError, RuntimeError) as error:
            found = " and ".join(str([*one]) for one in dict.fromkeys(part.shape[1:] for part in parts))
            raise DataError(
                f"'{path}': the examples of '{name}' have the shape {found}, but must have one shape, or become {shape} by "
                f"'{_NAME}shapes'. Correct the setting, or the file."
            ) from error
        return tensor if scale is None else tensor * scale


def _clients(path: Path) -> tuple[Any, Any]:
    """Return the names of a file's clients and the numbers of their examples.

    Raises:
        DataError: if the file has none, or they do not have the form.
    """
    with _opened(path) as file:
        status = path.stat()
        version, index = np.array([status.st_size, status.st_mtime_ns]), Path(f"{path}{_INDEX}")
        ids, sizes = _indexed(index, version) or _listed(file[_GROUP], path, index, version)
    if not len(ids):
        raise DataError(f"'{path}' has no clients. Add at least one with an example.")
    return ids, sizes


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
            f"Cannot write '{index}' ({error.strerror}), so each run lists the clients again. Set 'data.datamodule.path' to a "
            "link to the file in a folder that can be written."
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
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"Cannot read '{path}' as an HDF5 file ({reason}). Correct '{_NAME}path', or fix the file.") from error
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
