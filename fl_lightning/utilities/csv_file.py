"""Read CSV files, and write them so that no spreadsheet takes a text for a formula: names and causes come from sites."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from fl_lightning.errors import DataError

_FORMULA = re.compile("(^|[;\t])(?=[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20])")
"""Where a cell that a spreadsheet would evaluate begins; in many countries it also takes a semicolon for a separator."""


def read_rows(path: Path) -> list[list[str]]:
    """Return the header and all complete rows, or an empty header without a file; a killed process may leave half a line.

    Raises:
        DataError: if the file cannot be read.
    """
    try:
        text = path.read_bytes().decode(errors="replace") if path.exists() else ""
        rows = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="")))
    except (OSError, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read: {error}. Repair it, or move it away.") from error
    return [row for row in rows if len(row) == len(rows[0])] or [[]]


def write_csv(path: Path, header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table to a file whose folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        write_rows(file, [header, *rows])


def write_rows(file: IO[str], rows: Iterable[Sequence[Any]], end: str = "\r\n") -> None:
    """Write rows; a text that a spreadsheet would evaluate gets an apostrophe, by which spreadsheets mark texts.

    Args:
        file: an open file of text.
        rows: the rows.
        end: the end of a line.
    """
    csv.writer(file, lineterminator=end).writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not _FORMULA.search(value):
        return value
    try:
        float(value)
    except ValueError:
        return _FORMULA.sub(r"\1'", value)
    return value  # a number, also a negative one
