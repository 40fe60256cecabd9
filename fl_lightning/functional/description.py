"""Describe settings as plain values, so that a checkpoint can hold them and another run can compare its own."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.compat.torch import unsaved_buffers
from fl_lightning.compat.torchmetrics import state_names
from fl_lightning.functional.digest import digest
from fl_lightning.functional.model_parts import is_computed

CLASS, BASE = "class", "base"
"""Keys of a described object: its qualified name, and for a user's subclass the class of this package it derives from."""

_NOTHING = object()
_DEPTH, _LONG = 4, 64
_WITHOUT_EFFECT = {
    "training",
    "prepare_data_per_node",
    "allow_zero_length_dataloader_with_multiple_devices",
    "trainer",
    *("compute_on_cpu", "compute_with_cache", "dist_sync_on_step", "process_group", "sync_on_compute", "validate_args"),
}
"""Public attributes of Lightning's and torchmetrics' base classes that do not affect results."""


def qualified_name(kind: Any) -> str:
    """Return the name of a class or function with its module; a running script counts as the module of its file's name."""
    module = kind.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(file).stem if file else module
    return f"{module}.{kind.__qualname__}"


def own_class(kind: type) -> type | None:
    """Return the class itself if this package defines it, otherwise the nearest base that this package defines."""
    return next((base for base in kind.__mro__ if base.__module__.startswith("fl_lightning.")), None)


_LIBRARIES = sys.stdlib_module_names | {
    "fl_lightning",
    "lightning",
    "lightning_fabric",
    "numpy",
    "pytorch_lightning",
    "torch",
    "torchmetrics",
    "torchvision",
}


def is_users(kind: Any) -> bool:
    """Return whether a class or a function is the user's: not of Python, of this package, or of what it builds on."""
    return str(kind.__module__).partition(".")[0] not in _LIBRARIES


class Describer:
    """Turn values into None, bool, int, float, str, and lists and dictionaries of these.

    Objects of this package's classes become their constructor's arguments, which they keep under the same names. Objects of
    other classes become their public plain attributes and digests of their tensors. A module adds its hyperparameters and
    its submodules. Paths are left out; the contents of data files are compared as data.

    Args:
        is_free: given an object, its class of this package and an argument, returns whether to leave out the argument.

    Attributes:
        unseen: the names of values that cannot be described, such as lambdas.
    """

    def __init__(self, is_free: Callable[[object, type, str], bool] = lambda *_: False) -> None:
        self._is_free = is_free
        self._open: list[int] = []
        self.unseen: list[str] = []

    def describe(self, value: Any, where: str, exact: bool = False) -> Any:
        """Describe a value.

        Args:
            value: any value.
            where: its name, for ``unseen``.
            exact: whether to keep 1 and 1.0 apart; otherwise whole numbers are the same in either type.
        """
        found = self._describe(value, where, exact)
        return None if found is _NOTHING else found

    def _describe(self, value: Any, where: str, exact: bool = False) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum | torch.dtype | torch.device):  # an IntEnum is an int as well
            return str(value)
        if isinstance(value, int | float):
            return _number(value, exact)
        if isinstance(value, str):
            return str(value)
        if isinstance(value, Tensor | np.ndarray):
            return f"{type(value).__name__} {tuple(value.shape)} {digest(value)}"
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, Path):
            return _NOTHING
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._container(value, where)
        if isinstance(value, type | FunctionType | BuiltinFunctionType | MethodType):
            return self._code(value, where)
        if isinstance(value, functools.partial | torch.Generator) or not hasattr(value, "__dict__"):
            return self._cannot(where)
        return self._object(value, where)

    def _cannot(self, where: str) -> Any:
        if where not in self.unseen:
            self.unseen.append(where)
        return _NOTHING

    def _code(self, value: Any, where: str) -> Any:
        return self._cannot(where) if "<lambda>" in value.__qualname__ else qualified_name(value)

    def _container(self, value: Any, where: str) -> Any:
        if isinstance(value, set | frozenset):
            value = sorted(value, key=repr)
        if len(value) > _LONG:
            return f"{len(value)} entries {digest(value)}"
        if isinstance(value, Mapping):
            return self._each({str(key): item for key, item in value.items()}, where)
        items = (self._describe(item, f"{where}.{k}") for k, item in enumerate(value))
        return [None if item is _NOTHING else item for item in items]

    def _each(self, values: Mapping[str, Any], where: str, exact: Callable[[str], bool] = lambda name: False) -> dict[str, Any]:
        found = {name: self._describe(value, f"{where}.{name}", exact(name)) for name, value in values.items()}
        return {name: value for name, value in found.items() if value is not _NOTHING}

    # ---------------------------------------------------------------- objects

    def _object(self, value: Any, where: str) -> Any:
        if id(value) in self._open:
            return _NOTHING
        self._open.append(id(value))
        try:
            if isinstance(value, nn.Module):
                return self._module(value, where)
            return self._instance(value, where)
        finally:
            self._open.pop()

    def _instance(self, value: Any, where: str) -> Any:
        kind, own = type(value), own_class(type(value))
        node = {CLASS: qualified_name(kind)}
        public = _without_paths(_public(value)) if len(self._open) <= _DEPTH else {}
        if isinstance(value, LightningDataModule):  # its tensors and datasets are compared as data
            public = {name: item for name, item in public.items() if _plain(item) is not _NOTHING}
        if own is None:
            return node | self._each(public, where)
        arguments = constructor_arguments(kind)
        given = {name: _argument(value, name) for name in arguments if not self._is_free(value, own, name)}
        if own is not kind:
            node[BASE] = qualified_name(own)
            given |= {
                name: item for name, item in public.items() if name not in arguments and not self._is_free(value, own, name)
            }
        given = {name: item for name, item in given.items() if item is not _NOTHING}
        return node | self._each(given, where, lambda name: _tells_types_apart(arguments.get(name, "")))

    def _module(self, module: nn.Module, where: str) -> dict[str, Any]:
        """Describe hyperparameters, public attributes, buffers that no checkpoint holds, and submodules."""
        states = state_names(module) if isinstance(module, Metric) else set()
        attributes = {
            name: value
            for name, value in _without_paths(_public(module)).items()
            if name not in states
            and not (callable(value) and hasattr(type(module), name))
            and not isinstance(value, nn.Module)
            and not (isinstance(value, Tensor) and is_computed(module, name))
        }
        saved = getattr(module, "hparams", {})
        parameters = {
            name: _plain(value) for name, value in _without_paths(saved if isinstance(saved, Mapping) else {}).items()
        }
        known = {name: value for name, value in parameters.items() if value is not _NOTHING and not name.startswith("_")}
        attributes |= unsaved_buffers(module)
        node = {CLASS: qualified_name(type(module))} | self._each(known, where) | self._each(attributes, where)
        return node | {name: self._object(child, f"{where}.{name}") for name, child in _children(module, self._open)}


def constructor_arguments(kind: type) -> dict[str, str]:
    """Return the arguments of a class and of its bases of this package: by name, the annotation as text."""
    found: dict[str, str] = {}
    for base in kind.__mro__:
        if "__init__" in vars(base) and (base is kind or base.__module__.startswith("fl_lightning.")):
            for name, parameter in list(inspect.signature(vars(base)["__init__"]).parameters.items())[1:]:
                if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                    found.setdefault(name, str(parameter.annotation))
    return found


def _argument(value: Any, name: str) -> Any:
    attributes = vars(value)
    return attributes[name] if name in attributes else attributes.get(f"_{name}", getattr(value, name, _NOTHING))


def _children(module: nn.Module, path: list[int]) -> Iterator[tuple[str, nn.Module]]:
    return ((name, child) for name, child in module.named_children() if id(child) not in path)


def _public(value: Any) -> dict[str, Any]:
    return {name: item for name, item in vars(value).items() if not name.startswith("_") and name not in _WITHOUT_EFFECT}


def _without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in values.items() if not _is_path(value)}


def _is_path(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and (Path(value).is_absolute() or value[:1] in (".", "~")))


def _plain(value: Any) -> Any:
    """Return a hyperparameter if it is plain: the command line saves objects as YAML, and Python saves them as they are."""
    if isinstance(value, Mapping):
        items = {str(key): _plain(item) for key, item in value.items()}
        return _NOTHING if "class_path" in items or _NOTHING in items.values() else items
    if isinstance(value, list | tuple):
        listed = [_plain(item) for item in value]
        return _NOTHING if any(item is _NOTHING for item in listed) else listed
    return value if value is None or isinstance(value, bool | int | float | str) else _NOTHING


def _tells_types_apart(annotation: str) -> bool:
    """Return whether 1 and 1.0 mean different things: a number of clients, or all of them."""
    words = re.findall(r"\w+", annotation)
    return "int" in words and "float" in words


def _number(value: int | float, exact: bool) -> int | float | str:
    if not math.isfinite(value):
        return str(value)
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if (whole and not exact) or isinstance(value, int) else float(value)
