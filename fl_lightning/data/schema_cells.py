"""Say how a file was exported, and read its columns as a schema describes them, or name the first cell that cannot be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from fl_lightning.data.class_names import class_name
from fl_lightning.data.schema import BOOLEAN_CLASSES, Field, Schema
from fl_lightning.data.schema_file import ISO, boolean_of, parse_date, shown
from fl_lightning.data.table_file import LARGEST, CsvForm, SourceTable, arrow, as_text, listed, number_in, numbers
from fl_lightning.errors import ConfigurationError, did_you_mean, require, require_texts

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
    found: dict[str | None, Export] = {None: _export(schema, csv, columns, _PATH)}
    require_texts(f"{_PATH}exports", exports or ())
    for name, values in (exports or {}).items():
        setting = f"{_PATH}exports.{name}"
        own = _known(values, ("csv", "columns"), setting)
        found[name] = _export(schema, own.get("csv"), own.get("columns"), f"{setting}.")
    return found


def _export(schema: Schema | None, csv: Any, columns: Any, setting: str) -> Export:
    if columns and schema is None:
        raise ConfigurationError(f"'{setting}columns' needs '{_PATH}schema', which names the fields. Set both, or none.")
    names = () if schema is None else tuple(one.name for one in schema.fields)
    known = _known(columns or {}, names, f"{setting}columns")
    sources = {name: _source(name, values, f"{setting}columns.{name}") for name, values in known.items()}
    return Export(csv_form(csv or {}, f"{setting}csv"), sources, f"{setting}columns")


def csv_form(values: Any, setting: str) -> CsvForm:
    """Return the form that a setting states.

    Raises:
        ConfigurationError: if it is not one.
    """
    return CsvForm(**_checked(values, _CSV, setting), setting=setting)


def _source(name: str, values: Any, setting: str) -> ColumnSource:
    found = _checked(values, _COLUMN, setting)
    if "values" in found:
        old, new = (_cells(list(cells), f"{setting}.values") for cells in (found["values"], found["values"].values()))
        found["values"] = dict(zip(old, new, strict=True))
    return ColumnSource(found.pop("from", name), **found)


def _known(values: Any, known: Sequence[str], setting: str) -> Mapping[str, Any]:
    require(isinstance(values, Mapping), setting, "a mapping", values)
    for key in values:
        if key not in known:
            raise ConfigurationError(f"'{setting}' has no '{key}'. It has {listed(known)}.{did_you_mean(str(key), known)}")
    return values  # type: ignore[no-any-return]


def _checked(values: Any, checks: Mapping[str, tuple[Callable[[Any], bool], str]], setting: str) -> dict[str, Any]:
    """Return settings after their checks; 'missing' as texts."""
    found = dict(_known(values, tuple(checks), setting))
    for key, value in found.items():
        fits, wanted = checks[key]
        require(fits(value), f"{setting}.{key}", wanted, value)
    return found | ({"missing": _cells(found["missing"], f"{setting}.missing")} if "missing" in found else {})


def _cells(values: Sequence[Any], setting: str) -> tuple[str, ...]:
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
        header, found = self.source.header, []
        for one in self.schema.fields:
            column = self.export.source(one.name).column
            if column not in header:
                read_for = "" if column == one.name else f" for '{one.name}'"
                found.append(f"'{column}'{read_for}.{did_you_mean(column, header)}")
        return found

    def further_columns(self, others: Sequence[str | None]) -> list[str]:
        """Return the columns of the file that neither the schema nor a setting names."""
        used = {self.export.source(one.name).column for one in self.schema.fields} | set(others)
        return [name for name in self.source.header if name not in used]

    def cells(self, field: Field) -> Any:
        """Return a field's column with null for missing values, and with the schema's texts."""
        pa, origin = arrow(), self.export.source(field.name)
        markers = [*self.schema.missing_values, *(self.source.form.missing if self.source.form else ()), *origin.missing]
        column = self.source.columns[origin.column]
        if not origin.values and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            numeric = [value for marker in markers if (value := number_in(marker)) is not None]
            return _without(column, pa.array(numeric, pa.float64()), column.cast(pa.float64(), safe=False))
        cells = _without(self.source.text(origin.column, field.type == "date"), pa.array(markers, pa.string()))
        if origin.values:
            index = pa.compute.index_in(cells, pa.array(list(origin.values), pa.string()))
            mapped = pa.array(list(origin.values.values()), pa.string()).take(index)
            cells = _without(pa.compute.coalesce(mapped, cells), pa.array(self.schema.missing_values, pa.string()))
        return cells

    def coder(self, field: Field) -> tuple[Callable[[str], float | None], str]:
        """Return the function from a cell to its value in the schema's unit, None if it has none, and what such a cell is."""
        origin = self.export.source(field.name)
        if field.enum:
            exact = {name: float(code) for code, name in enumerate(field.enum)}
            alike = {class_name(name): code for name, code in exact.items()}
            wanted = f"is no category of '{field.name}' in the schema ({listed(field.enum)})"
            return lambda text: exact.get(text, alike.get(class_name(text))), wanted
        if field.type == "boolean":
            return boolean_of, f"is neither {BOOLEAN_CLASSES[1]} nor {BOOLEAN_CLASSES[0]}, yes nor no, 1 nor 0"
        if field.since is None:
            decimal = self.source.decimal
            return lambda text: _scaled(number_in(text, decimal), origin), f"is not a number with the decimal mark '{decimal}'"
        since, text = field.since, self.source.form or not arrow().types.is_temporal(self.source.columns[origin.column].type)
        form = origin.format if text else ISO

        def days(text: str) -> float | None:
            try:
                return float((parse_date(text, form) - since).days)
            except ValueError:
                return None

        return days, f"is not a date of the form {form}"

    def values(self, field: Field) -> np.ndarray[Any, Any]:
        """Return a field's values in the schema's unit, float64, shape (n,): numbers, days, 0 or 1, or numbers of categories.

        All are in the field's range; NaN for a missing value, if the schema says what it becomes.

        Raises:
            DataError: naming the first cell that does not fit the schema.
        """
        origin, cells = self.export.source(field.name), self.cells(field)
        if field.type in ("number", "integer") and not field.enum:
            values: np.ndarray[Any, Any] = _scaled(numbers(self.source, origin.column, cells), origin)
        else:
            values = self._coded(field, origin, cells)
        gaps = np.isnan(values)
        if gaps.any() and field.missing == "refuse":
            row = int(gaps.argmax())
            cell = self.source.text(origin.column)[row].as_py() or ""
            what = f"holds '{shown(cell)}', which stands for a missing value" if cell else "is empty"
            more = f"; or set 'missing' of '{field.name}' in the schema of all clients."
            fix = "Fill it, or remove the row" + ("." if field.name == self.schema.target else more)
            self.source.refuse(row, origin.column, what, fix)
        low, high = field.minimum, field.maximum
        checks = [(values == np.round(values), "a whole number")] if field.type == "integer" and not field.enum else []
        checks += [] if low is None else [(values >= low, f"at least {in_words(field, low)}")]
        checks += [] if high is None else [(values <= high, f"at most {in_words(field, high)}")]
        for good, wanted in [*checks, (np.abs(values) <= LARGEST, f"at most {LARGEST:.1e}")]:
            if not (gaps | good).all():
                row = int((~(gaps | good)).argmax())
                self._refuse_value(field, row, values[row], wanted)
        return values

    def _coded(self, field: Field, origin: ColumnSource, cells: Any) -> np.ndarray[Any, Any]:
        """Return the code of each cell: its number among the categories, 0 or 1, or a number of days."""
        code, wanted = self.coder(field)
        known = as_text(cells).dictionary_encode()
        texts = known.dictionary.to_pylist()
        codes = [code(text) for text in texts]
        if None in codes:
            text = texts[codes.index(None)]
            row = arrow().compute.index(known.indices, codes.index(None)).as_py()
            mine, fix = f"'{self.export.setting}: {{{field.name}: ", "Correct the cell, "
            if field.since is not None:
                fix += f"or say how dates are written: {mine}{{format: '%d.%m.%Y'}}}}'."
            else:
                fix += f"translate it with {mine}{{values: {{'{shown(text)}': ...}}}}}}', or add it to the schema of all."
            self.source.refuse(row, origin.column, f"holds '{shown(text)}', which {wanted}", fix)
        table = np.array([*codes, np.nan], dtype=np.float64)
        return table[known.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)]  # type: ignore[no-any-return]

    def _refuse_value(self, field: Field, row: int, value: float, wanted: str) -> NoReturn:
        name = self.export.source(field.name).column
        cell = str(self.source.text(name)[row].as_py())
        becomes = f", {value:g} after conversion," if field.since is None and number_in(cell) != value else ""
        unit = "" if field.since else f"convert the unit with '{self.export.setting}: {{{field.name}: {{scale: ...}}}}', "
        what = f"holds '{shown(cell)}'{becomes} but '{field.name}' is {wanted} in the schema"
        self.source.refuse(row, name, what, f"Correct the cell, {unit}or change the schema of all.")

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


def in_words(field: Field, value: float) -> str:
    """Return a value of a field with its unit, and a number of days as a date."""
    if field.since is not None:
        return (field.since + timedelta(days=value)).isoformat()
    return f"{value:g} {field.unit}".rstrip()


def _scaled(values: Any, origin: ColumnSource) -> Any:
    """Convert to the schema's unit; a division by 100 is exact where a product with 0.01 is not."""
    inverse = round(1 / origin.scale)
    exact = inverse != 0 and 1 / inverse == origin.scale
    if values is None:
        return None
    values = values / inverse if exact else values * origin.scale
    return values + origin.offset if origin.offset else values


def _without(cells: Any, markers: Any, compared: Any = None) -> Any:
    """Return cells with null in place of the markers of missing values, which are looked for in ``compared``."""
    pa = arrow()
    found = pa.compute.is_in(cells if compared is None else compared, value_set=markers)
    return pa.compute.if_else(found, pa.scalar(None, cells.type), cells)
