"""Read the files of all clients as one table of numbers: every column a number, or columns that a schema describes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.data.schema import Field, Schema
from fl_lightning.data.schema_cells import Export, FieldReader
from fl_lightning.data.schema_file import repeated
from fl_lightning.data.table_file import ENDINGS, SourceTable, listed, read_source
from fl_lightning.errors import ConfigurationError, DataError, did_you_mean


@dataclass(frozen=True)
class Columns:
    """Declare the roles of a table's columns; all others are features.

    Args:
        target: the target column, or None.
        client: the column that names the client of each row; None if files name it, or if the table has no clients.
        text_target: whether the target is read as text, for classes, and not as a number.
        person: the column that names the person of each row, or None.
        schema: what the columns mean; None if all features are numbers.
        exports: how the files of each client were exported; of all others, by None.
    """

    target: str | None
    client: str | None
    text_target: bool
    person: str | None
    schema: Schema | None
    exports: Mapping[str | None, Export]


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


def table_files(path: Path | Mapping[str, Path], setting: str) -> list[tuple[str | None, Path]]:
    """Return each file with its client, sorted by name: the tables of a folder, or of each client; None for a single file.

    Raises:
        DataError: if no table exists, or if two files of a folder have the same name.
    """
    if isinstance(path, Mapping):
        return [(name, file) for name in sorted(path) for _, file in table_files(path[name], setting)]
    if path.is_file():
        return [(None, path)]
    if not path.is_dir():
        raise DataError(
            f"'{path}' is neither a file nor a folder. Set '{setting}' to a CSV file, or to a folder with one per client."
        )
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS and file.name[0] != "." and file.is_file())
    if not found:
        raise DataError(
            f"The folder '{path}' has no CSV file (*.csv) and no Parquet file. Set '{setting}' to a folder with one per client."
        )
    for twice in repeated(file.stem for file in found):
        raise DataError(f"The folder '{path}' has several tables named '{twice}'. Give every client one file.")
    return [(file.stem, file) for file in found]


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
    found = table_files(path, setting)
    owners = [name for name, _ in found if name is not None]
    for client in columns.exports if like is None else ():
        if client not in (None, *owners):
            what = f"'data.datamodule.exports' names the client '{client}', who has no file in '{setting}'."
            raise ConfigurationError(what + did_you_mean(str(client), owners))
    usual = columns.exports[None]
    exports = [usual if like else columns.exports.get(name, usual) for name, _ in found]
    files = [read_source(file, export.csv) for (_, file), export in zip(found, exports, strict=True)]
    for file in files:
        _require_columns(file, columns, optional=like is not None)
    schema = columns.schema or _plain_schema(files, columns, setting, like)
    readers = [FieldReader(file, export, schema) for file, export in zip(files, exports, strict=True)]
    for reader in readers:
        _require_fields(reader)
    if columns.schema is not None:
        _warn_of_further(readers, columns)
    features = [np.concatenate([reader.features(one) for one in schema.features], axis=1) for reader in readers]
    target = None
    if schema.target_field is not None:
        codes = np.concatenate([reader.values(schema.target_field) for reader in readers])
        target = codes.astype(np.int64) if schema.classes else codes
    elif columns.target is not None:
        target = _texts(files, columns.target)
    clients = None
    if owners:
        clients = np.concatenate([np.full(file.rows, name) for name, file in zip(owners, files, strict=True)])
    elif columns.client is not None and columns.client in files[0].header:
        clients = _texts(files, columns.client)
    named = columns.person is not None and all(columns.person in file.header for file in files)
    persons = _texts(files, str(columns.person)) if named else None
    return Table(schema.feature_names, np.concatenate(features), target, clients, tuple(files), persons)


def _require_columns(file: SourceTable, columns: Columns, optional: bool) -> None:
    wanted = {} if columns.schema is not None else {"target": columns.target}
    wanted |= {} if optional else {"client_column": columns.client, "person_column": columns.person}
    for setting, name in wanted.items():
        if name is not None and name not in file.header:
            null = " (or to null for data without a target)" if setting == "target" else ""
            what = f"'{file.path}' has no column '{name}'. {file.in_words}"
            raise DataError(f"{what} Set 'data.datamodule.{setting}' to one of them{null}, or add the column.")


def _texts(files: Sequence[SourceTable], name: str) -> np.ndarray[Any, Any]:
    """Return a column of text, which must not have gaps.

    Raises:
        DataError: naming the first gap.
    """
    found = []
    for file in files:
        cells = file.text(name).fill_null("").to_pylist()
        if "" in cells:
            file.refuse(cells.index(""), name, "is empty", "Fill it, or remove the row.")
        found.append(np.array(cells))
    return np.concatenate(found)


def _plain_schema(files: Sequence[SourceTable], columns: Columns, setting: str, like: Table | None) -> Schema:
    """Return the schema of files whose features are numbers, in the order of the first file or of ``like``."""
    others = (columns.target, columns.client, columns.person)
    found = [tuple(name for name in file.header if name not in others) for file in files]
    usual = frozenset(like.names) if like else Counter(map(frozenset, found)).most_common(1)[0][0]
    if not usual:
        raise DataError(f"'{files[0].path}' has no columns besides {listed(files[0].header)}. Add columns of features.")
    unlike = [(file.path, sorted(usual ^ set(names))) for file, names in zip(files, found, strict=True)]
    odd = [f"'{path}' differs in {listed(names)}" for path, names in unlike if names]
    if odd:
        against = "the training data have" if like else "the others have"
        raise DataError(
            f"The files have different features: {listed(odd, '; ')}; {against} {listed(sorted(usual))}. Give every file of "
            f"'{setting}' the same columns."
        )
    target = None if columns.text_target else columns.target
    names = [*(like.names if like else found[0]), *([] if target is None else [target])]
    flags = {name for name in names if all(file.columns[name].type == "bool" for file in files)}
    return Schema(tuple(Field(name, "boolean" if name in flags else "number") for name in names), target)


def _require_fields(reader: FieldReader) -> None:
    missing = reader.missing_columns()
    if missing:
        raise DataError(
            f"'{reader.source.path}' lacks columns of the schema: {listed(missing, ' ')} {reader.source.in_words} Add the "
            f"column, or name the one that holds it: '{reader.export.setting}: {{FIELD: {{from: COLUMN}}}}'."
        )


def _warn_of_further(readers: Sequence[FieldReader], columns: Columns) -> None:
    found = [(reader.source.path, reader.further_columns((columns.client, columns.person))) for reader in readers]
    parts = [f"'{path}' has {listed(names)}" for path, names in found if names]
    if parts:
        rank_zero_warn(f"Columns that the schema does not name are ignored: {listed(parts, '; ')}.")
