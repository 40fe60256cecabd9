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
from typing import Any

import numpy as np

from fl_lightning.data.schema import NUMBER, listed, number_in, repeated, shown
from fl_lightning.errors import DataError, VersionError

_MARKS = ",;\t|"
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

    def other(self, text: str, is_header: bool = False) -> str:
        """Return how to state another form for a cell or a header that has the mark of one; otherwise an empty text."""
        marks = [mark for mark in _MARKS if mark in text and not (is_header and mark == self.separator)]
        if not marks:
            return ""
        separator = marks[-1] if is_header or marks != [","] else self.separator
        decimal = "." if is_header and separator == "," else ","
        shape = f"{{separator: {json.dumps(separator)}, decimal: {json.dumps(decimal)}}}"
        return f" If the file has another form, state it, such as '{self.setting}: {shape}'."


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
    def in_words(self) -> str:
        """Return the header for the message that a column is missing; how to state another form if it has the mark of one."""
        hint = self.form.other("".join(self.columns), is_header=True) if self.form else ""
        return f"Its columns are {listed([*self.columns])}.{hint}"

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

    def cell(self, row: int, name: str) -> str:
        """Return a cell as it is in the file; empty if there is no value."""
        return str(self.text(name)[row].as_py() or "")

    def problem(self, wrong: np.ndarray[Any, Any], name: str, what: str, fix: str) -> str:
        """Return the message for a column of which some cells are wrong: file, line and cell of the first, and the number.

        Args:
            wrong: whether the cell of each row is wrong, shape (n,).
            name: the column's name.
            what: what is wrong with the first of them, after 'holds ...'.
            fix: what to do.
        """
        row, count = int(wrong.argmax()), int(wrong.sum())
        where = f"{self.path}, row {row + 1}"
        if self.form is not None:
            line, _ = next(islice(_csv_rows(self.path, self.form), row + 1, None))
            where = f"{self.path}, line {line}"
        cell = self.cell(row, name)
        said = f"holds '{shown(cell)}'{what}" if cell else "is empty"
        many = f", in {count} of {self.rows} rows" if count > 1 else ""
        return f"{where}: the column '{name}' {said}{many}. {fix}"


def as_text(column: Any) -> Any:
    """Return a column as text; floats that are all whole numbers as those, as Arrow writes 1e+16."""
    pa = arrow()
    if pa.types.is_floating(column.type):
        with suppress(pa.ArrowInvalid):  # not all are whole
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def read_source(path: Path, form: CsvForm) -> SourceTable:
    """Read a file.

    Args:
        path: a Parquet file by its ending; any other is CSV.
        form: the form of a CSV file.

    Raises:
        DataError: if the file cannot be read; the message says what is wrong and where.
    """
    is_parquet, pa = path.suffix.lower() == ".parquet", arrow()
    own = None if is_parquet else form
    try:
        table = pa.parquet.read_table(path) if is_parquet else _csv(path, form)
    except (OSError, LookupError, UnicodeError, csv.Error, pa.ArrowException) as error:
        what = "a Parquet file" if is_parquet else f"a CSV file in {form.encoding.upper()}"
        hint = f", or state its encoding, often cp1252 where Excel wrote it: '{form.setting}: {{encoding: cp1252}}'"
        fix = f"Fix the file{'' if is_parquet else hint}."
        raise DataError(f"Cannot read '{path}' as {what} ({shown(error, 200)}). {fix}") from error
    names = [str(name).strip() for name in table.column_names]
    _check_header(path, names, own)
    if not table.num_rows:
        raise DataError(f"'{path}' has a header but no rows. Add at least one row, or remove the file.")
    return SourceTable(path, dict(zip(names, map(_whole, table.columns), strict=True)), own)


def _whole(column: Any) -> Any:
    """Return a column as one Arrow array, with the values of a dictionary in full, and text without surrounding spaces."""
    joined, pa = column.combine_chunks(), arrow()
    one = pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
    one = one.dictionary_decode() if pa.types.is_dictionary(one.type) else one
    return pa.compute.utf8_trim_whitespace(one) if pa.types.is_string(one.type) else one


def _csv(path: Path, form: CsvForm) -> Any:
    """Return the rows of a CSV file as a table of text.

    Raises:
        DataError: if a row has more or fewer cells than the header.
    """
    pa = arrow()
    _, header = next(_csv_rows(path, form), (0, []))
    _check_header(path, header, form)
    try:
        names = [str(k) for k in range(len(header))]
        table = pa.csv.read_csv(
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
    return table.slice(1).rename_columns(header)


def _csv_rows(path: Path, form: CsvForm) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row that is not empty, and its cells."""
    with path.open(encoding=form.encoding, newline="") as file:
        if file.read(1) != "\ufeff":
            file.seek(0)
        reader = csv.reader(file, delimiter=form.separator, quotechar=form.quote)
        yield from ((reader.line_num, row) for row in reader if row)


def _check_header(path: Path, header: Sequence[str], form: CsvForm | None) -> None:
    if not header:
        raise DataError(f"'{path}' is empty. Add a header with column names and at least one row, or remove the file.")
    hint = form.other("".join(header), is_header=True) if form else ""
    if len(header) == 1 and hint:
        raise DataError(f"The header of '{path}' is one column, '{shown(header[0])}'.{hint}")
    if all(number_in(name, form.decimal if form else ".") is not None for name in header):
        what = f"'{path}' begins with numbers ({', '.join(header[:5])})"
        raise DataError(f"{what}. Add a header with the names of the columns.")
    twice = repeated(header)
    if twice or "" in header:
        what = f"names the column '{twice[0]}' twice" if twice and twice[0] else "has a column without a name"
        raise DataError(f"The header of '{path}' {what}. Give every column a name of its own.")


def numbers(cells: Any, decimal: str) -> np.ndarray[Any, Any]:
    """Return cells as numbers, float64, shape (n,), with NaN for null and for a text that is no number."""
    pa = arrow()
    if not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        good = pa.compute.match_substring_regex(cells, NUMBER.format(decimal))
        plain = pa.compute.replace_substring(pa.compute.utf8_ltrim(cells, "+"), decimal, ".")
        cells = pa.compute.if_else(good, plain, pa.scalar(None, pa.string()))
    return cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
