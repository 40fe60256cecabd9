"""Read clients from Parquet files with a column of client ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.data.file_clients import ClientStore, Field, FileClients, require_fields, unreadable
from fl_lightning.data.table_file import arrow, whole_column
from fl_lightning.errors import DataError


class ParquetClients(FileClients):
    """Serve clients from a Parquet file, or from a folder of them, in which a column holds each row's client.

    The rows of a client lie together, also over files in the order of their names. The column of clients is read once. A client
    that is drawn reads the row groups that hold its rows, so write small ones: ``row_group_size=1000``. A field is a column
    of numbers, of text, or of lists of equal length. ``fl-lightning fit --help ParquetClients`` lists the other arguments.

    Args:
        client_column: the column with the client of each row, numbers or text.
    """

    def __init__(
        self,
        path: str,
        fields: list[str],
        client_column: str = "client",
        shapes: dict[str, list[int]] | None = None,
        scales: dict[str, float] | None = None,
        test_path: str | None = None,
        test_clients: int | None = None,
        batch_size: int = 32,
        eval_batch_size: int = 1000,
        shuffle: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        given = (test_path, test_clients, batch_size, eval_batch_size, shuffle, collate_fn)
        super().__init__(path, fields, shapes, scales, *given)
        self.client_column = client_column

    def store(self, path: Path) -> ClientStore:
        """Return the clients of a file or folder; see ``FileClients.store``."""
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files:
            raise DataError(f"'{path}' has no files '*.parquet'. Correct 'data.datamodule.path'.")
        return _ParquetStore(files, self.client_column, self.fields)


class _ParquetStore(ClientStore):
    def __init__(self, files: list[Path], client_column: str, fields: list[str]) -> None:
        self._files, self._fields = files, fields
        opened = [_opened(path) for path in files]
        for path, file in zip(files, opened, strict=True):
            require_fields(path, [client_column], file.schema_arrow.names, "column", "client_column")
            require_fields(path, fields, file.schema_arrow.names, "column")
        self._metadata = [file.metadata for file in opened]
        groups = [file.metadata.row_group(k).num_rows for file in opened for k in range(file.num_row_groups)]
        self._places = [(number, k) for number, file in enumerate(opened) for k in range(file.num_row_groups)]
        self._group_ends = np.cumsum([0, *groups])
        self._ends = self._client_ends(opened, client_column)
        self.sizes = np.diff(self._ends)

    def _client_ends(self, opened: list[Any], column: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return where the rows of each client end, with a zero before."""
        values = _together(self._files, [file.read([column]) for file in opened])[column]
        if values.null_count:
            raise DataError(f"'{self._files[0]}': rows have no '{column}'. Fill the column, or remove the rows.")
        if not len(values):
            return np.zeros(1, np.int64)
        encoded = values.dictionary_encode().unify_dictionaries()
        codes = np.concatenate([chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks])
        ends = np.append(np.flatnonzero(np.diff(codes)), len(codes) - 1) + 1
        runs = np.bincount(codes[ends - 1])
        if runs.max() > 1:
            apart = encoded.chunk(0).dictionary[int(runs.argmax())].as_py()
            raise DataError(
                f"'{self._files[0]}': the rows of client '{apart}' do not lie together. Sort the rows by the column "
                f"'{column}', and write them again."
            )
        return np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])

    def read(self, client: int) -> list[Field]:
        begin, end = int(self._ends[client]), int(self._ends[client + 1])
        first, last = (int(np.searchsorted(self._group_ends, row, side="right")) - 1 for row in (begin, end - 1))
        found = []
        for number in sorted({self._places[k][0] for k in range(first, last + 1)}):
            groups = [k for file, k in self._places[first : last + 1] if file == number]
            with _opened(self._files[number], self._metadata[number]) as file:
                found.append(file.read_row_groups(groups, columns=self._fields))
        rows = _together(self._files, found).slice(begin - int(self._group_ends[first]), end - begin)
        return [_values(self._files[self._places[first][0]], name, rows[name]) for name in self._fields]


def _opened(path: Path, metadata: Any = None) -> Any:
    pa = arrow()
    try:
        return pa.parquet.ParquetFile(path, metadata=metadata, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, "a Parquet file", error) from error


def _together(files: list[Path], tables: list[Any]) -> Any:
    pa = arrow()
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise unreadable(files[0].parent, "Parquet files with columns of the same types", error) from error


def _values(path: Path, name: str, column: Any) -> Field:
    """Return a column as an array; lists as rows of it."""
    pa = arrow()
    whole = whole_column(column)
    if whole.null_count:
        raise DataError(f"'{path}': the column '{name}' has missing values. Fill them, or remove the rows.")
    if not (pa.types.is_list(whole.type) or pa.types.is_large_list(whole.type) or pa.types.is_fixed_size_list(whole.type)):
        return np.asarray(whole.to_numpy(zero_copy_only=False))
    inner = _values(path, name, pa.chunked_array([whole.flatten()]))
    lengths = pa.compute.list_value_length(whole).unique().to_pylist()
    if len(lengths) > 1:
        raise DataError(
            f"'{path}': the column '{name}' has lists of different lengths, {lengths[0]} and {lengths[1]}. Pad them to one "
            "length."
        )
    return inner.reshape(len(whole), *(lengths or [0]), *inner.shape[1:])
