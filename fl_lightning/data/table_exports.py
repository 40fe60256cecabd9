"""Say how a file was exported: its form, and which of its columns holds what. A site's own staff writes it; nothing travels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fl_lightning.data.schema import Schema
from fl_lightning.errors import ConfigurationError, did_you_mean, require, require_texts

_NAME = "data.datamodule."


@dataclass(frozen=True)
class CsvForm:
    """Describe the form of a CSV file. What is None is detected where that is safe.

    Args:
        separator: the character between cells.
        decimal: the decimal mark, a point or a comma.
        encoding: the encoding, such as cp1252; None for UTF-8, or for UTF-16 with a byte order mark.
        quote: the character around cells that contain a separator.
        missing: cells that stand for a missing value, besides those of the schema.
    """

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    quote: str = '"'
    missing: tuple[str, ...] = ()


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
    format: str = "%Y-%m-%d"
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Export:
    """Describe how a file was exported.

    Args:
        csv: the form of CSV files.
        columns: where each field is found; a field that is not named has a column of its own name.
        setting: the setting that ``columns`` come from, for messages.
    """

    csv: CsvForm = CsvForm()
    columns: Mapping[str, ColumnSource] = field(default_factory=dict)
    setting: str = f"{_NAME}columns"

    def source(self, name: str) -> ColumnSource:
        """Return the source of a field."""
        return self.columns.get(name) or ColumnSource(name)


@dataclass(frozen=True)
class Exports:
    """Describe the exports of all files.

    Args:
        usual: the export of every file that has no other.
        clients: the exports of clients by name.
    """

    usual: Export = Export()
    clients: Mapping[str, Export] = field(default_factory=dict)

    def of(self, client: str | None) -> Export:
        """Return the export of a client's files."""
        return self.clients.get(client or "", self.usual)

    def require_clients(self, names: Sequence[str]) -> None:
        """Refuse an export of a client that has no file.

        Raises:
            ConfigurationError: naming the client.
        """
        for client in self.clients:
            if client not in names:
                raise ConfigurationError(
                    f"'data.datamodule.exports' names the client '{client}', who has no file in 'data.datamodule.path'."
                    f"{did_you_mean(client, names)}"
                )


def exports_of(
    schema: Schema | None,
    csv: Mapping[str, Any] | None,
    columns: Mapping[str, Any] | None,
    exports: Mapping[str, Any] | None,
) -> Exports:
    """Return the exports that the settings of a TableDataModule describe.

    Raises:
        ConfigurationError: naming the setting that is wrong.
    """
    clients = {}
    require_texts(f"{_NAME}exports", exports or ())
    for name, values in (exports or {}).items():
        setting = f"{_NAME}exports.{name}"
        found = _known(values, ("csv", "columns"), setting)
        clients[name] = _export(schema, found.get("csv"), found.get("columns"), setting + ".")
    return Exports(_export(schema, csv, columns, _NAME), clients)


def _export(schema: Schema | None, csv: Any, columns: Any, setting: str) -> Export:
    if columns and schema is None:
        raise ConfigurationError(
            f"'{setting}columns' needs 'data.datamodule.schema', which names the fields. Set both, or none."
        )
    names = () if schema is None else tuple(one.name for one in schema.fields)
    known = _known(columns or {}, names, f"{setting}columns")
    sources = {name: _source(name, values, f"{setting}columns.{name}") for name, values in known.items()}
    return Export(_csv_form(csv or {}, f"{setting}csv"), sources, f"{setting}columns")


def _known(values: Any, known: tuple[str, ...], setting: str) -> Mapping[str, Any]:
    require(isinstance(values, Mapping), setting, "a mapping", values)
    for key in values:
        if key not in known:
            listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
            raise ConfigurationError(f"'{setting}' has no '{key}'. It has {listed}.{did_you_mean(str(key), known)}")
    return values  # type: ignore[no-any-return]


def _csv_form(values: Any, setting: str) -> CsvForm:
    found = dict(_known(values, tuple(one.name for one in fields(CsvForm)), setting))
    for key in ("separator", "quote"):
        one: Any = found.get(key, ";")
        single = isinstance(one, str) and len(one) == 1 and one.isascii() and one not in "\r\n"
        require(single or (one is None and key == "separator"), f"{setting}.{key}", "one character", one)
    require(found.get("decimal") in (None, ".", ","), f"{setting}.decimal", "'.' or ','", found.get("decimal"))
    require(_is_encoding(found.get("encoding")), f"{setting}.encoding", "an encoding such as cp1252", found.get("encoding"))
    if "missing" in found:
        found["missing"] = _texts(found["missing"], f"{setting}.missing")
    return CsvForm(**found)


def _is_encoding(name: Any) -> bool:
    try:
        return name is None or not "".encode(name).strip(b"\xef\xbb\xbf\xfe\xff\0")
    except (LookupError, TypeError, ValueError):
        return False


def _source(name: str, values: Any, setting: str) -> ColumnSource:
    found = dict(_known(values, ("from", "scale", "offset", "values", "format", "missing"), setting))
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "from": (lambda one: isinstance(one, str), "the name of a column"),
        "scale": (lambda one: _is_finite(one) and one != 0, "a number other than 0"),
        "offset": (_is_finite, "a number"),
        "format": (
            lambda one: isinstance(one, str) and not re.sub(r"%[dmYyHMSbB]|[^%]", "", one),
            "a date's form of %d, %m, %Y, %y, %b, %B, %H, %M, %S and other characters, such as %d.%m.%Y",
        ),
        "values": (lambda one: isinstance(one, Mapping), "a mapping from the file's values to the schema's"),
    }
    for key, (fits, wanted) in checks.items():
        if key in found:
            require(fits(found[key]), f"{setting}.{key}", wanted, found[key])
    if "values" in found:
        pairs = found["values"].items()
        found["values"] = {_cell(old, f"{setting}.values"): _cell(new, f"{setting}.values") for old, new in pairs}
    if "missing" in found:
        found["missing"] = _texts(found["missing"], f"{setting}.missing")
    return ColumnSource(found.pop("from", name), **found)


def _texts(values: Any, setting: str) -> tuple[str, ...]:
    require(isinstance(values, list | tuple), setting, "a list of cells", values)
    return tuple(_cell(value, setting) for value in values)


def _cell(value: Any, setting: str) -> str:
    """Return a value of YAML as the text of a cell; yes, no, null and 1e3 are not what was written any more."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigurationError(f"'{setting}' has {value!r}, which YAML does not read as a text. Put quotes around it.")
    return str(value).strip()


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
