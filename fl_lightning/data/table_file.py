"""Read a CSV file in the form that is stated, or a Parquet file. Nothing is guessed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np

from fl_lightning.data.schema_file import repeated, shown
from fl_lightning.errors import DataError, VersionError

ENDINGS = (".csv", ".tsv", ".parquet")
"""The endings of the files in a folder that are tables."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a feature may be."""
_MARKS = ",;\t|"
_NUMBER = r"^[+-]?([0-9]+[{0}]?[0-9]*|[{0}][0-9]+)([eE][+-]?[0-9]+)?$"
_BLOCK = 2**24
"""The size of the longest row, in bytes."""


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
class CsvForm:
    """State the form of a CSV file.

    Args:
        separator: the character between cells.
        decimal: the decimal mark, a point or a comma.
        encoding: the encoding, such as cp1252 or utf-16.
        quote: the character around cells that contain a separator.
        missing: cells that stand for a missing value, besides those of the schema.
        setting: the setting that states it, for messages.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    quote: str = '"'
    missing: tuple[str, ...] = ()
    setting: str = "data.datamodule.csv"


@dataclass(frozen=True)
class SourceTable:
    """Hold a file.

    Args:
        path: the file.
        columns: its columns by their names, as Arrow arrays: text without surrounding spaces, or of any type in a Parquet file.
        form: the form of a CSV file; None for a Parquet file.
    """

    path: Path
    columns: dict[str, Any]
    form: CsvForm | None

    @property
    def header(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(self.columns)

    @property
    def in_words(self) -> str:
        """Return the header for the message that a column is missing; how to state another form if it has the mark of one."""
        return f"Its columns are {listed(self.header)}.{_other_form(self.header, self.form)}"

    @property
    def decimal(self) -> str:
        """Return the decimal mark."""
        return self.form.decimal if self.form else "."

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values())))

    def text(self, name: str, days: bool = False) -> Any:
        """Return a column as an Arrow array of text, null where a Parquet file has no value.

        Args:
            name: the column's name.
            days: whether timestamps are written as days.
        """
        pa, column = arrow(), self.columns[name]
        if days and pa.types.is_timestamp(column.type):
            column = column.cast(pa.date32())
        try:
            return column if self.form else pa.compute.utf8_trim_whitespace(as_text(column))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            what = f"'{self.path}': the column '{name}' has the type {column.type}, which is neither a number nor text"
            raise DataError(f"{what}. Save it as one.") from error

    def place(self, row: int) -> str:
        """Return the file and line of a row, for messages; of a Parquet file, the row."""
        if self.form is None:
            return f"{self.path}, row {row + 1}"
        line, _ = next(islice(_csv_rows(self.path, self.form), row + 1, None))
        return f"{self.path}, line {line}"

    def refuse(self, row: int, name: str, what: str, fix: str) -> NoReturn:
        """Raise the error for a cell."""
        raise DataError(f"{self.place(row)}: the column '{name}' {what}. {fix}")


def as_text(column: Any) -> Any:
    """Return a column as text; floats that are all whole numbers as those, as Arrow writes 1e+16."""
    pa = arrow()
    if pa.types.is_floating(column.type):
        with suppress(pa.ArrowInvalid):  # not all are whole
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def whole_column(column: Any) -> Any:
    """Return a column as one Arrow array, with the values of a dictionary in full."""
    joined, pa = column.combine_chunks(), arrow()
    one = pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
    return one.dictionary_decode() if pa.types.is_dictionary(one.type) else one


def read_source(path: Path, form: CsvForm) -> SourceTable:
    """Read a file.

    Args:
        path: a Parquet file by its ending; any other is CSV.
        form: the form of a CSV file.

    Raises:
        DataError: if the file cannot be read; the message says what is wrong and where.
    """
    is_parquet, pa = path.suffix.lower() == ".parquet", arrow()
    try:
        table = pa.parquet.read_table(path) if is_parquet else _csv(path, form)
    except (OSError, LookupError, UnicodeError, csv.Error, pa.ArrowException) as error:
        what = "a Parquet file" if is_parquet else f"a CSV file in {form.encoding.upper()}"
        hint = f", or state its encoding, often cp1252 where Excel wrote it: '{form.setting}: {{encoding: cp1252}}'"
        fix = f"Fix the file{'' if is_parquet else hint}."
        raise DataError(f"Cannot read '{path}' as {what} ({shown(error, 200)}). {fix}") from error
    columns = list(map(whole_column, table.columns))
    names = table.column_names
    if not is_parquet:
        columns = [pa.compute.utf8_trim_whitespace(column) for column in columns]
        names, columns = [column[0].as_py() for column in columns], [column[1:] for column in columns]
    names = [str(name).strip() for name in names]
    _check_header(path, names, None if is_parquet else form)
    source = SourceTable(path, dict(zip(names, columns, strict=True)), None if is_parquet else form)
    if not source.rows:
        raise DataError(f"'{path}' has a header but no rows. Add at least one row, or remove the file.")
    return source


def _csv(path: Path, form: CsvForm) -> Any:
    """Return all rows of a CSV file, also its header, as a table of text.

    Raises:
        DataError: if a row has more or fewer cells than the header.
    """
    pa = arrow()
    _, header = next(_csv_rows(path, form), (0, []))
    _check_header(path, header, form)
    names = [str(k) for k in range(len(header))]
    try:
        return pa.csv.read_csv(
            str(path),
            pa.csv.ReadOptions(column_names=names, block_size=_BLOCK, encoding=form.encoding),
            pa.csv.ParseOptions(delimiter=form.separator, quote_char=form.quote, newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        for line, row in _csv_rows(path, form):
            if len(row) != len(header):
                what = f"{path}, line {line} has {len(row)} cells, but the header has {len(header)}. Fix that line"
                raise DataError(f"{what}, or put quotes around cells that contain '{form.separator}'.") from None
        raise


def _csv_rows(path: Path, form: CsvForm) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row that is not empty, and its cells."""
    with path.open(encoding=form.encoding, newline="") as file:
        if file.read(1) != "\ufeff":
            file.seek(0)
        reader = csv.reader(file, delimiter=form.separator, quotechar=form.quote)
        yield from ((reader.line_num, row) for row in reader if row)


def number_in(cell: str, decimal: str = ".") -> float | None:
    """Return the number that a cell holds; None for any other text."""
    if "_" in cell or (decimal == "," and "." in cell):  # Python reads 1_0 as ten
        return None
    try:
        return float(cell.replace(",", ".") if decimal == "," else cell)
    except ValueError:
        return None


def numbers(source: SourceTable, name: str, cells: Any) -> np.ndarray[Any, Any]:
    """Return cells of a column as numbers, float64, shape (n,), and NaN for null.

    Raises:
        DataError: naming the first cell that is not a number.
    """
    pa, values = arrow(), cells
    if not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        good = pa.compute.match_substring_regex(cells, _NUMBER.format(source.decimal))
        plain = pa.compute.replace_substring(pa.compute.utf8_ltrim(cells, "+"), source.decimal, ".")
        values = pa.compute.if_else(good, plain, pa.scalar(None, pa.string()))
    found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    wrong = ~(np.abs(found) <= LARGEST) & cells.is_valid().to_numpy(zero_copy_only=False)
    if wrong.any():
        row = int(wrong.argmax())
        cell = str(cells[row].as_py())
        what = f"holds '{shown(cell)}', which is not a number up to {LARGEST:.1e}" if cell else "is empty"
        fix = "Write a number without marks of thousands, or remove the row or the column."
        if source.form and any(mark in cell for mark in _MARKS):
            fix += _state(source.form, next((mark for mark in _MARKS[1:] if mark in cell), source.form.separator), ",")
        source.refuse(row, name, what, fix)
    return found  # type: ignore[no-any-return]


def _other_form(header: Sequence[str], form: CsvForm | None) -> str:
    """Return how to state another form of a file whose header has the mark of one; otherwise an empty text."""
    marks = [mark for mark in _MARKS if form and mark != form.separator and mark in "".join(header)]
    return _state(form, marks[-1], "." if marks == [","] else ",") if form and marks else ""


def _state(form: CsvForm, separator: str, decimal: str) -> str:
    shape = f"{{separator: {json.dumps(separator)}, decimal: {json.dumps(decimal)}}}"
    return f" If the file has another form, state it, such as '{form.setting}: {shape}'."


def _check_header(path: Path, header: Sequence[str], form: CsvForm | None) -> None:
    if not header:
        raise DataError(f"'{path}' is empty. Add a header with column names and at least one row, or remove the file.")
    hint = _other_form(header, form)
    if len(header) == 1 and hint:
        raise DataError(f"The header of '{path}' is one column, '{shown(header[0])}'.{hint}")
    if all(number_in(name, form.decimal if form else ".") is not None for name in header):
        what = f"'{path}' begins with numbers ({', '.join(header[:5])})"
        raise DataError(f"{what}. Add a header with the names of the columns.")
    twice = repeated(header)
    if twice or "" in header:
        what = f"names the column '{twice[0]}' twice" if twice and twice[0] else "has a column without a name"
        raise DataError(f"The header of '{path}' {what}. Give every column a name of its own.")


def listed(parts: Sequence[str], mark: str = ", ") -> str:
    """Return the first 20 parts, and how many more there are."""
    first = mark.join(parts[:20])
    return first if len(parts) <= 20 else f"{first} and {len(parts) - 20} more"
