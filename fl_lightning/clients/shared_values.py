"""Notice state that all clients of a process share: in the user's classes, and in objects that are no part of the module."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from fl_lightning.clients.attribute_values import PLAIN, copied, equal, holds, is_copied, tensors_in
from fl_lightning.compat.torch import parameters_of, parts_of
from fl_lightning.functional.description import is_users

_LARGEST = 2**28
"""The bytes up to which a value is compared; what is larger is data rather than state."""
_MOST = 1000
"""The items of a list or dictionary that are looked at; a longer one is data."""
_ABSENT = object()


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
