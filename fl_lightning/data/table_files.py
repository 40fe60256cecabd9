"""Find CSV files, read their numbers, and report errors by file, line and column."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.errors import DataError

_SHOWN = 5
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Columns:
    """Declare the roles of a table's columns; all others are features.

    Args:
        target: the target column, or None.
        client: the column that names the client of each row; None if files name it, or if the table has no clients.
        text_target: whether the target is read as text, for classes, and not as a number.
        person: the column that names the person of each row, or None.
    """

    target: str | None
    client: str | None
    text_target: bool
    person: str | None = None


@dataclass(frozen=True)
class Table:
    """Hold the rows of one file, or of several one after another.

    Args:
        names: the names of the features.
        features: the features, finite in float32, float64, shape (n, d).
        target: the target, float64 or text, shape (n,), or None.
        clients: the name of each row's client, text, shape (n,), or None.
        places: the file and line of each row, for messages.
        persons: the name of each row's person, text, shape (n,), or None.
    """

    names: tuple[str, ...]
    features: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any] | None
    clients: np.ndarray[Any, Any] | None
    places: tuple[str, ...]
    persons: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class _File:
    """Hold a file as text."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def place(self, row: int) -> str:
        return f"{self.path}, line {self.lines[row]}"

    def cells(self, name: str) -> list[str]:
        k = self.header.index(name)
        return [row[k] for row in self.rows]


def csv_files(path: Path, setting: str) -> list[Path]:
    """Return the file, or those of the folder, sorted by name.

    Raises:
        DataError: if no CSV file exists.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(
            f"'{path}' is neither a file nor a folder. Set '{setting}' to a CSV file, or to a folder with one per client."
        )
    found = sorted(file for file in path.iterdir() if file.suffix.lower() == ".csv" and file.name[0] != "." and file.is_file())
    if not found:
        raise DataError(f"The folder '{path}' has no CSV file (*.csv). Set '{setting}' to a folder with one per client.")
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
        found = [(file.stem, file) for file in csv_files(path, setting)]
    else:
        found = [(name, file) for name in sorted(path) for file in csv_files(path[name], setting)]
    files, own = [_read(file) for _, file in found], not isinstance(path, Path) or path.is_dir()
    for file in files:
        _require_columns(file, columns, optional=like is not None)
    names = _feature_names(files, columns, setting, like)
    clients = None
    if own:
        clients = np.concatenate([np.full(len(file.rows), name) for (name, _), file in zip(found, files, strict=True)])
    elif columns.client is not None and columns.client in files[0].header:
        clients = np.array(_filled(files[0], columns.client))
    target = None if columns.target is None else np.concatenate([_target(file, columns) for file in files])
    features = np.concatenate([_numbers(file, names) for file in files])
    persons = None
    if columns.person is not None and all(columns.person in file.header for file in files):
        persons = np.concatenate([np.array(_filled(file, columns.person)) for file in files])
    places = tuple(file.place(k) for file in files for k in range(len(file.rows)))
    return Table(names, features, target, clients, places, persons)


def _read(path: Path) -> _File:
    rows, lines = [], []
    try:
        with open(path, newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text)
            for row in reader:
                if row:
                    rows.append([cell.strip() for cell in row])
                    lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"Cannot read '{path}' as a CSV file in UTF-8 ({error}). Fix the file.") from error
    if len(rows) < 2:
        what = "is empty" if not rows else "has a header but no rows"
        raise DataError(f"'{path}' {what}. Add a header with column names and at least one row, or remove the file.")
    file = _File(path, rows[0], rows[1:], lines[1:])
    _check_header(file)
    for k, row in enumerate(file.rows):
        if len(row) != len(file.header):
            raise DataError(f"{file.place(k)} has {len(row)} cells, but the header has {len(file.header)}. Fix that line.")
    return file


def _check_header(file: _File) -> None:
    header = file.header
    if all(_number(name) is not None for name in header):
        raise DataError(
            f"'{file.path}' begins with numbers ({', '.join(header[:_SHOWN])}). Add a header with the names of the columns."
        )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice or "" in header:
        what = f"names the column '{twice[0]}' twice" if twice and twice[0] else "has a column without a name"
        raise DataError(f"The header of '{file.path}' {what}. Give every column a name of its own.")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise DataError(f"The header of '{file.path}' is one column, '{header[0]}'. Separate columns with commas.")


def _require_columns(file: _File, columns: Columns, optional: bool) -> None:
    wanted = {"target": columns.target}
    wanted |= {} if optional else {"client_column": columns.client, "person_column": columns.person}
    for setting, name in wanted.items():
        if name is not None and name not in file.header:
            null = " (or to null for data without a target)" if setting == "target" else ""
            raise DataError(
                f"'{file.path}' has no column '{name}'. Its columns are {_listed(file.header)}. Set "
                f"'data.datamodule.{setting}' to one of them{null}, or add the column."
            )


def _feature_names(files: Sequence[_File], columns: Columns, setting: str, like: Table | None) -> tuple[str, ...]:
    """Return the features of all files, in the order of the first file or of ``like``."""
    others = (columns.target, columns.client, columns.person)
    found = [tuple(name for name in file.header if name not in others) for file in files]
    usual = frozenset(like.names) if like else Counter(map(frozenset, found)).most_common(1)[0][0]
    if not usual:
        raise DataError(f"'{files[0].path}' has no columns besides {_listed(files[0].header)}. Add columns of features.")
    odd = [_difference(file.path, frozenset(names), usual) for file, names in zip(files, found, strict=True)]
    odd = [text for text in odd if text]
    if odd:
        more = f", and {len(odd) - _SHOWN} more files" if len(odd) > _SHOWN else ""
        against = "the training data have" if like else "the others have"
        raise DataError(
            f"The files have different features: {'; '.join(odd[:_SHOWN])}{more}; {against} {_listed(sorted(usual))}. Give "
            f"every file of '{setting}' the same columns."
        )
    return like.names if like else found[0]


def _difference(path: Path, names: frozenset[str], usual: frozenset[str]) -> str:
    """Describe which columns a file has more or less than usual; return an empty text if none."""
    less, more = sorted(usual - names), sorted(names - usual)
    parts = [f"lacks {_listed(less)}"] if less else []
    parts += [f"also has {_listed(more)}"] if more else []
    return f"'{path}' {' and '.join(parts)}" if parts else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_0 as ten
    except ValueError:
        return None


def _filled(file: _File, name: str) -> list[str]:
    """Return a column of text, which must not have gaps."""
    cells = file.cells(name)
    if "" in cells:
        raise DataError(f"{file.place(cells.index(''))}: the column '{name}' is empty. Fill it, or remove the row.")
    return cells


def _target(file: _File, columns: Columns) -> np.ndarray[Any, Any]:
    assert columns.target is not None
    if columns.text_target:
        return np.array(_filled(file, columns.target))
    return _numbers(file, [columns.target])[:, 0]


def _numbers(file: _File, names: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return columns of numbers, float64, shape (rows, names)."""
    positions = [file.header.index(name) for name in names]
    try:
        cells = [[row[k] for k in positions] for row in file.rows]
        values = np.array(cells).astype(np.float64)
        good = bool((np.abs(values) <= _LARGEST).all()) and not any("_" in cell for row in cells for cell in row)  # NaN is not
    except ValueError:
        good = False
    if not good:
        raise _no_number(file, names)
    return values


def _no_number(file: _File, names: Sequence[str]) -> DataError:
    """Return the error for the first cell that is not a finite number."""
    for row, cells in enumerate(file.rows):
        for name in names:
            cell = cells[file.header.index(name)]
            value = _number(cell)
            if value is None or not abs(value) <= _LARGEST:
                what = "is empty" if not cell else f"holds '{cell}', which is not a {'' if value is None else 'finite '}number"
                return DataError(
                    f"{file.place(row)}: the column '{name}' {what}. Write a number, remove the row, or remove the column from "
                    "the files of 'data.datamodule.path' (and 'test_path')."
                )
    raise AssertionError("every cell is a number")
