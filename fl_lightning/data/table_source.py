"""Read a CSV or Parquet file as columns of text, whatever its separator, quotes and encoding."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from fl_lightning.data.table_exports import CsvForm
from fl_lightning.errors import DataError, VersionError

ENDINGS = (".csv", ".tsv", ".parquet")
"""The endings of the files in a folder that are tables."""
_SEPARATORS = ",;\t|"
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_LINES = 20
"""The lines from which a separator is detected."""
_BLOCK = 2**24
_SHOWN = 5


def arrow() -> ModuleType:
    """Return pyarrow with the modules that read tables.

    Raises:
        VersionError: if it is not installed.
    """
    try:
        for name in ("compute", "csv", "parquet"):
            import_module(f"pyarrow.{name}")
    except ImportError as error:
        raise VersionError(f"Tables are read with pyarrow ({error}). Install it: pip install 'fl_lightning[tables]'") from error
    return import_module("pyarrow")


@dataclass(frozen=True)
class SourceTable:
    """Hold a file.

    Args:
        path: the file.
        header: the names of its columns.
        columns: its columns as Arrow arrays: text without surrounding spaces, or of any type in a Parquet file.
        form: the form of a CSV file, with its separator and encoding; None for a Parquet file.
    """

    path: Path
    header: tuple[str, ...]
    columns: tuple[Any, ...]
    form: CsvForm | None

    @property
    def separated_by(self) -> str:
        """Return the separator of a CSV file in words; empty for a Parquet file."""
        mark = None if self.form is None else self.form.separator
        return "" if mark is None else _NAMES.get(mark, f"'{mark}'")

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0])

    def column(self, name: str) -> Any:
        """Return a column as an Arrow array."""
        return self.columns[self.header.index(name)]

    def text(self, name: str, days: bool = False) -> Any:
        """Return a column as an Arrow array of text, null where a Parquet file has no value.

        Args:
            name: the column's name.
            days: whether timestamps become days even if they have a time of day.
        """
        pa, column = arrow(), self.column(name)
        if self.form is not None:
            return column
        if pa.types.is_timestamp(column.type) and (days or _midnights(column) == len(column) - column.null_count):
            column = column.cast(pa.date32())
        try:
            return pa.compute.utf8_trim_whitespace(as_text(column))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"'{self.path}': the column '{name}' has the type {column.type}, which is not read as text. Save it as text."
            ) from error

    def place(self, row: int) -> str:
        """Return the file and line of a row, for messages."""
        if self.form is None:
            return f"{self.path}, row {row + 1}"
        lines = (line for line, _ in _csv_rows(_decoded(self.path, self.form)[0], self.form))
        return f"{self.path}, line {next(islice(lines, row + 1, None))}"


def as_text(column: Any) -> Any:
    """Return a column as text; floats that are all whole numbers as those, as Arrow writes 1e+16."""
    pa = arrow()
    if pa.types.is_floating(column.type):
        with suppress(pa.ArrowInvalid):  # not all are whole
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def _midnights(column: Any) -> int:
    """Return how many timestamps are days."""
    pa = arrow()
    days = pa.compute.floor_temporal(column, unit="day")
    return int(pa.compute.sum(pa.compute.equal(column, days)).as_py() or 0)


def read_source(path: Path, form: CsvForm) -> SourceTable:
    """Read a file.

    Args:
        path: a Parquet file by its ending; any other is CSV.
        form: the form of a CSV file; what is None is detected.

    Raises:
        DataError: if the file cannot be read; the message says what is wrong and where.
    """
    source = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path, form)
    _check_header(source)
    if not source.rows:
        raise DataError(f"'{path}' has a header but no rows. Add at least one row, or remove the file.")
    return source


def _parquet(path: Path) -> SourceTable:
    pa = arrow()
    try:
        table = pa.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"Cannot read '{path}' as a Parquet file ({_short(error)}). Fix the file.") from error
    if not table.num_columns:
        raise DataError(f"'{path}' is empty. Add columns and at least one row, or remove the file.")
    columns = tuple(map(whole_column, table.columns))
    return SourceTable(path, tuple(str(name).strip() for name in table.column_names), columns, None)


def whole_column(column: Any) -> Any:
    """Return a column as one Arrow array, with the values of a dictionary in full."""
    joined, pa = column.combine_chunks(), arrow()
    one = pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
    return one.dictionary_decode() if pa.types.is_dictionary(one.type) else one


def _csv(path: Path, form: CsvForm) -> SourceTable:
    pa = arrow()
    text, content, encoding = _decoded(path, form)
    try:
        separator = form.separator or _separator(path, text, form)
        form = CsvForm(separator, form.decimal, encoding, form.quote, form.missing)
        header = next((row for _, row in _csv_rows(text, form)), None)
    except csv.Error as error:
        _unreadable(path, encoding, error)
    if header is None:
        raise DataError(f"'{path}' is empty. Add a header with column names and at least one row, or remove the file.")
    names = [f"f{k}" for k in range(len(header))]
    several_lines = form.quote in text
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(content),
            pa.csv.ReadOptions(column_names=names, block_size=min(len(content) + 1, _BLOCK)),
            pa.csv.ParseOptions(delimiter=separator, quote_char=form.quote, newlines_in_values=several_lines),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid as error:
        _refuse_rows(path, text, form, len(header))
        _unreadable(path, encoding, error)
    trimmed = [pa.compute.utf8_trim_whitespace(whole_column(column)) for column in table.columns]
    if any(column[0].as_py() != name.strip() for column, name in zip(trimmed, header, strict=True)):
        _unreadable(path, encoding, "its quotes are ambiguous")
    return SourceTable(path, tuple(name.strip() for name in header), tuple(column[1:] for column in trimmed), form)


def _decoded(path: Path, form: CsvForm) -> tuple[str, bytes, str]:
    """Return a file's text, the same in UTF-8 without a byte order mark, and its encoding."""
    encoding = form.encoding
    try:
        content = path.read_bytes()
        if encoding is None:
            encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
        text = content.decode(encoding).removeprefix("\ufeff")
    except (OSError, UnicodeError) as error:
        _unreadable(path, encoding or "utf-8", error)
    return text, content.removeprefix(codecs.BOM_UTF8) if encoding == "utf-8" else text.encode(), encoding


def _unreadable(path: Path, encoding: str, error: object) -> NoReturn:
    fix = " Fix the file"
    if isinstance(error, UnicodeError) and encoding == "utf-8":
        fix += ", or set its encoding, often cp1252 where Excel wrote it: 'data.datamodule.csv: {encoding: cp1252}'"
    raise DataError(f"Cannot read '{path}' as a CSV file in {encoding.upper()} ({_short(error)}).{fix}.") from (
        error if isinstance(error, Exception) else None
    )


def _short(error: object) -> str:
    return " ".join(str(error).split())[:200]


def _csv_rows(text: str, form: CsvForm, separator: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row that is not empty, and its cells."""
    marks: Any = {"delimiter": separator or form.separator, "quotechar": form.quote}
    reader = csv.reader(io.StringIO(text, newline=""), **marks)
    return ((reader.line_num, row) for row in reader if row)


def _separator(path: Path, text: str, form: CsvForm) -> str:
    """Return the only separator in the header, or the only one that gives the first lines equally many cells."""
    cells = {mark: [len(row) for _, row in islice(_csv_rows(text, form, mark), _LINES)] for mark in _SEPARATORS}
    used = [mark for mark in _SEPARATORS if cells[mark] and cells[mark][0] > 1]
    even = [mark for mark in used if len(set(cells[mark])) == 1]
    found = used if len(used) == 1 else even
    if used and len(found) != 1:
        raise DataError(
            f"'{path}' may be separated by {' or '.join(_NAMES[mark] for mark in used)}. Set the one that it is, such as "
            f"'data.datamodule.csv: {{separator: {json.dumps(used[0])}}}'."
        )
    return found[0] if found else ","


def _refuse_rows(path: Path, text: str, form: CsvForm, width: int) -> None:
    """Raise the error for the first row with another number of cells than the header; return if there is none."""
    try:
        for line, row in _csv_rows(text, form):
            if len(row) != width:
                raise DataError(f"{path}, line {line} has {len(row)} cells, but the header has {width}. Fix that line.")
    except csv.Error as error:
        _unreadable(path, form.encoding or "utf-8", error)


def number_in(cell: str, decimal: str = ".") -> float | None:
    """Return the number that a cell holds; None for any other text."""
    if "_" in cell or (decimal == "," and "." in cell):  # Python reads 1_0 as ten
        return None
    try:
        return float(cell.replace(",", ".") if decimal == "," else cell)
    except ValueError:
        return None


def _check_header(source: SourceTable) -> None:
    header = source.header
    if all(number_in(name) is not None for name in header):
        raise DataError(
            f"'{source.path}' begins with numbers ({', '.join(header[:_SHOWN])}). Add a header with the names of the columns."
        )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice or "" in header:
        what = f"names the column '{twice[0]}' twice" if twice and twice[0] else "has a column without a name"
        raise DataError(f"The header of '{source.path}' {what}. Give every column a name of its own.")
    if len(header) == 1 and source.form and any(mark in header[0] for mark in set(_SEPARATORS) - {source.form.separator}):
        raise DataError(
            f"The header of '{source.path}' is one column, '{header[0]}'. Set 'data.datamodule.csv: {{separator: ...}}' to the "
            "character between the columns."
        )


def filled(source: SourceTable, name: str) -> np.ndarray[Any, Any]:
    """Return a column of text, which must not have gaps.

    Raises:
        DataError: naming the first gap.
    """
    cells = source.text(name).fill_null("").to_pylist()
    if "" in cells:
        raise DataError(f"{source.place(cells.index(''))}: the column '{name}' is empty. Fill it, or remove the row.")
    return np.array(cells)


def listed(names: Sequence[str]) -> str:
    """Return the first 20 names, and how many more there are."""
    shown = ", ".join(names[:20])
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"
