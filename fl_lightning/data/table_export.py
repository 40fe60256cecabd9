"""State how a file was exported: the form of a CSV file, and which of its columns holds which field of a schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fl_lightning.data.schema import ISO, Schema
from fl_lightning.data.schema_file import mapping_of
from fl_lightning.errors import ConfigurationError, require

_PATH = "data.datamodule."
COLUMNS = f"{_PATH}columns"
"""The setting of the columns, for messages."""
_MARKS = ",;\t|"
_CSV = ("separator", "decimal", "encoding", "quote", "missing")
_COLUMN = ("from", "scale", "offset", "values", "format", "missing")
_TEXTS = {
    "separator": (r"[^\r\n\x80-\U0010ffff]", "one character"),
    "quote": (r"[^\r\n\x80-\U0010ffff]", "one character"),
    "decimal": ("[.,]", "'.' or ','"),
    "encoding": (".+", "an encoding such as cp1252"),
    "from": (".+", "the name of a column"),
    "format": ("(%[dmYyHMSbB]|[^%])+", "a date's form of %d, %m, %Y, %y, %b, %B, %H, %M and %S, such as %d.%m.%Y"),
}
"""How the settings that are texts are written, as a regular expression and in words."""


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
    """Describe how a file was exported: the form of a CSV file, and the columns of any file.

    Args:
        separator: the character between cells.
        decimal: the decimal mark, a point or a comma.
        encoding: the encoding, such as cp1252 or utf-16.
        quote: the character around cells that contain a separator.
        missing: cells that stand for a missing value, besides those of the schema.
        setting: the setting that states the form, for messages.
        columns: where each field is found; a field that is not named has a column of its own name.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    quote: str = '"'
    missing: tuple[str, ...] = ()
    setting: str = "data.datamodule.csv"
    columns: Mapping[str, ColumnSource] = field(default_factory=dict)

    def other(self, text: str, is_header: bool = False) -> str:
        """Return how to state another form for a cell or a header that has the mark of one; otherwise an empty text."""
        marks = [mark for mark in _MARKS if mark in text and not (is_header and mark == self.separator)]
        if not marks:
            return ""
        separator = marks[-1] if is_header or marks != [","] else self.separator
        decimal = "." if is_header and separator == "," else ","
        shape = f"{{separator: {json.dumps(separator)}, decimal: {json.dumps(decimal)}}}"
        return f" If the file has another form, state it, such as '{self.setting}: {shape}'."

    def source(self, name: str) -> ColumnSource:
        """Return the source of a field."""
        return self.columns.get(name) or ColumnSource(name)


def export_of(schema: Schema | None, csv: Any, columns: Any) -> Export:
    """Return the export that the settings of a TableDataModule describe.

    Raises:
        ConfigurationError: naming the setting that is wrong.
    """
    needs = f"left out without '{_PATH}schema', which names the fields"
    require(not columns or schema is not None, COLUMNS, needs, columns)
    sources = mapping_of(columns or {}, f"'{COLUMNS}'", () if schema is None else [one.name for one in schema.fields])
    found = {}
    for name, values in sources.items():
        stated = _stated(values, _COLUMN, f"{COLUMNS}.{name}")
        found[name] = ColumnSource(stated.pop("from", name), **stated)
    return replace(csv_form(csv or {}, f"{_PATH}csv"), columns=found)


def csv_form(values: Any, setting: str) -> Export:
    """Return the form of CSV files that a setting states.

    Raises:
        ConfigurationError: if it is not one.
    """
    return Export(**_stated(values, _CSV, setting), setting=setting)


def _stated(values: Any, known: Sequence[str], setting: str) -> dict[str, Any]:
    """Return settings after their checks, and cells as texts."""
    found = dict(mapping_of(values, f"'{setting}'", known))
    for key, value in found.items():
        where = f"{setting}.{key}"
        if key in _TEXTS:
            pattern, wanted = _TEXTS[key]
            require(isinstance(value, str) and re.fullmatch(pattern, value) is not None, where, wanted, value)
        elif key == "missing":
            require(isinstance(value, list | tuple), where, "a list of cells", value)
            found[key] = _cells(value, where)
        elif key == "values":
            require(isinstance(value, Mapping), where, "a mapping from the file's values to the schema's", value)
            found[key] = dict(zip(_cells(value, where), _cells(value.values(), where), strict=True))
        else:
            fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            require(fits and (value != 0 or key != "scale"), where, "a finite number; as a scale, other than 0", value)
    return found


def _cells(values: Iterable[Any], setting: str) -> tuple[str, ...]:
    """Return values of YAML as the texts of cells; yes, no, null and 1e3 are not what was written any more."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigurationError(f"'{setting}' has {value!r}, which YAML does not read as a text. Put quotes around it.")
    return tuple(str(value).strip() for value in values)
