"""Encode plain values for files that are read without running code: NumPy's scalars, and members of enumerations."""

from __future__ import annotations

import sys
from collections import OrderedDict
from enum import Enum, Flag
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.errors import CheckpointError

_BUILTIN = (bool, int, float, complex, str, bytes, type(None))
PLAIN = (*_BUILTIN, np.generic, Enum)
"""Values that nothing changes in place, so that they need no copy."""
_NUMPY, _ENUM = "\0numpy", "\0enum"
_CONTAINERS = (list, tuple, set, dict, OrderedDict)


def is_storable(value: Any) -> bool:
    """Return whether a plain value can be read again: not one of a subclass of int or another builtin."""
    if isinstance(value, Enum):
        return _class_of(type(value).__module__, type(value).__qualname__) is type(value)
    if isinstance(value, np.generic):
        return value.dtype.kind not in "OV" and type(value).__module__ == "numpy"
    return type(value) in _BUILTIN


def is_kept(value: Any) -> bool:
    """Return whether a value is a tensor or storable, or a container of such."""
    if type(value) in _CONTAINERS:
        return all(map(is_kept, (*value.keys(), *value.values()) if isinstance(value, dict) else value))
    return isinstance(value, Tensor) or is_storable(value)


def encoded(value: Any) -> Any:
    """Return a value with builtins and tensors alone, given one of storable values and containers of them."""
    if isinstance(value, Enum):
        what = value.value if isinstance(value, Flag) else value.name
        return _ENUM, type(value).__module__, type(value).__qualname__, what
    if isinstance(value, np.generic):
        return _NUMPY, value.dtype.str, value.tobytes()
    return _mapped(encoded, value)


def decoded(value: Any) -> Any:
    """Return what :func:`encoded` was given.

    Raises:
        CheckpointError: if the class of an enumeration is not the one that was stored.
    """
    if isinstance(value, tuple) and value and value[0] == _NUMPY:
        return np.frombuffer(value[2], dtype=value[1])[0]
    if not (isinstance(value, tuple) and value and value[0] == _ENUM):
        return _mapped(decoded, value)
    _, module, name, what = value
    kind = _class_of(module, name)
    if kind is not None and issubclass(kind, Flag):
        return kind(what)
    if kind is None or what not in kind.__members__:
        raise CheckpointError(f"A client keeps {what!r} of {module}.{name}, which does not exist. Restore it, or start anew.")
    return kind[what]


def _mapped(change: Any, value: Any) -> Any:
    if type(value) not in _CONTAINERS:
        return value
    if isinstance(value, dict):
        return type(value)((change(key), change(item)) for key, item in value.items())
    return type(value)(map(change, value))


def _class_of(module: str, name: str) -> type[Enum] | None:
    """Return an enumeration among the modules that are already imported: a file must not be able to import any."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Enum) else None
