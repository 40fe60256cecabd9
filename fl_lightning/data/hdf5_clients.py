"""Read clients from HDF5 files in the layout of TensorFlow Federated: ``examples/<client>/<field>``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.opened_clients import LazyClients
from fl_lightning.data.views import leave_out
from fl_lightning.errors import DataError, VersionError, did_you_mean, require
from fl_lightning.utilities.atomic_file import write_whole

_GROUP = "examples"
_INDEX = ".index.json"
_NAME = "data.datamodule."
_SHOWN = 8


class HDF5Clients(LazyClients):
    """Serve clients from an HDF5 file with a group for each client and a data set for each field: ``examples/f0000_14/pixels``.

    This is the layout of TensorFlow Federated's files, such as FedEMNIST, CIFAR-100, Shakespeare and Stack Overflow. To count a
    client's examples, its group must be opened, so the numbers are kept in ``<path>.index.json``, which is written once, and
    again when the HDF5 file changes. Clients are numbered from 0 in the file's order. Floating-point numbers become float32,
    whole numbers int64, and text stays text.

    Args:
        path: the file with the clients.
        fields: the fields of an example, in the order in which batches hold them.
        shapes: the shape of one example's value, by field, such as ``{pixels: [1, 28, 28]}``; by default that in the file.
        scales: a factor by which a field is multiplied, which then is float32, such as ``{image: 0.00392}`` for bytes.
        test_path: a file of the same form, whose clients together are the server's set; none by default.
        test_clients: how many clients of ``test_path`` are read, the first ones; None for all.
        eval_batch_size: the examples per batch of the server's set, >= 1.
        settings: those of the :class:`~fl_lightning.LazyClients`: batch_size, shuffle, collate_fn.

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
        eval_batch_size: int = 1000,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
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
        self._sizes: dict[str, int] = {}
        self._ids: Sequence[str] = ()
        self._test: Any = None
        if test_path is None:
            leave_out(self, "val_dataloader", "test_dataloader")

    def setup(self, stage: str) -> None:
        """Read the numbers of examples, and the server's set, once."""
        if self._ids:
            return
        self._sizes = _sizes(Path(self.path))
        self._ids = [*self._sizes]
        self._read(self.path, self._ids[:1])  # wrong settings are no failure of a client
        self.origin = f"{self.path} ({len(self._ids):,} clients, {sum(self._sizes.values()):,} examples, read when drawn)"
        if self.test_path is not None:
            self._test = self._read(self.test_path, [*_sizes(Path(self.test_path))][: self.test_clients])

    def num_examples(self) -> Tensor:
        """Return the number of examples of each client."""
        return torch.tensor([*self._sizes.values()])

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
        with _clients(Path(path)) as clients:
            for client in ids:
                group = clients[client]
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


def _sizes(path: Path) -> dict[str, int]:
    """Return the number of each client's examples, from the index if it is that of this file.

    Raises:
        DataError: if the file has no clients, or they do not have the form.
    """
    index = Path(f"{path}{_INDEX}")
    with _clients(path) as clients:
        status = path.stat()
        version = [status.st_size, status.st_mtime_ns]
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):  # no index, or another file
            held = json.loads(index.read_text(encoding="utf-8"))
            if held["version"] == version:
                return dict(held["sizes"])
        sizes = {client: _size(path, client, group) for client, group in clients.items()}
    if not sizes:
        raise DataError(f"'{path}' has no clients. Add at least one with an example.")
    with contextlib.suppress(OSError):  # in a folder that cannot be written, each run lists the clients again
        write_whole(index, json.dumps({"version": version, "sizes": sizes}).encode())
    return sizes


def _size(path: Path, client: str, group: Any) -> int:
    lengths = {one.shape[0] if one.shape else 0 for one in group.values()}
    if len(lengths) != 1:
        found = ", ".join(f"'{name}' {[*one.shape]}" for name, one in group.items())
        raise DataError(
            f"'{path}': the fields of client '{client}' have {found or 'no values'}, but must have one value for each example. "
            "Write the file again, or remove the client."
        )
    return int(lengths.pop())


@contextlib.contextmanager
def _clients(path: Path) -> Iterator[Any]:
    """Open a file, and return its group of clients.

    Raises:
        DataError: if it cannot be read as one.
        VersionError: if h5py is not installed.
    """
    try:
        file = import_module("h5py").File(path, "r")
    except ImportError as error:
        raise VersionError(f"HDF5 files are read with h5py ({error}). Install it: pip install 'fl_lightning[hdf5]'") from error
    except OSError as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"Cannot read '{path}' as an HDF5 file ({reason}). Correct '{_NAME}path', or fix the file.") from error
    with file:
        if _GROUP not in file:
            raise DataError(
                f"'{path}' has no group '{_GROUP}', but {', '.join(list(file)[:_SHOWN]) or 'nothing'}. Write a group for each "
                f"client, with a data set for each field: {_GROUP}/<client>/<field>."
            )
        yield file[_GROUP]
