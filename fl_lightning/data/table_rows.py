"""Read the files of all clients as one table of numbers: every column a number, or columns that a schema describes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.data.schema import Schema
from fl_lightning.data.table_cells import FieldReader, decimal_mark, numbers
from fl_lightning.data.table_exports import Exports
from fl_lightning.data.table_source import ENDINGS, SourceTable, filled, listed, read_source
from fl_lightning.errors import DataError, did_you_mean

_SHOWN = 5


@dataclass(frozen=True)
class Columns:
    """Declare the roles of a table's columns; all others are features.

    Args:
        target: the target column, or None.
        client: the column that names the client of each row; None if files name it, or if the table has no clients.
        text_target: whether the target is read as text, for classes, and not as a number.
        person: the column that names the person of each row, or None.
        schema: what the columns mean; None if all features are numbers.
        exports: how the files were exported.
    """

    target: str | None
    client: str | None
    text_target: bool
    person: str | None = None
    schema: Schema | None = None
    exports: Exports = field(default_factory=Exports)


@dataclass(frozen=True)
class Table:
    """Hold the rows of one file, or of several one after another.

    Args:
        names: the names of the features.
        features: the features, finite in float32, float64, shape (n, d).
        target: the target, shape (n,): float64, text, or the codes of the schema's classes, int64; or None.
        clients: the name of each row's client, text, shape (n,), or None.
        sources: the files, in the order of the rows.
        persons: the name of each row's person, text, shape (n,), or None.
    """

    names: tuple[str, ...]
    features: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any] | None
    clients: np.ndarray[Any, Any] | None
    sources: tuple[SourceTable, ...]
    persons: np.ndarray[Any, Any] | None = None

    def place(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        ends = list(accumulate(source.rows for source in self.sources))
        number = bisect_right(ends, row)
        return self.sources[number].place(row - (ends[number - 1] if number else 0))


def table_files(path: Path, setting: str) -> list[Path]:
    """Return the file, or the tables of the folder, sorted by name.

    Raises:
        DataError: if no table exists, or if two files of a folder have the same name.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(
            f"'{path}' is neither a file nor a folder. Set '{setting}' to a CSV file, or to a folder with one per client."
        )
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and file.name[0] != "." and file.is_file())
    if not found:
        raise DataError(
            f"The folder '{path}' has no CSV file (*.csv) and no Parquet file. Set '{setting}' to a folder with one per client."
        )
    twice = [name for name, count in Counter(file.stem for file in found).items() if count > 1]
    if twice:
        raise DataError(f"The folder '{path}' has several tables named '{twice[0]}'. Give every client one file.")
    return found


def read_table(path: Path | Mapping[str, Path], columns: Columns, setting: str, like: Table | None = None) -> Table:
    """Read a file, a folder with one file for each client, or the files of each client.

    Columns are matched by name, in any order.

    Args:
        path: the path of the file or the folder, or a path for each client by name.
        columns: the roles of the columns.
        setting: the setting that holds the path, for messages.
        like: a table whose features this one must have; columns of clients and persons may then be missing.

    Raises:
        DataError: if a file is invalid; the message names file, line and column.
    """
    if isinstance(path, Path):
        found = [(file.stem, file) for file in table_files(path, setting)]
    else:
        found = [(name, file) for name in sorted(path) for file in table_files(path[name], setting)]
    own = not isinstance(path, Path) or path.is_dir()
    if like is None:
        columns.exports.require_clients([name for name, _ in found] if own else [])
    exports = [columns.exports.of(name if own and like is None else None) for name, _ in found]
    files = [read_source(file, export.csv) for (_, file), export in zip(found, exports, strict=True)]
    for file in files:
        _require_columns(file, columns, optional=like is not None)
    if columns.schema is None:
        names = _feature_names(files, columns, setting, like)
        target, features = _plain(files, columns, names)
    else:
        names = columns.schema.feature_names
        readers = [FieldReader(file, export, columns.schema) for file, export in zip(files, exports, strict=True)]
        target, features = _described(readers, columns, columns.schema)
    clients = None
    if own:
        clients = np.concatenate([np.full(file.rows, name) for (name, _), file in zip(found, files, strict=True)])
    elif columns.client is not None and columns.client in files[0].header:
        clients = filled(files[0], columns.client)
    persons = None
    if columns.person is not None and all(columns.person in file.header for file in files):
        persons = np.concatenate([filled(file, columns.person) for file in files])
    return Table(names, features, target, clients, tuple(files), persons)


def _require_columns(file: SourceTable, columns: Columns, optional: bool) -> None:
    wanted = {} if columns.schema is not None else {"target": columns.target}
    wanted |= {} if optional else {"client_column": columns.client, "person_column": columns.person}
    for setting, name in wanted.items():
        if name is not None and name not in file.header:
            null = " (or to null for data without a target)" if setting == "target" else ""
            raise DataError(
                f"'{file.path}' has no column '{name}'. Its columns are {listed(file.header)}. Set "
                f"'data.datamodule.{setting}' to one of them{null}, or add the column."
            )


# ---------------------------------------------------------------- without a schema


def _plain(
    files: Sequence[SourceTable], columns: Columns, names: Sequence[str]
) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
    """Return the target and the features, which are numbers."""
    targets, features = [], []
    for file in files:
        numeric = columns.target is not None and not columns.text_target
        decimal = decimal_mark(file, [*names, *([str(columns.target)] if numeric else [])])
        if columns.target is not None:
            own = file.text if file.form is None else file.column
            targets.append(
                filled(file, columns.target)
                if columns.text_target
                else _full(file, columns.target, own(columns.target), decimal)
            )
        features.append(np.stack([_full(file, name, file.column(name), decimal) for name in names], axis=1))
    return np.concatenate(targets) if targets else None, np.concatenate(features)


def _full(file: SourceTable, name: str, cells: Any, decimal: str) -> np.ndarray[Any, Any]:
    """Return a column of numbers without gaps."""
    return numbers(file, name, cells.cast("string").fill_null("") if cells.null_count else cells, decimal)


def _feature_names(files: Sequence[SourceTable], columns: Columns, setting: str, like: Table | None) -> tuple[str, ...]:
    """Return the features of all files, in the order of the first file or of ``like``."""
    others = (columns.target, columns.client, columns.person)
    found = [tuple(name for name in file.header if name not in others) for file in files]
    usual = frozenset(like.names) if like else Counter(map(frozenset, found)).most_common(1)[0][0]
    if not usual:
        raise DataError(f"'{files[0].path}' has no columns besides {listed(files[0].header)}. Add columns of features.")
    odd = [_difference(file.path, frozenset(names), usual) for file, names in zip(files, found, strict=True)]
    odd = [text for text in odd if text]
    if odd:
        more = f", and {len(odd) - _SHOWN} more files" if len(odd) > _SHOWN else ""
        against = "the training data have" if like else "the others have"
        raise DataError(
            f"The files have different features: {'; '.join(odd[:_SHOWN])}{more}; {against} {listed(sorted(usual))}. Give "
            f"every file of '{setting}' the same columns."
        )
    return like.names if like else found[0]


def _difference(path: Path, names: frozenset[str], usual: frozenset[str]) -> str:
    """Describe which columns a file has more or less than usual; return an empty text if none."""
    less, more = sorted(usual - names), sorted(names - usual)
    parts = [f"lacks {listed(less)}"] if less else []
    parts += [f"also has {listed(more)}"] if more else []
    return f"'{path}' {' and '.join(parts)}" if parts else ""


# ---------------------------------------------------------------- with a schema


def _described(
    readers: Sequence[FieldReader], columns: Columns, schema: Schema
) -> tuple[np.ndarray[Any, Any] | None, np.ndarray[Any, Any]]:
    """Return the target and the features as the schema describes them."""
    for reader in readers:
        require_fields(reader)
    _warn_of_further([(reader.source, further_columns(reader, (columns.client, columns.person))) for reader in readers])
    features = np.concatenate([np.concatenate([reader.features(one) for one in schema.features], axis=1) for reader in readers])
    target_field = schema.target_field
    if target_field is None:
        return None, features
    target = np.concatenate([reader.checked(target_field) for reader in readers])
    return target.astype(np.int64) if schema.classes else target, features


def require_fields(reader: FieldReader) -> None:
    """Refuse a file that lacks a column of the schema.

    Raises:
        DataError: naming the columns, and the nearest ones in the file.
    """
    header, missing = reader.source.header, []
    for one in reader.schema.fields:
        column = reader.export.source(one.name).column
        if column not in header:
            read_for = "" if column == one.name else f" for '{one.name}'"
            missing.append(f"'{column}'{read_for}.{did_you_mean(column, header)}")
    if missing:
        more = f" And {len(missing) - _SHOWN} more." if len(missing) > _SHOWN else ""
        raise DataError(
            f"'{reader.source.path}' lacks columns of the schema: {' '.join(missing[:_SHOWN])}{more} Its columns are "
            f"{listed(header)}. Add the column, or name the one that holds it: '{reader.export.setting}: "
            f"{{FIELD: {{from: COLUMN}}}}'."
        )


def further_columns(reader: FieldReader, others: Sequence[str | None]) -> list[str]:
    """Return the columns of a file that neither the schema nor a setting names."""
    used = {reader.export.source(one.name).column for one in reader.schema.fields} | set(others)
    return [name for name in reader.source.header if name not in used]


def _warn_of_further(found: Sequence[tuple[SourceTable, list[str]]]) -> None:
    parts = [f"'{source.path}' has {listed(names)}" for source, names in found if names]
    if parts:
        more = f", and {len(parts) - _SHOWN} more files have some" if len(parts) > _SHOWN else ""
        rank_zero_warn(f"Columns that the schema does not name are ignored: {'; '.join(parts[:_SHOWN])}{more}.")
