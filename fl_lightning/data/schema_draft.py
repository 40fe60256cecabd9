"""Propose a schema from a table, with comments where its author should look."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fl_lightning.data.class_names import class_name, ordered_classes
from fl_lightning.data.schema_file import parse_schema
from fl_lightning.data.schema_text import boolean_of, parse_date
from fl_lightning.data.table_source import SourceTable, listed, number_in
from fl_lightning.errors import DataError, did_you_mean

_MARKERS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", ".", "?")
"""Cells that are taken for missing values."""
_DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
_CATEGORIES, _FEW, _IDENTIFIER, _ODD = 50, 10, 20, 2
_HEAD = """\
# The schema of all tables of a federation: send it to every site. Check each field: type, unit, categories and their order.
# Add 'constraints: {minimum: ..., maximum: ...}' by what is possible, and not by what this table holds.
# missing: refuse, {constant: VALUE}, indicator or {indicator: VALUE} (a column of its own says so).
"""


@dataclass(frozen=True)
class _Column:
    """Hold what is proposed for a column: the lines after its name, or none and why it is left out."""

    name: str
    lines: tuple[str, ...] = ()
    left_out: str = ""


def propose(source: SourceTable, target: str | None, without: Sequence[str] = (), ranges: bool = False) -> str:
    """Return a schema as YAML with comments.

    Args:
        source: the table.
        target: the column to predict; None for features alone.
        without: columns that are no fields, such as that of persons.
        ranges: whether the ranges of the values are taken from the table.

    Raises:
        DataError: if a column does not exist, or its name cannot be that of a field.
    """
    for name in [*([] if target is None else [target]), *without]:
        if name not in source.header:
            raise DataError(
                f"'{source.path}' has no column '{name}'.{did_you_mean(name, source.header)} Its columns are "
                f"{listed(source.header)}."
            )
    names = [name for name in source.header if name not in (*without, target)]
    found: dict[str, None] = {}
    columns = [_column(source, name, ranges, False, found) for name in names]
    columns += [] if target is None else [_column(source, target, ranges, True, found)]
    if all(one.left_out for one in columns[: len(names)]):
        why = " ".join(f"'{_plain(one.name)}' is left out: {one.left_out}" for one in columns[:_FEW])
        raise DataError(f"No column of '{source.path}' can be a feature. {why}")
    lines = [_HEAD + "fields:"]
    for one in columns:
        lines += [f"  # '{_plain(one.name)}' is left out: {one.left_out}"] if one.left_out else _entry(one)
    lines += [] if target is None else [f"target: {_quoted(target)}"]
    lines += [f"missingValues: [{', '.join(_quoted(marker) for marker in dict.fromkeys(['', *found]))}]"]
    text = "\n".join(lines) + "\n"
    try:
        parse_schema(text)
    except DataError as error:
        raise DataError(f"No schema can be proposed for '{source.path}': {error}") from error
    return text


def _entry(column: _Column) -> list[str]:
    return [f"  - name: {_quoted(column.name)}", *(f"    {line}" for line in column.lines)]


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w-]*|\d+", text, re.ASCII) else json.dumps(text, ensure_ascii=False)


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _column(source: SourceTable, name: str, ranges: bool, is_target: bool, markers: dict[str, None]) -> _Column:
    """Return the proposal for a column, and add the markers of missing values that it has."""
    cells = source.text(name, days=not is_target).fill_null("").to_pylist()
    own = (*_MARKERS, *_odd_texts([cell for cell in cells if cell not in _MARKERS]))
    known = [cell for cell in cells if cell not in own]
    markers.update(dict.fromkeys(cell for cell in cells if cell in own))
    if not known:
        return _Column(name, left_out="it has no values.")
    distinct = list(dict.fromkeys(known))
    gap = len(known) < len(cells)
    why = _unusable(distinct, len(known)) if not is_target else ""
    if why:
        return _Column(name, left_out=why)
    lines = _typed(distinct, ranges, is_target)
    if len(distinct) == len(known) > _IDENTIFIER and lines[0] == "type: integer":
        lines[0] += " # all values differ: remove the field if it is an identifier"
    if gap:
        lines.append("missing: refuse # it has missing values" + (": fill them, or remove the rows" if is_target else ""))
    return _Column(name, tuple(lines))


def _unusable(distinct: list[str], rows: int) -> str:
    """Return why a column cannot be a feature; empty if it can."""
    text = not _all(distinct, _number) and _form_of(distinct) is None
    if len(distinct) == rows > _IDENTIFIER and text:
        return "all its values differ, as those of an identifier."
    if text and len(distinct) > _CATEGORIES:
        return f"it has {len(distinct)} different texts, too many for categories."
    return "all its values are equal texts." if text and len(distinct) < 2 else ""


def _odd_texts(cells: list[str]) -> list[str]:
    """Return the one or two texts among numbers, which seem to stand for missing values."""
    distinct = dict.fromkeys(cells)
    texts = [cell for cell in distinct if _number(cell) is None]
    return texts if len(texts) <= _ODD and len(distinct) - len(texts) >= _FEW else []


def _number(cell: str) -> float | None:
    point = number_in(cell)
    return number_in(cell, ",") if point is None else point


def _all(cells: list[str], read: Callable[[str], Any]) -> bool:
    return all(read(cell) is not None for cell in cells)


def _form_of(cells: list[str]) -> str | None:
    """Return how dates are written; None if some cell is no date."""

    def fits(form: str) -> bool:
        try:
            return all(parse_date(cell, form) is not None for cell in cells)
        except ValueError:
            return False

    return next((form for form in _DATES if fits(form)), None)


def _typed(cells: list[str], ranges: bool, is_target: bool) -> list[str]:
    """Return the lines of a field's type."""
    if _all(cells, boolean_of) and len(cells) == 2:
        return ["type: boolean"]
    if _all(cells, _number):
        return _numeric(cells, ranges, is_target)
    form = None if is_target else _form_of(cells)
    if form is not None:
        own = f" # this table: columns: {{...: {{format: '{form}'}}}}" if form != _DATES[0] else ""
        return [f"type: date{own}", "since: 2000-01-01 # days are counted from here"]
    names = sorted(cells)
    alike = {name.casefold() for name in names}
    comment = " # some differ only in capital letters" if len(alike) < len(names) else " # those of this table"
    return ["type: string", _enum(names, "the order of the classes" if is_target else comment.removeprefix(" # "))]


def _numeric(cells: list[str], ranges: bool, is_target: bool) -> list[str]:
    values = [value for cell in cells if (value := _number(cell)) is not None]
    whole = all(value.is_integer() for value in values)
    if is_target and whole and 2 <= len(values) <= _CATEGORIES:
        names = ordered_classes(list(map(class_name, cells)))
        return ["type: integer # classes; remove 'constraints' to predict a number", _enum(names, "the order of the classes")]
    few = " # few different values: if it is a category, use 'type: string' and 'enum'" if whole and len(values) <= _FEW else ""
    lines = [f"type: {'integer' if whole else 'number'}{few}", 'unit: "" # which?']
    low, high = min(values), max(values)
    return lines + ([f"constraints: {{minimum: {low:.12g}, maximum: {high:.12g}}} # those of this table"] if ranges else [])


def _enum(names: Sequence[str], comment: str) -> str:
    return f"constraints: {{enum: [{', '.join(map(_quoted, names))}]}} # {comment}"
