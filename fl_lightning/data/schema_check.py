"""Compare files with a schema, for the eyes of those who own them: counts, and what may have gone wrong in the export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fl_lightning.data.schema import Field, Schema
from fl_lightning.data.schema_text import shown
from fl_lightning.data.table_cells import FieldReader, coder, in_words
from fl_lightning.data.table_exports import Exports
from fl_lightning.data.table_rows import further_columns, table_files
from fl_lightning.data.table_source import as_text, listed, number_in, read_source
from fl_lightning.errors import DataError, did_you_mean

_MANY = 0.5
"""The share of values out of range from which another unit is suspected."""
_SHOWN = 5


def compare_files(
    path: Path | Mapping[str, Path], schema: Schema, exports: Exports, others: Sequence[str | None] = ()
) -> list[str]:
    """Return sentences about how files differ from a schema, in the order of its fields.

    Args:
        path: a file, a folder, or a path for each client by name.
        schema: the schema.
        exports: how the files were exported.
        others: columns that are no fields, such as that of persons.

    Raises:
        DataError: if there is no file, or it cannot be read at all.
    """
    setting, found = "data.datamodule.path", []
    paths = {path.stem: path} if isinstance(path, Path) else path
    for name, own in paths.items():
        for file in table_files(own, setting):
            export = exports.of(name if isinstance(path, Mapping) else file.stem if own.is_dir() else None)
            source = read_source(file, export.csv)
            try:
                reader = FieldReader(source, export, schema)
            except DataError as error:
                found.append(str(error))
                continue
            form = f", separated by {source.separated_by}, in {source.form.encoding}" if source.form else ""
            found.append(f"'{file}' has {source.rows} rows{form}.")
            found += [f"'{file}': {text}" for text in [*_columns(reader, others), *_fields(reader)]]
    return found


def _columns(reader: FieldReader, others: Sequence[str | None]) -> list[str]:
    """Return sentences about missing, renamed and further columns."""
    header, said = reader.source.header, []
    for field in reader.schema.fields:
        origin = reader.export.source(field.name)
        if origin.column not in header:
            of = "" if origin.column == field.name else f" of '{field.name}'"
            said.append(f"the column '{origin.column}'{of} is missing.{did_you_mean(origin.column, header)}")
        elif origin.column != field.name:
            said.append(f"'{field.name}' is read from '{origin.column}'.")
    further = further_columns(reader, others)
    return said + ([f"further columns are ignored: {listed(further)}."] if further else [])


def _fields(reader: FieldReader) -> list[str]:
    said = []
    for field in reader.schema.fields:
        if reader.export.source(field.name).column in reader.source.header:
            texts = _coded(reader, field) if field.enum or field.type in ("boolean", "date") else _numeric(reader, field)
            said += [f"'{field.name}': {text}" for text in texts]
    return said


def _counts(reader: FieldReader, field: Field) -> tuple[dict[str, int], list[str]]:
    """Return how often each text occurs, and a sentence about missing values if there are any."""
    cells = reader.cells(field)
    counted = as_text(cells.drop_null()).value_counts()
    counts = dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))
    if not cells.null_count:
        return counts, []
    becomes = {
        "refuse": "which the schema refuses",
        "constant": "which become a constant",
        "indicator": "which are marked",
        "mean": "which become the mean over all clients",
        "most_frequent": "which become the most frequent category over all clients",
    }[field.missing]
    return counts, [f"{100 * cells.null_count / len(cells):.2g} % of the values are missing, {becomes}."]


def _coded(reader: FieldReader, field: Field) -> list[str]:
    code, wanted = coder(field, reader.origin(field))
    counts, said = _counts(reader, field)
    codes = {text: code(text) for text in counts}
    unknown = [f"'{shown(text)}' ({counts[text]} times)" for text, found in codes.items() if found is None]
    if unknown:
        said.append(f"{listed(unknown)} {wanted}.")
    known = {text: value for text, value in codes.items() if value is not None}
    return said + (_ranged(field, known, counts) if field.since else [])


def _numeric(reader: FieldReader, field: Field) -> list[str]:
    """Return sentences about numbers: what is not a number, what is out of range, and suspected commas and units."""
    counts, said = _counts(reader, field)
    numbers = {text: number_in(text, reader.decimal) for text in counts}
    wrong = [text for text, value in numbers.items() if value is None]
    commas = [text for text in wrong if number_in(text.replace(".", ""), ",") is not None]
    if wrong:
        times = sum(counts[text] for text in wrong)
        comma = (
            f" Cells such as '{shown(commas[0])}' seem to have decimal commas: set 'csv: {{decimal: \",\"}}'." if commas else ""
        )
        said.append(f"{times} values are not numbers, such as '{shown(wrong[0])}'.{comma}")
    origin = reader.export.source(field.name)
    known = {text: float(reader.scaled(np.array([value]), origin)[0]) for text, value in numbers.items() if value is not None}
    return said + _ranged(field, known, counts)


def _ranged(field: Field, values: Mapping[str, float], counts: Mapping[str, int]) -> list[str]:
    """Return sentences about values out of range."""
    weights, found = np.array([counts[text] for text in values]), np.array(list(values.values()))
    if not len(found):
        return []
    low = -np.inf if field.minimum is None else field.minimum
    high = np.inf if field.maximum is None else field.maximum
    outside = int(weights[~((low <= found) & (found <= high))].sum())
    if not outside:
        return []
    sides = (("at least", field.minimum), ("at most", field.maximum))
    limits = [f"{side} {in_words(field, limit)}" for side, limit in sides if limit is not None]
    text = f"{outside} of {int(weights.sum())} values are out of range ({' and '.join(limits)})."
    if field.since is None and outside >= _MANY * weights.sum():
        text += f" Is it another unit? Then set 'scale' of '{field.name}' to the factor from one to the other."
    return [text]
