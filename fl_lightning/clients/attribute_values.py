"""Compare and copy values of attributes: of a client's module, and of classes and objects that all clients share."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from fl_lightning.compat.torch import parameters_of, parts_of
from fl_lightning.functional.description import is_users
from fl_lightning.functional.seeding import GENERATORS

BUILTIN = (bool, int, float, complex, str, bytes, type(None))
"""The types of plain values that can be read from a file without running code."""
PLAIN = (*BUILTIN, np.generic, Enum)
"""Values that nothing changes in place, so that they need no copy."""
_CONTAINERS = (list, dict, tuple, set, frozenset, deque, defaultdict, OrderedDict)
HOLDERS = (Tensor, *_CONTAINERS)
"""Values that may be, or hold, one of the module's own tensors."""
_LARGEST = 2**28
"""The bytes up to which a value is compared; what is larger is data rather than state."""
_MOST = 1000
"""The items of a list or dictionary that are looked at; a longer one is data."""
_ABSENT = object()


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
    for item in (value.values() if isinstance(value, dict) else value) if isinstance(value, _CONTAINERS) else ():
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


def _items(value: Any) -> Any:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else value


def shared_values(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Return copies of the values of a module's classes, and of objects and networks in its attributes, by their owners."""
    own = {id(tensor) for tensor in (*parameters_of(module).values(), *module.buffers())}
    return {name: {key: copied(v) for key, v in _values(owner, own)} for name, owner in _owners(module)}


def warn_of_changes(module: nn.Module, before: dict[str, dict[str, Any]]) -> None:
    """Warn of the values that are other than before a turn; objects that did not exist then are left out."""
    after = shared_values(module)
    changed = [
        f"{owner}.{name}"
        for owner in before.keys() & after.keys()
        for name, value in after[owner].items()
        if not equal(value, before[owner].get(name, _ABSENT))
    ]
    if changed:
        names = ", ".join(map(repr, sorted(changed)))
        rank_zero_warn(
            f"Training changed {names} of {type(module).__name__}, which all clients of a process share, because it belongs to "
            "a class, or to an object that is no part of the module. If it is more than a log or a cache, a client's result "
            "depends on who trained before it, and a resumed run and several ranks give other results. Keep such state in the "
            "module itself: numbers, tensors, lists and dictionaries in attributes (self.name = ...), networks in parts."
        )


def _owners(module: nn.Module) -> Iterator[tuple[str, Any]]:
    parts = parts_of(module)
    known = {id(part) for part in parts.values()}
    for path, part in parts.items():
        objects = [(f"{path}.{name}".lstrip("."), value) for name, value in vars(part).items()]
        for name, value in [(path, part), *objects]:
            within = value.items() if type(value) is dict else enumerate(value) if type(value) in (list, tuple) else ()
            for one, held in [(name, value), *((f"{name}.{key}", item) for key, item in islice(within, _MOST))]:
                yield from ((kind.__name__, kind) for kind in type(held).__mro__ if is_users(kind))
                if id(held) not in known and (is_users(type(held)) or isinstance(held, nn.Module)):
                    yield one, held


def _values(owner: Any, own: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, nn.Module):
        yield "parameters", {name: p.detach() for name, p in parameters_of(owner).items() if id(p) not in own}
        return
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if not name.startswith("__") and (isinstance(value, PLAIN) or (is_copied(value) and not holds(value, own))):
            size = sum(tensor.nbytes for tensor in tensors_in(value)) + (value.nbytes if isinstance(value, np.ndarray) else 0)
            if size <= _LARGEST:
                yield name, value
