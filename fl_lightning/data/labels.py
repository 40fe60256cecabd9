"""Read the labels and columns of a dataset once, in the cheapest way it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from tqdm import tqdm  # tqdm.auto warns in a notebook without ipywidgets

from fl_lightning.data.client_part import own_attribute, returns_inside
from fl_lightning.errors import DataError, add_note

_MOST_CLASSES = 1_000_000
_LONG = 10_000
"""The number of examples from which reading all of them shows its progress."""


def read_labels(dataset: Any, owner_of: Callable[[int], str] | None = None) -> Tensor:
    """Return the class of each example, int64, shape (n,).

    Use ``targets`` or ``labels`` if the dataset has them, or the second tensor of a TensorDataset, also inside a Subset or
    ConcatDataset without them. Otherwise read every example as (input, label, ...), with a progress bar for large datasets:
    also those of a subclass of Subset or ConcatDataset that overrides how examples are read, which may change their labels.

    Args:
        dataset: the dataset.
        owner_of: returns the client of an example, in words, for errors.

    Raises:
        DataError: if the examples do not have an integer label, or one is too large to be the number of a class.
    """
    found = _without_reading(dataset)
    if found is None:
        try:
            size = len(dataset)
            positions = tqdm(range(size), "Reading labels", unit="example", disable=size < _LONG, leave=False)
            found = torch.tensor([_label_of(dataset, index, owner_of) for index in positions])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{type(dataset).__name__} has no integer label as the second part of an example ({error!r}). Give the "
                "dataset an attribute 'targets', or use a partitioner that needs no labels, such as IIDPartitioner."
            ) from error
    if found.ndim != 1 or found.is_floating_point():
        raise DataError(
            f"Labels must be one whole number per example, but {type(dataset).__name__} has {found.dtype} of shape "
            f"{tuple(found.shape)}. Features that depend on classes (some partitioners, a public share, wrong labels, "
            "mediators) need such labels. Use data with classes, or a partitioner without labels: IIDPartitioner, or "
            "QuantityPartitioner for clients of different sizes."
        )
    refuse_large_labels(found)
    return found.long()


def _label_of(dataset: Any, index: int, owner_of: Callable[[int], str] | None) -> int:
    try:
        return int(dataset[index][1])
    except OSError as error:
        add_note(error, f"In example {index}{'' if owner_of is None else owner_of(index)}, whose label is read.")
        raise


def refuse_large_labels(labels: Tensor) -> None:
    """Raise an error for labels that cannot be the numbers of classes: tables have a column for each class.

    Raises:
        DataError: if a label is too large; the message names the largest.
    """
    if labels.numel() and int(labels.max()) >= _MOST_CLASSES:
        raise DataError(
            f"Example {int(labels.argmax())} has the label {int(labels.max())}, but classes are numbered from 0 to below "
            f"{_MOST_CLASSES:,}. Correct the label, or renumber the classes, for instance with "
            "'torch.unique(labels, return_inverse=True)'."
        )


def labels_at_hand(dataset: Any) -> Tensor | None:
    """Return the class of each example, if the dataset provides whole numbers without reading examples."""
    found = _without_reading(dataset)
    return found.long() if found is not None and found.ndim == 1 and not found.is_floating_point() else None


def read_persons(*datasets: Any) -> Tensor | None:
    """Return the person of each example of datasets, one after the other, int64, shape (n,); None if none names persons.

    A dataset names them in an attribute ``persons`` with one number or text per example; without, each example is a person of
    its own. The same name in two datasets is the same person. Persons are numbered in the order of their names.
    """
    columns = [_column(dataset, "persons") for dataset in datasets]
    named = [column for column in columns if column is not None]
    if not named:
        return None
    if len({column.dtype.kind in "OSU" for column in named}) > 1:
        named = [column.astype(str) for column in named]
    codes = np.unique(np.concatenate(named), return_inverse=True)[1]
    every = len(codes) + np.arange(sum(map(len, datasets)))
    every[np.repeat([column is not None for column in columns], [len(dataset) for dataset in datasets])] = codes
    return torch.from_numpy(every)


def _without_reading(dataset: Any) -> Tensor | None:
    return _gather(dataset, _own_labels)


def _columns_of_labels(dataset: Any) -> Iterator[Any]:
    """Yield what a dataset itself, without those inside, has as labels."""
    for name in ("targets", "labels"):
        values = own_attribute(dataset, name)
        try:
            if values is not None and len(values) == len(dataset):
                yield values
        except TypeError:  # another attribute of that name
            continue


def has_own_labels(dataset: Any) -> bool:
    """Return whether a dataset has labels of its own, which count instead of those of the datasets inside."""
    return any(True for _ in _columns_of_labels(dataset))


def _own_labels(dataset: Any) -> Tensor | None:
    for values in _columns_of_labels(dataset):
        try:
            return torch.as_tensor(values).cpu()
        except (TypeError, ValueError, RuntimeError):  # names or dictionaries
            continue
    if type(dataset) is TensorDataset and len(dataset.tensors) > 1:
        return dataset.tensors[1].cpu()
    return None


def _gather(dataset: Any, own: Callable[[Any], Tensor | None]) -> Tensor | None:
    """Return the result of ``own`` for a dataset, or for those that it consists of if it returns their examples unchanged."""
    found = own(dataset)
    if found is not None or not returns_inside(dataset):
        return found
    if isinstance(dataset, Subset):
        inner = _gather(dataset.dataset, own)
        return None if inner is None else inner[torch.as_tensor(dataset.indices)]
    parts = [_gather(part, own) for part in dataset.datasets]
    return None if any(part is None for part in parts) else torch.cat([p for p in parts if p is not None])


def read_column(dataset: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return a column of a dataset, coded: the number of each example's value among the sorted ones, and the values.

    The function looks for an attribute ``name`` with one value per example, then for a column of a Hugging Face dataset. For
    a ConcatDataset, ``domains`` is the number of the part. Names for whole numbers are taken from ``<name>_names``.

    Raises:
        DataError: if the column does not exist.
    """
    values = _column(dataset, name)
    if values is None and name == "domains" and isinstance(dataset, ConcatDataset):
        values = np.repeat(np.arange(len(dataset.datasets)), [len(part) for part in dataset.datasets])  # type: ignore[arg-type]
    if values is None and name == "domains":
        raise DataError(
            f"DomainPartitioner makes one client of each domain, but the {len(dataset)} training examples have no domains. Put "
            "each client's files into a folder of its own (or name a column of clients in a table), or set 'data.partitioner' "
            "to another, such as IIDPartitioner. A dataset of your own needs an attribute 'domains' with a value per example."
        )
    if values is None:
        raise DataError(
            f"{type(dataset).__name__} has no column '{name}': an attribute of that name with one value for each of its "
            f"{len(dataset)} examples. Add it, or set 'data.partitioner' to another, such as IIDPartitioner."
        )
    kind = getattr(values, "ndim", 0) == 1
    try:
        found, codes = np.unique(values, return_inverse=True)
    except TypeError:  # a mixture of numbers and texts, or None among them
        kind = False
    if not kind or (found.dtype.kind == "f" and np.isnan(found).any()):
        raise DataError(
            f"The column '{name}' of {type(dataset).__name__} must have one value per example, all numbers or all texts, and "
            "no gaps. Fill the gaps, or set 'data.partitioner.column' to another column."
        )
    return torch.from_numpy(codes), tuple(str(value) for value in found.tolist())


def _column(dataset: Any, name: str) -> Any:
    """Return a column as an array; look inside datasets that consist of others and lack it."""
    values, consists = own_attribute(dataset, name), isinstance(dataset, Subset | ConcatDataset)
    if values is None and not consists and name in (getattr(dataset, "column_names", None) or ()):
        values = dataset[name][:]
    if values is None or not hasattr(values, "__len__") or len(values) != len(dataset):
        inner = _inner_column(dataset, name) if consists else None
        if inner is not None and len(inner) == len(dataset):
            return inner
        if name == "persons" and (inner is not None or hasattr(values, "__len__")):
            raise DataError(
                f"{type(dataset).__name__} names persons, but not one for each of its {len(dataset)} examples. Give its "
                "attribute 'persons' one value for each example."
            )
        return None
    column = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    known = getattr(dataset, f"{name}_names", None)
    return np.asarray(known)[column] if known else column


def _inner_column(dataset: Any, name: str) -> Any:
    """Return a column of the datasets inside, whose rows a subclass keeps also if it changes what it returns of them."""
    if isinstance(dataset, Subset):
        inner = _column(dataset.dataset, name)
        return None if inner is None else inner[np.asarray(dataset.indices)]
    parts = [_column(part, name) for part in dataset.datasets]
    named = [part for part in parts if part is not None]
    if name == "persons" and 0 < len(named) < len(parts):
        raise DataError(
            f"ConcatDataset names 'persons' in {len(named)} of the {len(parts)} datasets that it joins. Name them in all, "
            "with a name of its own for each example of a person who is not known."
        )
    return np.concatenate(named) if len(named) == len(parts) else None
