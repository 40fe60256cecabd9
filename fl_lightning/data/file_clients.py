"""Read clients from files that hold many of them, each when it is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.lazy_clients import LazyClients
from fl_lightning.errors import DataError, did_you_mean, require

Field = np.ndarray[Any, Any]
"""The values of a field of some examples, which are the first dimension; text as an array of objects."""
_NAME = "data.datamodule."
_SHOWN = 8


class ClientStore(ABC):
    """Read the examples of single clients from a file or folder.

    Attributes:
        sizes: the number of examples of each client.
    """

    sizes: np.ndarray[Any, np.dtype[np.int64]]

    @abstractmethod
    def read(self, client: int) -> list[Field]:
        """Return the fields of a client's examples.

        Raises:
            DataError: if they cannot be read.
        """


class FileClients(LazyClients):
    """Serve the clients of a file or folder; subclasses define :meth:`store`.

    Of a client that is not drawn, only the number of its examples is read. Clients are numbered from 0 in the file's order.
    Floating-point numbers become float32, whole numbers int64, and text stays text.

    Args:
        path: the file or folder with the clients.
        fields: the fields of an example, in the order in which batches hold them.
        shapes: the shape of one example's value, by field, such as ``{pixels: [1, 28, 28]}``; by default that in the file.
        scales: a factor by which a field is multiplied, which then is float32, such as ``{image: 0.00392}`` for bytes.
        test_path: a file or folder of the same form, whose clients together are the server's set; none by default.
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
        self._clients: ClientStore | None = None
        self._test: Dataset[Any] | None = None
        if test_path is None:
            for loader in ("val_dataloader", "test_dataloader"):
                vars(self)[loader] = getattr(LightningDataModule, loader).__get__(self)  # Lightning sees that none exists

    @abstractmethod
    def store(self, path: Path) -> ClientStore:
        """Return the clients of a file or folder.

        Raises:
            DataError: if it cannot be read, or has no clients or not all fields.
        """

    def setup(self, stage: str) -> None:
        """Read the numbers of examples, and the server's set, once."""
        if self._clients is not None:
            return
        self._clients = self._opened(self.path)
        sizes = self._clients.sizes
        self.origin = f"{self.path} ({len(sizes):,} clients, {int(sizes.sum()):,} examples, read when drawn)"
        if self.test_path is not None:
            held = self._opened(self.test_path)
            clients = [held.read(client) for client in range(len(held.sizes))[: self.test_clients]]
            columns = zip(self.fields, zip(*clients, strict=True), strict=True)
            self._test = self._dataset([_joined(self.test_path, name, parts) for name, parts in columns], self.test_path)

    def _opened(self, path: str) -> ClientStore:
        store = self.store(Path(path))
        if not len(store.sizes):
            raise DataError(f"'{path}' has no clients. Add at least one with an example.")
        return store

    def num_examples(self) -> Tensor:
        """Return the number of examples of each client."""
        assert self._clients is not None
        return torch.from_numpy(self._clients.sizes)

    def open(self, client: int) -> Dataset[Any]:
        """Read a client's examples.

        Raises:
            DataError: if they cannot be read.
        """
        assert self._clients is not None
        return self._dataset(self._clients.read(client), self.path)

    def val_dataloader(self) -> Any:
        """Return the server's set."""
        assert self._test is not None
        return DataLoader(self._test, self.eval_batch_size, collate_fn=self.collate_fn)

    def test_dataloader(self) -> Any:
        """Return the server's set."""
        return self.val_dataloader()

    def _dataset(self, values: Sequence[Field], path: str) -> Dataset[Any]:
        columns = [self._converted(name, one, path) for name, one in zip(self.fields, values, strict=True)]
        if len({len(column) for column in columns}) > 1:
            found = ", ".join(f"{len(column)} of '{name}'" for name, column in zip(self.fields, columns, strict=True))
            raise DataError(f"'{path}' has different numbers of values for one client: {found}. Give each example all fields.")
        if all(isinstance(column, Tensor) for column in columns):
            return TensorDataset(*columns)
        return _Rows(columns)

    def _converted(self, name: str, values: Field, path: str) -> Any:
        """Return a field as a tensor; text as a list."""
        if values.dtype.kind in "OSU":
            return [one.decode() if isinstance(one, bytes) else one for one in values.tolist()]
        scale = self.scales.get(name)
        kind = np.float32 if scale is not None or values.dtype.kind == "f" else np.int64
        tensor = torch.from_numpy(np.array(values, kind))
        shape = self.shapes.get(name)
        if shape is not None:
            try:
                tensor = tensor.reshape(len(tensor), *shape)
            except RuntimeError as error:
                raise DataError(
                    f"'{path}': the examples of '{name}' have the shape {[*values.shape[1:]]}, which cannot become {shape}. "
                    f"Correct '{_NAME}shapes'."
                ) from error
        return tensor if scale is None else tensor * scale


class _Rows(Dataset[Any]):
    """Hold examples that are partly text."""

    def __init__(self, columns: Sequence[Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(column[index] for column in self._columns)


def require_fields(path: Path, wanted: Sequence[str], found: Sequence[str], what: str, setting: str = "fields") -> None:
    """Refuse names that a file does not have.

    Raises:
        DataError: with the names that the file has.
    """
    for name in wanted:
        if name not in found:
            raise DataError(
                f"'{path}' has no {what} '{name}'.{did_you_mean(name, found)} It has {', '.join(found[:_SHOWN])}. Correct "
                f"'{_NAME}{setting}'."
            )


def unreadable(path: Path, form: str, error: Exception) -> DataError:
    """Return the error for a file that cannot be read."""
    reason = " ".join(str(error).split())[:200]
    return DataError(f"Cannot read '{path}' as {form} ({reason}). Correct '{_NAME}path', or fix the file.")


def _joined(path: str, name: str, parts: Sequence[Field]) -> Field:
    shapes: Mapping[Any, None] = dict.fromkeys(part.shape[1:] for part in parts)
    if len(shapes) > 1:
        one, other = [*shapes][:2]
        raise DataError(
            f"'{path}': the examples of '{name}' have the shapes {[*one]} and {[*other]}. Give all clients' examples one shape."
        )
    return np.concatenate(parts)
