"""Find what may have gone wrong in an export: other units, numbers for missing values, cells that do not fit a schema."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.data.schema import Field, Schema
from fl_lightning.data.schema_cells import Export, FieldReader, in_words
from fl_lightning.data.schema_file import shown
from fl_lightning.data.table_file import as_text, listed, read_source
from fl_lightning.data.table_rows import table_files

Ranges = Sequence[tuple[float, float, float, float]]
"""Of each feature: its smallest and largest value, its mean, and its standard deviation."""

_FACTOR = 10.0
"""How many times larger or smaller a feature's spread is at a client, compared with the others, if its unit differs."""
_SPREAD = 0.1
"""The least deviation in parts of the range: the range of features that are mostly 0, such as pixels, differs by chance."""
_SENTINELS = (-1.0, -9.0, -99.0, -999.0, -9999.0, -99999.0, 99.0, 999.0, 9999.0, 99999.0)
"""Numbers that often stand for a missing value."""
_FAR = 10.0
"""How many standard deviations such a number is away from the other values, if it stands for a missing one."""
_MANY = 0.5
"""The share of values out of range from which another unit is suspected."""


def ranges_of(features: np.ndarray[Any, Any]) -> list[tuple[float, float, float, float]]:
    """Return the ranges of features of shape (n, d), n >= 1, without missing numbers (NaN); 0 for a feature without numbers."""
    there = np.where(np.isnan(features).all(0), 0.0, features)
    columns = zip(np.nanmin(there, 0), np.nanmax(there, 0), np.nanmean(there, 0), np.nanstd(there, 0), strict=True)
    return [(float(low), float(high), float(mean), float(std)) for low, high, mean, std in columns]


def rounded(ranges: Ranges) -> tuple[tuple[float, float, float, float], ...]:
    """Return ranges to two significant digits, so that no value of a single row is told exactly."""
    return tuple(tuple(float(f"{value:.1e}") for value in one) for one in ranges)  # type: ignore[misc]


def unlike_ranges(names: Sequence[str] | None, clients: Mapping[str, Ranges]) -> list[str]:
    """Return a sentence for each feature whose spread at a client is far from the others'.

    Args:
        names: the names of the features; None numbers them.
        clients: the ranges of each client, by its name in messages.
    """
    found: list[str] = []
    if len(clients) < 2 or len({len(ranges) for ranges in clients.values()}) != 1:
        return found
    for k in range(len(next(iter(clients.values())))):
        label = f"'{names[k]}'" if names is not None and k < len(names) else f"number {k}"
        for client, ranges in clients.items():
            others = [own[k] for name, own in clients.items() if name != client]
            reach, usual = _reach(ranges[k]), statistics.median(map(_reach, others))
            spread = statistics.median(map(_spread, others)) >= _SPREAD
            if spread and min(reach, usual) > 0 and max(reach / usual, usual / reach) >= _FACTOR:
                low, high = statistics.median(o[0] for o in others), statistics.median(o[1] for o in others)
                found.append(
                    f"The feature {label} is from {ranges[k][0]:.2g} to {ranges[k][1]:.2g} at {client}, but from {low:.2g} to "
                    f"{high:.2g} at the others. Check its unit there, and numbers that stand for missing values."
                )
    return found


def _reach(one: tuple[float, float, float, float]) -> float:
    """Return the largest of the absolute values and the spread: another unit, or a number far away, changes it."""
    low, high, _, _ = one
    return max(abs(low), abs(high))


def _spread(one: tuple[float, float, float, float]) -> float:
    low, high, _, std = one
    return std / (high - low) if high > low else 0.0


def sentinels(names: Sequence[str], features: np.ndarray[Any, Any]) -> list[str]:
    """Return a sentence for each feature in which a number such as -9999 seems to stand for missing values.

    Args:
        names: the names of the features.
        features: their values, shape (n, d).
    """
    found = []
    for value in _SENTINELS:
        equal = features == value
        for k in np.flatnonzero(equal.any(0)).tolist():
            others = features[~(equal[:, k] | np.isnan(features[:, k])), k]
            if others.size and abs(value - others.mean()) > _FAR * others.std() and abs(value) > 2 * np.abs(others).max():
                found.append(
                    f"The column '{names[k]}' has {value:g} in {int(equal[:, k].sum())} of {len(features)} rows, and otherwise "
                    f"{others.min():.4g} to {others.max():.4g}. If it stands for a missing value, remove the rows or fill them."
                )
    return found


# ---------------------------------------------------------------- against a schema


def compare_files(
    path: Path | Mapping[str, Path], schema: Schema, exports: Mapping[str | None, Export], others: Sequence[str | None]
) -> list[str]:
    """Return sentences about how files differ from a schema, for those who own them, in the order of its fields.

    Args:
        path: a file, a folder, or a path for each client by name.
        schema: the schema.
        exports: how the files of each client were exported; of all others, by None.
        others: columns that are no fields, such as that of persons.

    Raises:
        DataError: if there is no file, or it cannot be read at all.
    """
    found = []
    for name, file in table_files(path, "data.datamodule.path"):
        export = exports.get(name, exports[None])
        reader = FieldReader(read_source(file, export.csv), export, schema)
        found.append(f"'{file}' has {reader.source.rows} rows.")
        found += [f"'{file}': {text}" for text in _columns(reader, others)]
        for field in schema.fields:
            if export.source(field.name).column in reader.source.header:
                found += [f"'{file}': '{field.name}': {text}" for text in _cells(reader, field)]
    return found


def _columns(reader: FieldReader, others: Sequence[str | None]) -> list[str]:
    """Return sentences about missing, renamed and further columns."""
    said = [f"it lacks the column {text}" for text in reader.missing_columns()]
    said += [f"'{name}' is read from '{one.column}'." for name, one in reader.export.columns.items() if one.column != name]
    further = reader.further_columns(others)
    return said + ([f"further columns are ignored: {listed(further)}."] if further else [])


def _cells(reader: FieldReader, field: Field) -> list[str]:
    """Return sentences about cells that are missing, unknown or out of range."""
    cells = reader.cells(field)
    counted = as_text(cells.drop_null()).value_counts()
    counts = dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
    refused = ", which the schema refuses" if field.missing == "refuse" else ""
    said = [f"{100 * cells.null_count / len(cells):.2g} % of the values are missing{refused}."] if cells.null_count else []
    code, wanted = reader.coder(field)
    values = {text: code(text) for text in counts}
    unknown = [f"'{shown(text)}' ({counts[text]} times)" for text, value in values.items() if value is None]
    said += [f"{listed(unknown)} {wanted}."] if unknown else []
    known = {text: value for text, value in values.items() if value is not None}
    return said + _out_of_range(field, np.array(list(known.values())), np.array([counts[text] for text in known]))


def _out_of_range(field: Field, values: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> list[str]:
    low = -np.inf if field.minimum is None else field.minimum
    high = np.inf if field.maximum is None else field.maximum
    outside = int(times[~((low <= values) & (values <= high))].sum())
    if not outside:
        return []
    sides = (("at least", field.minimum), ("at most", field.maximum))
    limits = [f"{side} {in_words(field, limit)}" for side, limit in sides if limit is not None]
    text = f"{outside} of {int(times.sum())} values are out of range ({' and '.join(limits)})."
    if field.since is None and outside >= _MANY * times.sum():
        text += f" Is it another unit? Then set 'scale' of '{field.name}' to the factor from one to the other."
    return [text]
