"""Read a CSV file in the form that is stated, or a Parquet file, and the fields of a schema in it. Nothing is guessed."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fl_lightning.data.labels import listed
from fl_lightning.data.schema import ISO, LARGEST, NUMBER, Field, Schema, number_in, repeated, shown
from fl_lightning.data.table_export import COLUMNS, ColumnSource, Export
from fl_lightning.errors import DataError, VersionError, did_you_mean

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
class SourceTable:
    """Hold a file.

    Args:
        path: the file.
        columns: its columns by their names, as Arrow arrays: text without surrounding spaces, or of any type in a Parquet file.
        form: the form of a CSV file; None for a Parquet file.
        export: how it was exported.
        schema: the schema whose fields are read.
    """

    path: Path
    columns: dict[str, Any]
    form: Export | None
    export: Export
    schema: Schema

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

    def missing_columns(self) -> list[str]:
        """Return the columns of the schema that the file lacks, in words, with the nearest ones that it has."""
        header, found = tuple(self.columns), []
        for one in self.schema.fields:
            column = self.export.source(one.name).column
            if column not in header:
                read_for = "" if column == one.name else f" for '{one.name}'"
                found.append(f"'{column}'{read_for}.{did_you_mean(column, header)}")
        return found

    def further_columns(self, others: Sequence[str | None]) -> list[str]:
        """Return the columns of the file that neither the schema nor a setting names."""
        used = {self.export.source(one.name).column for one in self.schema.fields} | set(others)
        return [name for name in self.columns if name not in used]

    def features(self, field: Field) -> np.ndarray[Any, Any]:
        """Return the features that a field becomes, float64, shape (n, k).

        Raises:
            DataError: naming the first cell that does not fit the schema.
        """
        values = self.values(field)
        gaps = np.isnan(values)
        if field.constant is not None:
            values = np.where(gaps, field.constant, values)
        columns = [(values == code).astype(np.float64) for code in range(len(field.enum))] or [values]
        if field.missing == "most_frequent":
            columns = [np.where(gaps, np.nan, column) for column in columns]
        return np.stack([*columns, gaps.astype(np.float64)] if field.missing == "indicator" else columns, axis=1)

    def values(self, field: Field) -> np.ndarray[Any, Any]:
        """Return a field's values in the schema's unit, float64, shape (n,): numbers, days, 0 or 1, or numbers of categories.

        All are in the field's range; NaN for a missing value, if the schema says what it becomes.

        Raises:
            DataError: naming the first cell that does not fit the schema.
        """
        values, problems = self.compared(field)
        if problems:
            raise DataError(problems[0])
        return values

    def compared(self, field: Field) -> tuple[np.ndarray[Any, Any], list[str]]:
        """Return a field's values, NaN for a missing one or a cell that has none, and a message for each kind of problem."""
        origin, cells = self.export.source(field.name), self.cells(field)
        dates = self.form or not arrow().types.is_temporal(self.columns[origin.column].type)
        code, wanted = field.coder(origin.format if dates else ISO, self.decimal)
        if field.type in ("number", "integer") and not field.enum:
            values = _scaled(numbers(cells, self.decimal), origin)
        else:
            texts = as_text(cells).dictionary_encode()
            codes = [np.nan if (value := code(text)) is None else value for text in texts.dictionary.to_pylist()]
            values = np.array([*codes, np.nan])[texts.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)]
        there = cells.is_valid().to_numpy(zero_copy_only=False)
        unread, gaps = there & ~(np.abs(values) <= LARGEST), ~there
        problems = []
        if unread.any():
            others = [f"'{shown(text)}'" for text in as_text(cells.filter(arrow().array(unread)).unique()).to_pylist()[1:]]
            fix = f"Neither are {listed(others)}. " if others else ""
            fix += self._fix(field, self.cell(int(unread.argmax()), origin.column))
            problems.append(self.problem(unread, origin.column, f", which is not {wanted}", fix))
        if gaps.any() and field.missing == "refuse":
            more = f"; or set 'missing' of '{field.name}' in the schema of all" if field.name != self.schema.target else ""
            fix = f"Fill it, or remove the row{more}."
            problems.append(self.problem(gaps, origin.column, ", which stands for a missing value", fix))
        low, high = field.minimum, field.maximum
        limits = [(values != np.round(values), "a whole number")] if field.type == "integer" and not field.enum else []
        limits += [] if low is None else [(values < low, f"at least {in_words(field, low)}")]
        limits += [] if high is None else [(values > high, f"at most {in_words(field, high)}")]
        fix = "Correct the cell, or change the schema of all."
        if field.since is None:
            fix += f" Is it another unit? Then set its factor: '{COLUMNS}: {{{field.name}: {{scale: ...}}}}'."
        for outside, limit in limits:
            wrong = outside & there & ~unread
            if wrong.any():
                becomes = f", {values[wrong.argmax()]:g} after conversion," if (origin.scale, origin.offset) != (1, 0) else ""
                what = f"{becomes} but '{field.name}' is {limit} in the schema"
                problems.append(self.problem(wrong, origin.column, what, fix))
        return np.where(there & ~unread, values, np.nan), problems

    def _fix(self, field: Field, cell: str) -> str:
        """Return what to do about a cell that has no value in the schema."""
        mine = f"'{COLUMNS}: {{{field.name}: "
        if field.since is not None:
            return f"Correct the cell, or say how dates are written: {mine}{{format: '%d.%m.%Y'}}}}'."
        if field.enum or field.type == "boolean":
            add = " add it to the schema of all clients (without one: to 'data.datamodule.classes')," if field.enum else ""
            return f"Correct the cell,{add} or translate it: {mine}{{values: {{'{shown(cell)}': ...}}}}}}'."
        hint = self.form.other(cell) if self.form else ""
        return f"Write a number without marks of thousands, or remove the row or the column.{hint}"

    def cells(self, field: Field) -> Any:
        """Return a field's column with null for missing values, and with the schema's texts."""
        pa, origin = arrow(), self.export.source(field.name)
        markers = [*self.schema.missing_values, *(self.form.missing if self.form else ()), *origin.missing]
        column = self.columns[origin.column]
        if not origin.values and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            numeric = [float(marker) for marker in markers if marker.lower() == "nan" or number_in(marker) is not None]
            return _without(column, pa.array(numeric, pa.float64()), column.cast(pa.float64(), safe=False))
        cells = _without(self.text(origin.column, field.type == "date"), pa.array(markers, pa.string()))
        if origin.values:
            index = pa.compute.index_in(cells, pa.array(list(origin.values), pa.string()))
            mapped = pa.array(list(origin.values.values()), pa.string()).take(index)
            cells = _without(pa.compute.coalesce(mapped, cells), pa.array(self.schema.missing_values, pa.string()))
        return cells


def as_text(column: Any) -> Any:
    """Return a column as text; floats that are all whole numbers as those, as Arrow writes 1e+16."""
    pa = arrow()
    if pa.types.is_floating(column.type):
        with suppress(pa.ArrowInvalid):  # not all are whole
            column = column.cast(pa.int64())
    return column.cast(pa.string())


def read_source(path: Path, export: Export, schema: Schema | None = None) -> SourceTable:
    """Read a file.

    Args:
        path: a Parquet file by its ending; any other is CSV.
        export: how it was exported.
        schema: the schema whose fields are read, if it is known.

    Raises:
        DataError: if the file cannot be read; the message says what is wrong and where.
    """
    form, pa = None if path.suffix.lower() == ".parquet" else export, arrow()
    try:
        table = _csv(path, form) if form else pa.parquet.read_table(path)
    except (OSError, LookupError, UnicodeError, csv.Error, pa.ArrowException) as error:
        what, hint = "a Parquet file", ""
        if form:
            what = f"a CSV file in {form.encoding.upper()}"
            hint = f", or state its encoding, often cp1252 where Excel wrote it: '{form.setting}: {{encoding: cp1252}}'"
        raise DataError(f"Cannot read '{path}' as {what} ({shown(error, 200)}). Fix the file{hint}.") from error
    names = [str(name).strip() for name in table.column_names]
    _check_header(path, names, form)
    if not table.num_rows:
        raise DataError(f"'{path}' has a header but no rows. Add at least one row, or remove the file.")
    return SourceTable(path, dict(zip(names, map(_whole, table.columns), strict=True)), form, export, schema or Schema(()))


def _whole(column: Any) -> Any:
    """Return a column as one Arrow array, with the values of a dictionary in full, and text without surrounding spaces."""
    joined, pa = column.combine_chunks(), arrow()
    one = pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined
    one = one.dictionary_decode() if pa.types.is_dictionary(one.type) else one
    return pa.compute.utf8_trim_whitespace(one) if pa.types.is_string(one.type) else one


def _csv(path: Path, form: Export) -> Any:
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


def _csv_rows(path: Path, form: Export) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the last line of each row that is not empty, and its cells."""
    with path.open(encoding=form.encoding, newline="") as file:
        if file.read(1) != "\ufeff":
            file.seek(0)
        reader = csv.reader(file, delimiter=form.separator, quotechar=form.quote)
        yield from ((reader.line_num, row) for row in reader if row)


def _check_header(path: Path, header: Sequence[str], form: Export | None) -> None:
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


def in_words(field: Field, value: float) -> str:
    """Return a value of a field with its unit, and a number of days as a date."""
    if field.since is not None:
        return (field.since + timedelta(days=value)).isoformat()
    return f"{value:g} {field.unit}".rstrip()


def _scaled(values: np.ndarray[Any, Any], origin: ColumnSource) -> np.ndarray[Any, Any]:
    """Convert to the schema's unit; a division by 100 is exact where a product with 0.01 is not."""
    inverse = round(1 / origin.scale)
    exact = inverse != 0 and 1 / inverse == origin.scale
    values = values / inverse if exact else values * origin.scale
    return values + origin.offset if origin.offset else values


def _without(cells: Any, markers: Any, compared: Any = None) -> Any:
    """Return cells with null in place of the markers of missing values, which are looked for in ``compared``."""
    pa = arrow()
    found = pa.compute.is_in(cells if compared is None else compared, value_set=markers)
    return pa.compute.if_else(found, pa.scalar(None, cells.type), cells)
