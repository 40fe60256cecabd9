"""Find the files of all clients, and what their columns are if no schema says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.data.class_names import alike, class_name, ordered_classes
from fl_lightning.data.schema import Field, Schema, listed, repeated
from fl_lightning.data.table_file import SourceTable
from fl_lightning.errors import DataError

_ENDINGS = (".csv", ".tsv", ".parquet")
"""The endings of the files in a folder that are tables."""
Files = Sequence[tuple[str | None, Path]]
"""Each file with its client; None for a single file."""


@dataclass(frozen=True)
class Table:
    """Hold the rows of one file, or of several one after another.

    Args:
        schema: what the columns mean.
        features: the features, finite in float32, float64, shape (n, d).
        target: the target, float64, shape (n,): a number, or the number of a class; None without one.
        clients: the name of each row's client, text, shape (n,), or None.
        persons: the name of each row's person, text, shape (n,), or None.
    """

    schema: Schema
    features: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any] | None
    clients: np.ndarray[Any, Any] | None
    persons: np.ndarray[Any, Any] | None


def table_files(path: Path | Mapping[str, Path], setting: str) -> Files:
    """Return each file with its client, sorted by name: the tables of a folder, or of each client; None for a single file.

    Raises:
        DataError: if no table exists, or if two files of a folder have the same name.
    """
    if isinstance(path, Mapping):
        return [(name, file) for name in sorted(path) for _, file in table_files(path[name], setting)]
    if path.is_file():
        return [(None, path)]
    files = sorted(path.iterdir()) if path.is_dir() else []
    found = [file for file in files if file.suffix.lower() in _ENDINGS and file.name[0] != "." and file.is_file()]
    if not found:
        what = (
            f"The folder '{path}' has no CSV file (*.csv) and no Parquet file" if path.is_dir() else f"'{path}' does not exist"
        )
        raise DataError(f"{what}. Set '{setting}' to a CSV or Parquet file, or to a folder with one per client.")
    for twice in repeated(file.stem for file in found):
        raise DataError(f"The folder '{path}' has several tables named '{twice}'. Give every client one file.")
    return [(file.stem, file) for file in found]


def texts_of(sources: Sequence[SourceTable], name: str) -> np.ndarray[Any, Any]:
    """Return a column of text, which must not have gaps.

    Raises:
        DataError: naming the first gap.
    """
    found = []
    for source in sources:
        cells = np.array(source.text(name).fill_null("").to_pylist())
        if "" in cells:
            raise DataError(source.problem(cells == "", name, "", "Fill it, or remove the row."))
        found.append(cells)
    return np.concatenate(found)


def plain_schema(
    sources: Sequence[SourceTable], target: str | None, others: Sequence[str | None], classes: Sequence[str] | None
) -> Schema:
    """Return the schema of files whose features are numbers: those of the first file.

    Args:
        sources: the files.
        target: the target's column.
        others: the columns of clients and persons.
        classes: the target's classes, none for those that occur; None for a target that is a number.

    Raises:
        DataError: if there are no features, or a single class.
    """
    first = sources[0]
    numbers = [name for name in first.columns if name not in (target, *others)]
    if not numbers:
        raise DataError(f"'{first.path}' has no columns besides {listed([*first.columns])}. Add columns of features.")
    numbers += [] if target is None or classes is not None else [target]
    flags = {name for name in numbers if all(name in one.columns and one.columns[name].type == "bool" for one in sources)}
    fields = [Field(name, "boolean" if name in flags else "number") for name in numbers]
    if target is not None and classes is not None:
        cells = [cell for source in sources for cell in source.text(target).unique().to_pylist()]
        known = tuple(classes) or ordered_classes([class_name(cell) for cell in cells])
        where = f"The column '{target}' of '{first.path}' has the"
        if len(known) < 2:
            raise DataError(
                f"{where} single class '{known[0]}', but classification needs two or more. Name all classes in "
                "'data.datamodule.classes', or set 'data.datamodule.target' to another column."
            )
        if not classes and (odd := alike(known)):
            rank_zero_warn(
                f"{where} classes {', '.join(map(repr, odd))}, which differ only in capital letters or in how a number is "
                "written. If they are the same, write them alike in all files."
            )
        fields.append(Field(target, "string", enum=known))
    return Schema(tuple(fields), target)
