"""Find what a dataset says of its examples: labels as clients read them, persons, domains, names of classes and features."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset
from tqdm import tqdm  # tqdm.auto warns in a notebook without ipywidgets

from fl_lightning.data.client_part import own_attribute, read_examples, returns_inside
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.errors import DataError, add_note, require
from fl_lightning.functional.seeding import isolated_rng

_MOST_CLASSES = 1_000_000
_LONG = 10_000
"""The number of examples from which reading all of them shows its progress."""
_COMPARED = 64
"""The most examples that are read to see whether they have the labels that their dataset stores."""


def read_labels(dataset: Any) -> Tensor:
    """Return the class of each example, int64, shape (n,).

    Use :func:`labels_at_hand` if possible; otherwise read every example as (input, label, ...), with a progress bar for large
    datasets.

    Raises:
        DataError: if the examples do not have an integer label, or one is too large to be the number of a class.
    """
    found, index = values_of(dataset), 0
    try:
        if found is None:
            size = len(dataset)
            positions = tqdm(range(size), "Reading labels", unit="example", disable=size < _LONG, leave=False)
            found = np.empty(size, np.int64)
            for index in positions:
                found[index] = _whole(next(read_examples(dataset, [index])))
        elif found.ndim != 1 or found.dtype.kind == "f":
            raise ValueError(f"they are {found.dtype} of shape {found.shape}")
    except OSError as error:
        add_note(error, f"In example {index}, whose label is read.")
        raise
    except (IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{type(dataset).__name__} has no whole number as the label of each example ({error!r}), which some partitioners, "
            "a public share, wrong labels and mediators need. Return (input, label, ...), give the dataset an attribute "
            "'targets', or use a partitioner without labels: IIDPartitioner, or QuantityPartitioner for unequal sizes."
        ) from error
    labels = torch.from_numpy(found.astype(np.int64))
    refuse_other_labels(labels.clamp(min=0))  # a negative one may mark examples that no client gets
    return labels


def _whole(example: Any) -> int:
    label = float(example[1])
    if not label.is_integer():
        raise ValueError(f"{label} is not a whole number")
    return int(label)


def refuse_other_labels(labels: Tensor) -> None:
    """Raise an error for labels that cannot be the numbers of classes: tables have a column for each class.

    Raises:
        DataError: if a label is negative or too large; the message names it.
    """
    wrong = labels[(labels < 0) | (labels >= _MOST_CLASSES)]
    if wrong.numel():
        raise DataError(
            f"An example has the label {int(wrong[0])}, but classes are numbered from 0 to below {_MOST_CLASSES:,}. Correct or "
            "remove it, or renumber the classes, for instance with 'torch.unique(labels, return_inverse=True)'."
        )


def labels_at_hand(dataset: Any) -> Tensor | None:
    """Return the class of each example, if the dataset provides whole numbers without reading all examples."""
    found = values_of(dataset)
    return None if found is None or found.ndim != 1 or found.dtype.kind == "f" else torch.from_numpy(found.astype(np.int64))


def read_persons(*datasets: Any) -> Tensor | None:
    """Return the person of each example of datasets, one after the other, int64, shape (n,); None if none names persons.

    A dataset names them in an attribute ``persons`` with one number or text per example; without, each example is a person of
    its own. The same name in two datasets is the same person. Persons are numbered in the order of their names.
    """
    columns = [values_of(dataset, "persons") for dataset in datasets]
    named = [column for column in columns if column is not None]
    if not named:
        return None
    if len({column.dtype.kind in "OSU" for column in named}) > 1:
        named = [column.astype(str) for column in named]
    codes = np.unique(np.concatenate(named), return_inverse=True)[1]
    every = len(codes) + np.arange(sum(map(len, datasets)))
    every[np.repeat([column is not None for column in columns], [len(dataset) for dataset in datasets])] = codes
    return torch.from_numpy(every)


def read_column(dataset: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return a column of a dataset, coded: the number of each example's value among the sorted ones, and the values.

    The column is that of :func:`values_of`. For a ConcatDataset without it, ``domains`` is the number of the part.

    Raises:
        DataError: if the column does not exist.
    """
    values = values_of(dataset, name)
    if values is None and name == "domains" and isinstance(dataset, ConcatDataset) and returns_inside(dataset):
        values = np.repeat(np.arange(len(dataset.datasets)), [len(part) for part in dataset.datasets])  # type: ignore[arg-type]
    if values is None:
        files = "Put each client's files into a folder of its own, name a column of clients in a table, or add it"
        raise DataError(
            f"{type(dataset).__name__} has no column '{name}': an attribute of that name with one value for each of its "
            f"{len(dataset)} examples. {files if name == 'domains' else 'Add it'}, or set 'data.partitioner' to another, such "
            "as IIDPartitioner."
        )
    try:
        found, codes = np.unique(values, return_inverse=True)
        fits = values.ndim == 1 and not (found.dtype.kind == "f" and np.isnan(found).any())
    except TypeError:  # a mixture of numbers and texts, or None among them
        fits = False
    if not fits:
        raise DataError(
            f"The column '{name}' of {type(dataset).__name__} must have one value per example, all numbers or all texts, and "
            "no gaps. Fill the gaps, or set 'data.partitioner.column' to another column."
        )
    return torch.from_numpy(codes), tuple(str(value) for value in found.tolist())


def values_of(dataset: Any, name: str | None = None) -> Any:
    """Return one value of each example as an array, without reading all examples; None if the dataset does not have them.

    They are the dataset's own (an attribute, or a column of a Hugging Face dataset), otherwise those of the datasets inside a
    Subset or ConcatDataset that returns their examples unchanged.

    Args:
        dataset: the dataset.
        name: the attribute: ``persons``, ``domains`` or any other, with the names of whole numbers in ``<name>_names``; None
            for labels, which are in ``targets``, ``labels``, or the second tensor of a TensorDataset.

    Raises:
        DataError: if it is not known which example has which value.
    """
    found = _own_labels(dataset) if name is None else _own_values(dataset, name)
    if found is not None or not isinstance(dataset, Subset | ConcatDataset):
        return found
    unchanged = returns_inside(dataset)
    if name is None and not unchanged:
        return None
    inside = [values_of(part, name) for part in ([dataset.dataset] if isinstance(dataset, Subset) else dataset.datasets)]
    named = [values for values in inside if values is not None]
    if named and not unchanged:
        raise DataError(
            f"{type(dataset).__name__} overrides how examples are read, so the '{name}' of the data inside may not be those of "
            f"its {len(dataset)} examples. Give it an attribute '{name}' with one value for each of them."
        )
    if name == "persons" and 0 < len(named) < len(inside):
        raise DataError(
            f"ConcatDataset names 'persons' in {len(named)} of the {len(inside)} datasets that it joins. Name them in all, "
            "with a name of its own for each example of a person who is not known."
        )
    if len(named) < len(inside):
        return None
    return named[0][np.asarray(dataset.indices, np.int64)] if isinstance(dataset, Subset) else np.concatenate(named)


def _own_values(dataset: Any, name: str) -> Any:
    """Return the values that a dataset itself, without those inside, has in an attribute or column."""
    values = own_attribute(dataset, name)
    if values is None and name in (own_attribute(dataset, "column_names") or ()):
        values = dataset[name][:]
    if not hasattr(values, "__len__"):
        return None
    if len(values) != len(dataset):
        if name != "persons":
            return None
        raise DataError(
            f"{type(dataset).__name__} names persons, but not one for each of its {len(dataset)} examples. Give its "
            "attribute 'persons' one value for each example."
        )
    column = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    known = getattr(dataset, f"{name}_names", None)
    return np.asarray(known)[column] if known else column


def _own_labels(dataset: Any) -> Any:
    """Return the labels that a dataset itself stores, as its examples have them; None if it stores none, or others."""
    for name in ("targets", "labels"):
        try:
            stored = _own_values(dataset, name)
        except (TypeError, ValueError):  # another attribute of that name
            continue
        if stored is None or stored.dtype.kind not in "biuf":  # names or dictionaries
            continue
        return stored if _is_read(dataset, stored) else None
    if type(dataset) is TensorDataset and len(dataset.tensors) > 1:
        return dataset.tensors[1].detach().cpu().numpy()
    return None


def _is_read(dataset: Any, stored: Any) -> bool:
    """Return whether examples have the labels that their dataset stores; read the first one of each class to see that."""
    if stored.ndim != 1 or stored.dtype.kind == "f":
        return True
    positions = np.unique(stored, return_index=True)[1][:_COMPARED].tolist()
    with isolated_rng(0, torch.device("cpu")):
        try:
            read = [_whole(example) for example in read_examples(dataset, positions)]
        except Exception:  # no (input, label), or it cannot be read: the client will fail in the same way when it trains
            return True
    for position, label in zip(positions, read, strict=True):
        if label != stored[position]:
            rank_zero_warn(
                f"{type(dataset).__name__} stores the label {stored[position]} of example {position}, but returns {label} as "
                "its second part. Clients count with the labels that they read. Store those in 'targets', or return (input, "
                "label, ...)."
            )
            return False
    return True


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
    if not isinstance(data, Subset | ConcatDataset) or (kind == "classes" and _own_labels(data) is not None):
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
                f"{one} has the {what} {listed(names)}, but {other} has {listed(theirs)} ({differs}), so one would be taken "
                f"for another. Give both the same {what} in the same order{fix}."
            )


def listed(parts: Sequence[str], mark: str = ", ") -> str:
    """Return the first 20 parts, and how many more there are."""
    first = mark.join(parts[:20])
    return first if len(parts) <= 20 else f"{first} and {len(parts) - 20} more"
