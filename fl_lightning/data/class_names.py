"""Names of classes and features: number classes by their names, and compare the names that datasets have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, Subset

from fl_lightning.data.client_part import own_attribute
from fl_lightning.data.labels import has_own_labels
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.errors import DataError, require


def class_name(cell: object) -> str:
    """Return a class as written, except that 1, 1.0 and 01 are one class."""
    text = str(cell)
    whole = re.fullmatch(r"(-?)0*([0-9]+?)(?:\.0*)?", text)
    return text if whole is None else whole[2] if whole[2] == "0" else whole[1] + whole[2]


def ordered_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return each name once, by value if all are numbers, otherwise as text."""
    values: dict[str, Any] = {name: _value(name) for name in sorted(set(names))}
    return tuple(values if None in values.values() else sorted(values, key=values.__getitem__))


def alike(names: Sequence[str]) -> list[str]:
    """Return the names that differ from another one only in capital letters, or in how a number is written."""
    loosely = [name.casefold() if (value := _value(name)) is None else value for name in names]
    return [name for name, one in zip(names, loosely, strict=True) if loosely.count(one) > 1]


def _value(name: str) -> Decimal | None:
    """Return the number that a name is, exactly; None for any other text."""
    try:
        value = Decimal(name)
    except InvalidOperation:
        return None
    return value if value.is_finite() and "_" not in name else None


def given_classes(classes: Sequence[str | int] | None, read: Callable[[object], str] = class_name) -> tuple[str, ...]:
    """Return the classes of the setting ``data.datamodule.classes`` as names; none if it is not set.

    Raises:
        ConfigurationError: if they are fewer than two, or one occurs twice.
    """
    names = tuple(map(read, classes or ()))
    fits = classes is None or (len(names) >= 2 and len(set(names)) == len(names))
    require(fits, "data.datamodule.classes", "two or more names, each once", classes)
    return names


def names_of(data: Any, kind: str) -> tuple[str, ...] | None:
    """Return the names that a dataset or loader has for its classes or features; None if it has none.

    Args:
        data: a dataset, also inside a Subset or ConcatDataset that has neither names nor labels of its own, or a loader.
        kind: ``classes`` or ``feature_names``.
    """
    if isinstance(data, DataLoader | TensorLoader):
        return names_of(data.dataset, kind)
    names = own_attribute(data, kind)
    if names is None and kind == "classes" and isinstance(features := getattr(data, "features", None), Mapping):
        names = next((one.names for one in features.values() if hasattr(one, "names")), None)  # Hugging Face's ClassLabel
    if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    if not isinstance(data, Subset | ConcatDataset) or (kind == "classes" and has_own_labels(data)):
        return None
    found = [names_of(part, kind) for part in (data.datasets if isinstance(data, ConcatDataset) else [data.dataset])]
    return found[0] if found and all(one == found[0] for one in found) else None


def require_alike(one: str, data: Any, other: str, others: Any) -> None:
    """Refuse sets whose classes or features have other names, or another order; sets without names are not compared.

    Args:
        one: the owner of the first set, for messages.
        data: its dataset or loader.
        other: the owner of the other set.
        others: its dataset or loader, or several.

    Raises:
        DataError: saying what differs.
    """
    parts = others if isinstance(others, list | tuple) else others.values() if isinstance(others, Mapping) else [others]
    for kind, what in (("classes", "classes"), ("feature_names", "features")):
        names = names_of(data, kind)
        for theirs in (names_of(part, kind) for part in parts):
            if names is None or theirs is None or names == theirs:
                continue
            odd = next((name for name in (*names, *theirs) if (name in names) != (name in theirs)), None)
            differs = "the order differs" if odd is None else f"'{odd}' is only in one of them"
            fix = ": set 'classes' of both datamodules to one list" if kind == "classes" else ""
            raise DataError(
                f"{one} has the {what} {_listed(names)}, but {other} has {_listed(theirs)} ({differs}), so one would be taken "
                f"for another. Give both the same {what} in the same order{fix}."
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
