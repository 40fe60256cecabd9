"""The command ``fl-lightning schema``: propose a schema from a table, with comments where its author should look."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.config.files import write_new
from fl_lightning.data.labels import class_name, ordered_classes
from fl_lightning.data.schema import Field, day_of, shown
from fl_lightning.data.schema_file import parse_schema
from fl_lightning.data.table_export import csv_form
from fl_lightning.data.table_file import SourceTable, read_source
from fl_lightning.errors import DataError, did_you_mean
from fl_lightning.utilities.argument_parser import ArgumentParser

_MARKERS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", ".", "?")
"""Cells that are taken for missing values."""
_DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")
_CATEGORIES, _FEW, _IDENTIFIER, _ODD = 50, 10, 20, 2
_HEAD = """\
# The schema of all tables of a federation: send it to every site. Check each field: type, unit, categories and their order.
# Add 'constraints: {minimum: ..., maximum: ...}' by what is possible, and not by what this table holds.
# missing: refuse, {constant: VALUE}, indicator or {indicator: VALUE} (a column of its own says so).
"""


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Args:
        arguments: the arguments after ``schema``.

    Raises:
        FederationError: if the table cannot be read, or no schema fits it.
    """
    parser = ArgumentParser(
        "fl-lightning schema",
        "Propose a schema for the tables of all clients from one of them. Edit it, and send it to every site.",
    )
    table = "a table, CSV with a header or Parquet"
    parser.add_argument("--from", dest="table", type=Path, required=True, metavar="FILE", help=table)
    parser.add_argument("--target", metavar="COLUMN", help="the column to predict; leave it out for features alone")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to a new file instead of the terminal")
    form = """how a CSV file is written, such as '{separator: ";", decimal: ",", encoding: cp1252}'; by default {}"""
    parser.add_argument("--csv", default="{}", metavar="FORM", help=form)
    given = parser.parse_args(arguments)
    if not given.table.is_file():
        raise DataError(f"'{given.table}' is not a file. Set '--from' to a table.")
    try:
        export = csv_form(yaml.safe_load(given.csv), "--csv")
    except yaml.YAMLError as error:
        raise DataError(f"'--csv' is not YAML ({' '.join(str(error).split())}). Put it in single quotes.") from error
    text = propose(read_source(given.table, export), given.target)
    if given.output is None:
        print(text, end="")
    else:
        write_new(given.output, text)
        print(f"{given.output}\nEdit it, then set it: data.datamodule.schema: {given.output}")


def propose(source: SourceTable, target: str | None) -> str:
    """Return a schema as YAML with comments.

    Args:
        source: the table.
        target: the column to predict; None for features alone.

    Raises:
        DataError: if a column does not exist, or its name cannot be that of a field.
    """
    header, targets = tuple(source.columns), [] if target is None else [target]
    if target is not None and target not in header:
        raise DataError(f"'{source.path}' has no column '{target}'.{did_you_mean(target, header)} {source.in_words}")
    markers = {"": None}
    lines, left_out = [_HEAD + "fields:"], []
    features = [name for name in header if name != target]
    for name in [*features, *targets]:
        column = _Column(source, name, name == target)
        markers |= dict.fromkeys(column.markers)
        if why := column.unusable():
            left_out.append(f"'{shown(name, 100)}' is left out: {why}")
            lines.append(f"  # {left_out[-1]}")
        else:
            lines += [f"  - name: {_quoted(name)}", *(f"    {line}" for line in column.lines())]
    if len(left_out) >= len(features):
        raise DataError(f"No column of '{source.path}' can be a feature. {' '.join(left_out[:_FEW])}")
    lines += [f"target: {_quoted(name)}" for name in targets]
    text = "\n".join([*lines, f"missingValues: [{', '.join(map(_quoted, markers))}]", ""])
    try:
        parse_schema(text)
    except DataError as error:
        raise DataError(f"No schema can be proposed for '{source.path}': {error}") from error
    return text


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w-]*|\d+", text, re.ASCII) else json.dumps(text, ensure_ascii=False)


class _Column:
    """Look at a column: its markers of missing values, and its other cells, each once."""

    def __init__(self, source: SourceTable, name: str, is_target: bool) -> None:
        self.is_target = is_target
        self._number, _ = Field(name, "number").coder(decimal=source.decimal)
        cells = source.text(name, days=not is_target).fill_null("").to_pylist()
        texts = [cell for cell in dict.fromkeys(cells) if cell not in _MARKERS]
        odd = [cell for cell in texts if self._number(cell) is None]  # one or two texts among numbers
        own = (*_MARKERS, *(odd if len(odd) <= _ODD and len(texts) - len(odd) >= _FEW else ()))
        self.markers = [cell for cell in dict.fromkeys(cells) if cell in own]
        self.distinct = [cell for cell in texts if cell not in own]
        self.count = sum(cell not in own for cell in cells)

    def _all(self, read: Callable[[str], Any]) -> bool:
        return all(read(cell) is not None for cell in self.distinct)

    def _date_form(self) -> str | None:
        """Return how dates are written; None if some cell is no date."""
        return next((form for form in _DATES if self._all(partial(day_of, form=form))), None)

    def unusable(self) -> str:
        """Return why the column cannot be a field; empty if it can."""
        if not self.distinct:
            return "it has no values."
        if self.is_target or self._all(self._number) or self._date_form():
            return ""
        if len(self.distinct) == self.count > _IDENTIFIER:
            return "all its values differ, as those of an identifier."
        if len(self.distinct) > _CATEGORIES:
            return f"it has {len(self.distinct)} different texts, too many for categories."
        return "all its values are equal texts." if len(self.distinct) < 2 else ""

    def lines(self) -> list[str]:
        """Return the lines of the field after its name."""
        lines = self._type()
        if len(self.distinct) == self.count > _IDENTIFIER and lines[0] == "type: integer":
            lines[0] += " # all values differ: remove the field if it is an identifier"
        fix = ": fill them, or remove the rows" if self.is_target else ""
        return [*lines, *([f"missing: refuse # it has missing values{fix}"] if self.markers else [])]

    def _type(self) -> list[str]:
        order = "the order of the classes"
        if self._all(Field("", "boolean").coder()[0]) and len(self.distinct) == 2:
            return ["type: boolean"]
        if self._all(self._number):
            values = [float(self._number(cell) or 0) for cell in self.distinct]
            whole = all(value.is_integer() for value in values)
            if self.is_target and whole and 2 <= len(values) <= _CATEGORIES:
                names = ordered_classes(list(map(class_name, self.distinct)))
                return ["type: integer # classes; remove 'constraints' to predict a number", _enum(names, order)]
            few = " # few different values: if it is a category, use 'type: string' and 'enum'"
            return [
                f"type: {'integer' if whole else 'number'}{few if whole and len(values) <= _FEW else ''}",
                'unit: "" # which?',
            ]
        form = None if self.is_target else self._date_form()
        if form is not None:
            own = f" # this table: columns: {{...: {{format: '{form}'}}}}" if form != _DATES[0] else ""
            return [f"type: date{own}", "since: 2000-01-01 # days are counted from here"]
        return ["type: string", _enum(sorted(self.distinct), order if self.is_target else "those of this table")]


def _enum(names: Sequence[str], comment: str) -> str:
    return f"constraints: {{enum: [{', '.join(map(_quoted, names))}]}} # {comment}"
