"""Compare and copy the values of a module's attributes: numbers, texts, tensors, arrays, and containers of them."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from enum import Enum
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.seeding import GENERATORS

BUILTIN = (bool, int, float, complex, str, bytes, type(None))
"""The types of plain values that can be read from a file without running code."""
PLAIN = (*BUILTIN, np.generic, Enum)
"""Values that nothing changes in place, so that they need no copy."""
_CONTAINERS = (list, dict, tuple, set, frozenset, deque, defaultdict, OrderedDict)
HOLDERS = (Tensor, *_CONTAINERS)
"""Values that may be, or hold, one of the module's own tensors."""


def is_copied(value: Any) -> bool:
    """Return whether a value is a tensor, an array, or a container of such and plain values, which is copied as a whole."""
    if isinstance(value, Tensor | np.ndarray):
        return True
    return isinstance(value, _CONTAINERS) and all(isinstance(item, PLAIN) or is_copied(item) for item in _items(value))


def not_storable(value: Any) -> Iterator[Any]:
    """Yield what clients cannot store of a value: what is neither a tensor, nor builtin, nor a container of such."""
    if type(value) in (list, tuple, set, dict, OrderedDict, Counter):
        for item in _items(value):
            yield from not_storable(item)
    elif not (isinstance(value, Tensor) or type(value) in BUILTIN):
        yield value


def is_kept(value: Any) -> bool:
    """Return whether a value is a tensor or builtin, or a container of such."""
    return not any(True for _ in not_storable(value))


def builtin(value: Any) -> Any:
    """Return a plain value, one of NumPy's that Python has as well as Python's."""
    return value.item() if isinstance(value, np.float64 | np.int64 | np.bool_) else value


def holds(value: Any, tensors: set[int]) -> bool:
    """Return whether a value is one of some tensors, or a container of one, given the ids of the tensors."""
    return any(id(tensor) in tensors for tensor in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield a value that is a tensor, or the tensors in a container."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, _CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def generators_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a value that is a generator of random numbers, or those in a container, each with its path."""
    if isinstance(value, GENERATORS):
        yield path, value
    elif isinstance(value, dict | list | tuple | deque):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from generators_in(item, f"{path}.{key}")


def copied(value: Any) -> Any:
    """Return a deep copy of a value, in which a tensor that autograd computed is one without a history."""
    history = {id(tensor): tensor.detach().clone() for tensor in tensors_in(value) if tensor.grad_fn is not None}
    return copy.deepcopy(value, history)


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal in type and content; NaN equals NaN."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return bool(same and ((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or bool(one != one and other != other)


def like(value: Any, before: Any) -> Any:
    """Return a copy of a value that a client kept; a tensor requires a gradient and lies where the one before it did.

    Args:
        value: what the client kept, on the CPU.
        before: the value that it replaces.
    """
    found = copy.deepcopy(value)
    if isinstance(found, Tensor) and isinstance(before, Tensor):
        found = found.to(before.device).requires_grad_(before.requires_grad)
    return found


def stored(name: str, value: Any) -> Any:
    """Return a copy of a value that a client keeps until its next turn, its tensors on the CPU and without a history.

    Raises:
        ConfigurationError: if the value is, or contains, something other than tensors and plain values.
    """
    value = builtin(value)
    for item in not_storable(value):
        raise ConfigurationError(
            f"'client_state' names '{name}', which holds a {type(item).__name__}, but clients keep only tensors, numbers, "
            "texts, and lists, tuples, sets and dictionaries of them. Store it as one of these."
        )
    return value.detach().clone().cpu() if isinstance(value, Tensor) else copied(value)


def _items(value: Any) -> Any:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value
