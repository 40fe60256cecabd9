"""Describe what the columns of all clients' tables mean, so that the same number means the same everywhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date, datetime
from itertools import accumulate
from typing import Any, ClassVar, Literal

import numpy as np

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.labels import class_name, listed, names_of
from fl_lightning.functional.histograms import equal_cuts

FieldType = Literal["number", "integer", "boolean", "string", "date"]
Missing = Literal["refuse", "constant", "indicator", "mean", "most_frequent"]

ISO = "%Y-%m-%d"
"""How a schema writes dates."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a feature may be."""
NUMBER = r"^[+-]?([0-9]+[{0}]?[0-9]*|[{0}][0-9]+)([eE][+-]?[0-9]+)?$"
"""How a number is written, with a decimal mark in place of ``{0}``."""
BOOLEAN_CLASSES = ("false", "true")
"""The classes of a boolean target, in the order of their codes."""
_BOOLEANS = {"false": 0.0, "0": 0.0, "0.0": 0.0, "no": 0.0, "true": 1.0, "1": 1.0, "1.0": 1.0, "yes": 1.0}


@dataclasses.dataclass(frozen=True)
class Field:
    """Describe one column.

    Args:
        name: the column's name.
        type: the type of its values. An enum makes a field of type string or integer a category.
        unit: the unit of its values, in words.
        minimum: the smallest allowed number, or the first allowed day as days since ``since``; None for no limit.
        maximum: the largest allowed number, or the last allowed day; None for no limit.
        enum: the categories in their order; empty if the field is not a category.
        missing: what a missing value becomes: an error, a constant, a constant and a column of its own that says so, or NaN,
            which ``Standardized`` in the model replaces by the mean or the most frequent category over all clients.
        constant: what replaces a missing value: a number, a number of days, 0 or 1, or the number of a category; None for
            no category.
        since: the day from which the days of a date are counted.
    """

    name: str
    type: FieldType
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    enum: tuple[str, ...] = ()
    missing: Missing = "refuse"
    constant: float | None = None
    since: date | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the features that this field becomes."""
        values = tuple(f"{self.name}={category}" for category in self.enum) or (self.name,)
        return (*values, f"{self.name}=missing") if self.missing == "indicator" else values

    def coder(self, form: str = ISO, decimal: str = ".") -> tuple[Callable[[str], float | None], str]:
        """Return the function from a text to its value, None if it has none, and what such a text is not, in words.

        The value is a number, a number of days, 0 or 1, or the number of a category.

        Args:
            form: how dates are written.
            decimal: the decimal mark.
        """
        since = self.since
        if self.enum:
            exact = {name: float(code) for code, name in enumerate(self.enum)}
            alike = {class_name(name): code for name, code in exact.items()}
            words = f"a category of '{self.name}' ({listed(self.enum)})"
            return lambda text: exact.get(text, alike.get(class_name(text))), words
        if self.type == "boolean":
            return lambda text: _BOOLEANS.get(text.lower()), "true or false, yes or no, 1 or 0"
        if since is not None:
            days = lambda text: None if (day := day_of(text, form)) is None else float((day - since).days)  # noqa: E731
            return days, f"a date of the form {form}"
        return lambda text: number_in(text, decimal), f"a number up to {LARGEST:.1e}"


@dataclasses.dataclass(frozen=True)
class Schema:
    """Describe the tables of all clients.

    Args:
        fields: the columns, in the order of their features.
        target: the name of the field to predict; None for features alone.
        missing_values: the cells that stand for a missing value, in every column.
        text: the schema as JSON, if it was read from a text.
    """

    on_resume: ClassVar = ResumeRule(free="text")

    fields: tuple[Field, ...]
    target: str | None = None
    missing_values: tuple[str, ...] = ("",)
    text: str = dataclasses.field(default="", compare=False, repr=False)

    @property
    def features(self) -> tuple[Field, ...]:
        """Return the fields that are features."""
        return tuple(field for field in self.fields if field.name != self.target)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of all features, in their order: one for each category, such as ``sex=male``."""
        return tuple(name for field in self.features for name in field.columns)

    @property
    def categories(self) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the features of each category field, one for each category, and for missing values."""
        return tuple(span for field, span in self._spans() if field.enum)

    @property
    def filled(self) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the features of each field whose missing values become its most frequent category."""
        return tuple(span for field, span in self._spans() if field.missing == "most_frequent")

    @property
    def cuts(self) -> tuple[tuple[float, ...], ...]:
        """Return the borders between ten bins for each feature: of its range, if it has one; none for categories."""
        found: list[tuple[float, ...]] = []
        for field, span in self._spans():
            low, high = (None, None) if field.enum or field.type == "boolean" else (field.minimum, field.maximum)
            own = equal_cuts(low, high) if low is not None and high is not None and low < high else ()
            found += [own, *[()] * (len(span) - 1)]
        return tuple(found)

    def _spans(self) -> list[tuple[Field, tuple[int, ...]]]:
        ends = list(accumulate(len(field.columns) for field in self.features))
        return [(f, tuple(range(end - len(f.columns), end))) for f, end in zip(self.features, ends, strict=True)]

    @property
    def target_field(self) -> Field | None:
        """Return the field to predict, if there is one."""
        return next((field for field in self.fields if field.name == self.target), None)

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the target's classes in the order of their codes; empty if the target is a number, or if there is none."""
        field = self.target_field
        return () if field is None else BOOLEAN_CLASSES if field.type == "boolean" else field.enum

    def digest(self) -> str:
        """Return a digest that is equal for two schemas exactly if their tables mean the same.

        Titles, descriptions, comments, and the order of ``missingValues`` do not count; units do.
        """
        fields = [{name: float(one) if isinstance(one, int) else one for name, one in vars(own).items()} for own in self.fields]
        values = {"fields": fields, "target": self.target, "missing_values": sorted(self.missing_values)}
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:16]


def schema_of(datamodule: Any) -> Schema | None:
    """Return the schema of a datamodule's tables, if it has one."""
    schema = getattr(datamodule, "schema", None)
    return schema if isinstance(schema, Schema) else None


def categories_of(datamodule: Any, channels: int) -> tuple[tuple[int, ...], ...]:
    """Return :attr:`Schema.categories` of a datamodule's tables; none if its inputs are not the features of a schema."""
    schema = schema_of(datamodule)
    return () if schema is None or len(schema.feature_names) != channels else schema.categories


def channel_names(data: Any, channels: int) -> list[str]:
    """Return the names of the channels of the clients' inputs, in their order; numbers if they have no names.

    Args:
        data: the FederatedDataModule, after ``setup('fit')``.
        channels: the number of channels.
    """
    schema, own = schema_of(data.datamodule), "feature_names"
    known = [schema.feature_names if schema is not None else None, names_of(data.datamodule, own)]
    known += [] if data.is_remote else [names_of(data.client_datasets.source, own)]
    named = (list(names) for names in known if names is not None and len(names) == channels)
    return next(named, [f"channel {k}" for k in range(channels)])


# ---------------------------------------------------------------- texts


def number_in(text: str, decimal: str = ".") -> float | None:
    """Return the number that a text is, up to the largest; None for any other text, also 1_0, inf and nan."""
    if not re.fullmatch(NUMBER.format(decimal), text):
        return None
    number = float(text.replace(decimal, "."))
    return number if abs(number) <= LARGEST else None


def day_of(text: str, form: str = ISO) -> date | None:
    """Return the day that a text is, written as 2024-12-31 or as the form says; None for any other text."""
    try:
        return datetime.strptime(text, form).date()
    except ValueError:
        return None


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def shown(text: object, most: int = 60) -> str:
    """Return a stranger's text for a message: one line, without control characters, shortened."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text)[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."
