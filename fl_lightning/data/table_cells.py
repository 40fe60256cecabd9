"""Turn columns of cells into numbers, and report the first cell that cannot be: file, line, column, value and fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from fl_lightning.data.class_names import class_name
from fl_lightning.data.schema import BOOLEAN_CLASSES, Field, Schema
from fl_lightning.data.schema_text import ISO, boolean_of, parse_date, shown
from fl_lightning.data.table_exports import ColumnSource, Export
from fl_lightning.data.table_source import SourceTable, arrow, as_text, listed, number_in
from fl_lightning.errors import DataError

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a feature may be."""
_COMMA = r"^[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?$"
_THOUSANDS = r"^[+-]?[0-9]{1,3},[0-9]{3}$"
_POINT = r"^[+-]?[0-9]*[.][0-9]+([eE][+-]?[0-9]+)?$"


def decimal_mark(source: SourceTable, names: Sequence[str]) -> str:
    """Return the decimal mark of a file's columns of numbers: as set, or as it is safe to detect.

    Raises:
        DataError: if both marks are used, or if commas may separate thousands.
    """
    if source.form is None or source.form.decimal:
        return "." if source.form is None else str(source.form.decimal)
    compute = arrow().compute
    columns = [source.column(name) for name in names]
    commas = [compute.match_substring(column, ",") for column in columns]
    all_columns = zip(names, columns, commas, strict=True)
    with_commas = [(name, column, found) for name, column, found in all_columns if compute.any(found).as_py()]
    cells = [column.filter(found) for _, column, found in with_commas]
    if not cells or not all(compute.all(compute.match_substring_regex(column, _COMMA)).as_py() for column in cells):
        return "."
    name, _, found = with_commas[0]
    row = compute.index(found, True).as_py()
    cell = source.column(name)[row].as_py()
    if any(compute.any(compute.match_substring_regex(column, _POINT)).as_py() for column in columns):
        what = "while other cells have decimal points"
    elif all(compute.all(compute.match_substring_regex(column, _THOUSANDS)).as_py() for column in cells):
        what = "which may be a decimal comma, or separate thousands"
    else:
        return ","
    raise DataError(
        f"{source.place(row)}: the column '{name}' holds '{shown(cell)}', {what}. Set 'csv: {{decimal: \",\"}}' of the "
        "datamodule if it is a decimal comma; otherwise export the numbers with points and without marks of thousands."
    )


def numbers(source: SourceTable, name: str, cells: Any, decimal: str) -> np.ndarray[Any, Any]:
    """Return cells as numbers, float64, shape (n,), and NaN for null.

    Raises:
        DataError: naming the first cell that is not a finite number.
    """
    pa = arrow()
    points = decimal == "." or pa.types.is_floating(cells.type) or pa.types.is_integer(cells.type)
    try:
        values = None if not points else cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if decimal == "," and not points and not pa.compute.any(pa.compute.match_substring(cells, ".")).as_py():
            plain = pa.compute.replace_substring(cells, ",", ".")
            values = plain.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        values = None
    if values is None or not _are_finite(values, cells):
        return _one_by_one(source, name, cells, decimal)
    return values  # type: ignore[no-any-return]


def _are_finite(values: np.ndarray[Any, Any], cells: Any) -> bool:
    return bool(int((np.abs(values) <= LARGEST).sum()) + cells.null_count == len(values))


def _one_by_one(source: SourceTable, name: str, cells: Any, decimal: str) -> np.ndarray[Any, Any]:
    """Read numbers as Python does, which accepts more forms than Arrow, up to the first that is not a number."""
    found = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells.to_pylist()):
        value = None if cell is None else number_in(str(cell), decimal)
        if cell is not None and (value is None or not abs(value) <= LARGEST):
            kind = "" if value is None else "finite "
            what = f"holds '{shown(cell)}', which is not a {kind}number" if str(cell) else "is empty"
            bad_cell(
                source,
                row,
                name,
                what,
                "Write a number, remove the row, or remove the column from the files of "
                "'data.datamodule.path' (and 'test_path').",
            )
        found[row] = np.nan if value is None else value
    return found


def bad_cell(source: SourceTable, row: int, name: str, what: str, fix: str) -> NoReturn:
    """Raise the error for a cell."""
    raise DataError(f"{source.place(row)}: the column '{name}' {what}. {fix}")


class FieldReader:
    """Read the fields of a schema from one file.

    Args:
        source: the file.
        export: which of its columns holds which field.
        schema: the schema.

    Attributes:
        decimal: the decimal mark of the file's numbers.
    """

    def __init__(self, source: SourceTable, export: Export, schema: Schema) -> None:
        self.source, self.export, self.schema = source, export, schema
        plain = [export.source(one.name).column for one in schema.fields if one.type in ("number", "integer") and not one.enum]
        self.decimal = decimal_mark(source, [name for name in plain if name in source.header])

    def values(self, field: Field) -> np.ndarray[Any, Any]:
        """Return a field's values in the schema's unit, float64, shape (n,): numbers, days, 0 or 1, or numbers of categories.

        A missing value is NaN.

        Raises:
            DataError: naming the first cell that does not fit the schema.
        """
        origin = self.origin(field)
        cells = self.cells(field)
        if field.enum or field.type in ("boolean", "date", "string"):
            return self._coded(field, origin, cells)
        values = self.scaled(numbers(self.source, origin.column, cells, self.decimal), origin)
        if field.type == "integer":
            self._require(field, origin, np.isnan(values) | (values == np.round(values)), values, "a whole number")
        return values

    def origin(self, field: Field) -> ColumnSource:
        """Return the column that holds a field; one of the type date or timestamp needs no ``format``."""
        origin, types = self.export.source(field.name), arrow().types
        kind = self.source.column(origin.column).type
        return replace(origin, format=ISO) if types.is_date(kind) or types.is_timestamp(kind) else origin

    def cells(self, field: Field) -> Any:
        """Return a field's column with null for missing values, and with the schema's texts."""
        pa, origin = arrow(), self.origin(field)
        markers = [*self.schema.missing_values, *(self.source.form.missing if self.source.form else ()), *origin.missing]
        column = self.source.column(origin.column)
        numbered = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        if self.source.form is None and not origin.values and numbered:
            numeric = [value for marker in markers if (value := number_in(marker)) is not None]
            wide = column.cast(pa.float64(), safe=False)
            return _without(column, pa.array(numeric, pa.float64()), wide)
        cells = _without(self.source.text(origin.column, field.type == "date"), pa.array(markers, pa.string()))
        if origin.values:
            index = pa.compute.index_in(cells, pa.array(list(origin.values), pa.string()))
            mapped = pa.array(list(origin.values.values()), pa.string()).take(index)
            cells = _without(pa.compute.coalesce(mapped, cells), pa.array(self.schema.missing_values, pa.string()))
        return cells

    @staticmethod
    def scaled(values: np.ndarray[Any, Any], origin: ColumnSource) -> np.ndarray[Any, Any]:
        """Convert to the schema's unit; a division by 100 is exact where a product with 0.01 is not."""
        inverse = round(1 / origin.scale)
        exact = inverse != 0 and 1 / inverse == origin.scale
        values = values / inverse if exact else values * origin.scale
        return values + origin.offset if origin.offset else values

    def _coded(self, field: Field, origin: ColumnSource, cells: Any) -> np.ndarray[Any, Any]:
        """Return the code of each cell: its number among the categories, 0 or 1, or a number of days."""
        code, wanted = coder(field, origin)
        pa = arrow()
        known = as_text(cells).dictionary_encode()
        texts = known.dictionary.to_pylist()
        codes = [code(text) for text in texts]
        for text, found in zip(texts, codes, strict=True):
            if found is None:
                row = pa.compute.index(known.indices, texts.index(text)).as_py()
                bad_cell(self.source, row, origin.column, f"holds '{shown(text)}', which {wanted}", self._fix(field, text))
        table = np.array([*codes, np.nan], dtype=np.float64)
        return table[known.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)]  # type: ignore[no-any-return]

    def _fix(self, field: Field, text: str) -> str:
        """Return how to fix a cell that does not fit a field."""
        mine = f"'{self.export.setting}: {{{field.name}: "
        if field.type == "date":
            return f"Correct the cell, or say how dates are written: {mine}{{format: '%d.%m.%Y'}}}}'."
        translated = f"{mine}{{values: {{'{shown(text)}': ...}}}}}}'"
        return f"Correct the cell, translate it with {translated}, or add it to the schema of all."

    def checked(self, field: Field) -> np.ndarray[Any, Any]:
        """Return :meth:`values`, of which all are in the field's range, and missing only if the schema says what they become.

        Raises:
            DataError: naming the first cell that does not fit the schema.
        """
        values, origin = self.values(field), self.origin(field)
        gaps = np.isnan(values)
        if gaps.any() and field.missing == "refuse":
            row = int(gaps.argmax())
            cell = self.source.text(origin.column)[row].as_py() or ""
            what = f"holds '{shown(cell)}', which stands for a missing value" if cell else "is empty"
            fix = "Fill it, or remove the row"
            fix += "." if field.name == self.schema.target else f"; or set 'missing' of '{field.name}' in the schema of all."
            bad_cell(self.source, row, origin.column, what, fix)
        for limit, good, side in ((field.minimum, np.greater_equal, "at least"), (field.maximum, np.less_equal, "at most")):
            if limit is not None:
                self._require(field, origin, gaps | good(values, limit), values, f"{side} {in_words(field, limit)}")
        self._require(field, origin, gaps | (np.abs(values) <= LARGEST), values, f"at most {LARGEST:.1e}")
        return values

    def _require(
        self, field: Field, origin: ColumnSource, good: np.ndarray[Any, Any], values: np.ndarray[Any, Any], wanted: str
    ) -> None:
        """Refuse the first value that is not good."""
        if good.all():
            return
        row = int((~good).argmax())
        cell, value = str(self.source.text(origin.column)[row].as_py()), values[row]
        becomes = f", {value:g} after conversion," if field.since is None and number_in(cell) != value else ""
        unit = "" if field.since else f"convert the unit with '{self.export.setting}: {{{field.name}: {{scale: ...}}}}', "
        what = f"holds '{shown(cell)}'{becomes} but '{field.name}' is {wanted} in the schema"
        bad_cell(self.source, row, origin.column, what, f"Correct the cell, {unit}or change the schema of all.")

    def features(self, field: Field) -> np.ndarray[Any, Any]:
        """Return the features that a field becomes, float64, shape (n, k).

        Raises:
            DataError: naming the first cell that does not fit the schema.
        """
        values = self.checked(field)
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


def _without(cells: Any, markers: Any, compared: Any = None) -> Any:
    """Return cells with null in place of the markers of missing values, which are looked for in ``compared``."""
    pa = arrow()
    if not len(markers):
        return cells
    found = pa.compute.is_in(cells if compared is None else compared, value_set=markers)
    return pa.compute.if_else(found, pa.scalar(None, cells.type), cells)


def coder(field: Field, origin: ColumnSource) -> tuple[Callable[[str], float | None], str]:
    """Return the function from a cell to its code, None for a cell that has none, and what such a cell is."""
    if field.since is not None:
        since = field.since

        def days(text: str) -> float | None:
            try:
                return float((parse_date(text, origin.format) - since).days)
            except ValueError:
                return None

        return days, f"is not a date of the form {origin.format}"
    if field.type == "boolean":
        return boolean_of, f"is neither {BOOLEAN_CLASSES[1]} nor {BOOLEAN_CLASSES[0]}, yes nor no, 1 nor 0"
    exact = {name: float(code) for code, name in enumerate(field.enum)}
    alike = {class_name(name): code for name, code in exact.items()}
    wanted = f"is no category of '{field.name}' in the schema ({listed(field.enum)})"
    return lambda text: exact.get(text, alike.get(class_name(text))), wanted
