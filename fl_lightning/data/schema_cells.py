"""Say how a file was exported, and read its columns as a schema describes them, or name the first cell that cannot be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from fl_lightning.data.schema import ISO, LARGEST, Field, Schema, listed, number_in, shown
from fl_lightning.data.schema_file import mapping_of
from fl_lightning.data.table_file import CsvForm, SourceTable, arrow, as_text, numbers
from fl_lightning.errors import ConfigurationError, DataError, did_you_mean, require, require_texts

_PATH = "data.datamodule."


@dataclass(frozen=True)
class ColumnSource:
    """Describe the column of a file that holds a field.

    Args:
        column: the name of the column in the file.
        scale: the factor from the file's unit to the schema's.
        offset: what is added after scaling.
        values: the schema's text for a cell's text.
        format: how dates are written, such as ``%d.%m.%Y``.
        missing: cells of this column that stand for a missing value.
    """

    column: str
    scale: float = 1.0
    offset: float = 0.0
    values: Mapping[str, str] = field(default_factory=dict)
    format: str = ISO
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Export:
    """Describe how a file was exported.

    Args:
        csv: the form of CSV files.
        columns: where each field is found; a field that is not named has a column of its own name.
        setting: the setting that ``columns`` come from, for messages.
    """

    csv: CsvForm = field(default_factory=CsvForm)
    columns: Mapping[str, ColumnSource] = field(default_factory=dict)
    setting: str = f"{_PATH}columns"

    def source(self, name: str) -> ColumnSource:
        """Return the source of a field."""
        return self.columns.get(name) or ColumnSource(name)


def exports_of(schema: Schema | None, csv: Any, columns: Any, exports: Any) -> dict[str | None, Export]:
    """Return the exports that the settings of a TableDataModule describe: of clients by their names, of all others by None.

    Raises:
        ConfigurationError: naming the setting that is wrong.
    """
    require_texts(f"{_PATH}exports", exports or ())
    names = () if schema is None else tuple(one.name for one in schema.fields)
    found: dict[str | None, Export] = {}
    for client, given in {None: {"csv": csv, "columns": columns}, **(exports or {})}.items():
        path = _PATH if client is None else f"{_PATH}exports.{client}."
        own = mapping_of(given, f"'{path[:-1]}'", ("csv", "columns"))
        if own.get("columns") and schema is None:
            raise ConfigurationError(f"'{path}columns' needs '{_PATH}schema', which names the fields. Set both, or none.")
        sources = mapping_of(own.get("columns") or {}, f"'{path}columns'", names)
        columns_of = {name: _source(name, values, f"{path}columns.{name}") for name, values in sources.items()}
        found[client] = Export(csv_form(own.get("csv") or {}, f"{path}csv"), columns_of, f"{path}columns")
    return found


def csv_form(values: Any, setting: str) -> CsvForm:
    """Return the form that a setting states.

    Raises:
        ConfigurationError: if it is not one.
    """
    return CsvForm(**_checked(values, _CSV, setting), setting=setting)


def _source(name: str, values: Any, setting: str) -> ColumnSource:
    found = _checked(values, _COLUMN, setting)
    if "values" in found:
        old, new = (_cells(cells, f"{setting}.values") for cells in (found["values"], found["values"].values()))
        found["values"] = dict(zip(old, new, strict=True))
    return ColumnSource(found.pop("from", name), **found)


def _checked(values: Any, checks: Mapping[str, tuple[Callable[[Any], bool], str]], setting: str) -> dict[str, Any]:
    """Return settings after their checks; 'missing' as texts."""
    found = dict(mapping_of(values, f"'{setting}'", tuple(checks)))
    for key, value in found.items():
        fits, wanted = checks[key]
        require(fits(value), f"{setting}.{key}", wanted, value)
    return found | ({"missing": _cells(found["missing"], f"{setting}.missing")} if "missing" in found else {})


def _cells(values: Iterable[Any], setting: str) -> tuple[str, ...]:
    """Return values of YAML as the texts of cells; yes, no, null and 1e3 are not what was written any more."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigurationError(f"'{setting}' has {value!r}, which YAML does not read as a text. Put quotes around it.")
    return tuple(str(value).strip() for value in values)


def _is_character(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 1 and value.isascii() and value not in "\r\n"


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_MISSING = (lambda one: isinstance(one, list | tuple), "a list of cells")
_CSV: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "separator": (_is_character, "one character"),
    "decimal": (lambda one: one in (".", ","), "'.' or ','"),
    "encoding": (lambda one: isinstance(one, str), "an encoding such as cp1252"),
    "quote": (_is_character, "one character"),
    "missing": _MISSING,
}
_COLUMN: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "from": (lambda one: isinstance(one, str), "the name of a column"),
    "scale": (lambda one: _is_finite(one) and one != 0, "a number other than 0"),
    "offset": (_is_finite, "a number"),
    "values": (lambda one: isinstance(one, Mapping), "a mapping from the file's values to the schema's"),
    "format": (
        lambda one: isinstance(one, str) and not re.sub(r"%[dmYyHMSbB]|[^%]", "", one),
        "a date's form of %d, %m, %Y, %y, %b, %B, %H, %M, %S and other characters, such as %d.%m.%Y",
    ),
    "missing": _MISSING,
}


# ---------------------------------------------------------------- cells


class FieldReader:
    """Read the fields of a schema from one file.

    Args:
        source: the file.
        export: which of its columns holds which field.
        schema: the schema.
    """

    def __init__(self, source: SourceTable, export: Export, schema: Schema) -> None:
        self.source, self.export, self.schema = source, export, schema

    def missing_columns(self) -> list[str]:
        """Return the columns of the schema that the file lacks, in words, with the nearest ones that it has."""
        header, found = tuple(self.source.columns), []
        for one in self.schema.fields:
            column = self.export.source(one.name).column
            if column not in header:
                read_for = "" if column == one.name else f" for '{one.name}'"
                found.append(f"'{column}'{read_for}.{did_you_mean(column, header)}")
        return found

    def further_columns(self, others: Sequence[str | None]) -> list[str]:
        """Return the columns of the file that neither the schema nor a setting names."""
        used = {self.export.source(one.name).column for one in self.schema.fields} | set(others)
        return [name for name in self.source.columns if name not in used]

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
        dates = self.source.form or not arrow().types.is_temporal(self.source.columns[origin.column].type)
        code, wanted = field.coder(origin.format if dates else ISO, self.source.decimal)
        if field.type in ("number", "integer") and not field.enum:
            values = _scaled(numbers(cells, self.source.decimal), origin)
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
            fix += self._fix(field, self.source.cell(int(unread.argmax()), origin.column))
            problems.append(self.source.problem(unread, origin.column, f", which is not {wanted}", fix))
        if gaps.any() and field.missing == "refuse":
            more = f"; or set 'missing' of '{field.name}' in the schema of all" if field.name != self.schema.target else ""
            fix = f"Fill it, or remove the row{more}."
            problems.append(self.source.problem(gaps, origin.column, ", which stands for a missing value", fix))
        low, high = field.minimum, field.maximum
        limits = [(values != np.round(values), "a whole number")] if field.type == "integer" and not field.enum else []
        limits += [] if low is None else [(values < low, f"at least {in_words(field, low)}")]
        limits += [] if high is None else [(values > high, f"at most {in_words(field, high)}")]
        fix = "Correct the cell, or change the schema of all."
        if field.since is None:
            fix += f" Is it another unit? Then set its factor: '{self.export.setting}: {{{field.name}: {{scale: ...}}}}'."
        for outside, limit in limits:
            wrong = outside & there & ~unread
            if wrong.any():
                becomes = f", {values[wrong.argmax()]:g} after conversion," if (origin.scale, origin.offset) != (1, 0) else ""
                what = f"{becomes} but '{field.name}' is {limit} in the schema"
                problems.append(self.source.problem(wrong, origin.column, what, fix))
        return np.where(there & ~unread, values, np.nan), problems

    def _fix(self, field: Field, cell: str) -> str:
        """Return what to do about a cell that has no value in the schema."""
        mine = f"'{self.export.setting}: {{{field.name}: "
        if field.since is not None:
            return f"Correct the cell, or say how dates are written: {mine}{{format: '%d.%m.%Y'}}}}'."
        if field.enum or field.type == "boolean":
            add = " add it to the schema of all clients (without one: to 'data.datamodule.classes')," if field.enum else ""
            return f"Correct the cell,{add} or translate it: {mine}{{values: {{'{shown(cell)}': ...}}}}}}'."
        hint = self.source.form.other(cell) if self.source.form else ""
        return f"Write a number without marks of thousands, or remove the row or the column.{hint}"

    def cells(self, field: Field) -> Any:
        """Return a field's column with null for missing values, and with the schema's texts."""
        pa, origin = arrow(), self.export.source(field.name)
        markers = [*self.schema.missing_values, *(self.source.form.missing if self.source.form else ()), *origin.missing]
        column = self.source.columns[origin.column]
        if not origin.values and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            numeric = [float(marker) for marker in markers if marker.lower() == "nan" or number_in(marker) is not None]
            return _without(column, pa.array(numeric, pa.float64()), column.cast(pa.float64(), safe=False))
        cells = _without(self.source.text(origin.column, field.type == "date"), pa.array(markers, pa.string()))
        if origin.values:
            index = pa.compute.index_in(cells, pa.array(list(origin.values), pa.string()))
            mapped = pa.array(list(origin.values.values()), pa.string()).take(index)
            cells = _without(pa.compute.coalesce(mapped, cells), pa.array(self.schema.missing_values, pa.string()))
        return cells


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
