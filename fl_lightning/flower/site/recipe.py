"""Build objects from values that came over the network, without a parser that imports what a value names.

A value is plain (None, bool, int, float, str, lists and mappings of these) or ``{"class_path": ..., "init_args": {...}}``.
A class is imported only if its dotted path is on an exact list. Functions, paths and URLs are never accepted.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass
from functools import partial
from importlib import import_module
from typing import Any

from fl_lightning.errors import ConfigurationError

_LOCATION = re.compile(r"(?:^|_)(?:weights|path|paths|root|dir|dirpath|folder|file|filename|url|checkpoint|ckpt)$")
_PLAIN_TEXT = re.compile(r"[\w .,:=+%()-]{0,200}")
_DEPTH = 30


class RefusedError(ConfigurationError):
    """A site does not accept what a server sent."""


def _is_class(value: Any) -> bool:
    return isinstance(value, Mapping) and "class_path" in value


class Recipe:
    """Build objects from values.

    Args:
        allowed: the dotted paths of the classes that may be imported.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def check(self, value: Any, where: str, depth: int = 0) -> None:
        """Refuse values of other kinds, classes that are not on the list, and text that could name a place.

        Nothing is imported.

        Raises:
            RefusedError: naming the setting.
        """
        if depth > _DEPTH:
            raise RefusedError(f"'{where[:80]}' is nested more than {_DEPTH} times.")
        if _is_class(value):
            path, extra = value["class_path"], set(value) - {"class_path", "init_args"}
            if extra:
                raise RefusedError(
                    f"'{where}' has the keys {sorted(map(str, extra))[:3]}. A class has 'class_path' and 'init_args'."
                )
            if not isinstance(path, str) or path not in self._allowed:
                raise RefusedError(
                    f"'{where}' is the class '{str(path)[:100]}', which this site does not accept. If you trust it, add this "
                    "exact path to 'policy.classes' of the site's data.yaml."
                )
            value = value.get("init_args") or {}
            if not isinstance(value, Mapping):
                raise RefusedError(f"'{where}.init_args' must be a mapping.")
        if isinstance(value, Mapping):
            for name, item in value.items():
                if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
                    raise RefusedError(f"'{where}' has the key {str(name)[:40]!r}. Use names of arguments.")
                if _LOCATION.search(name) and item is not None:
                    raise RefusedError(f"'{where}.{name}' names a place, which a server must not choose. Set it to null.")
                self.check(item, f"{where}.{name}", depth + 1)
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                self.check(item, f"{where}[{number}]", depth + 1)
        elif isinstance(value, str):
            if not _PLAIN_TEXT.fullmatch(value):
                raise RefusedError(f"'{where}' is text that could name a place or contain code. Use a plain word.")
        elif value is not None and not isinstance(value, bool | int | float):
            raise RefusedError(f"'{where}' is a {type(value).__name__}. Use plain values.")

    def build(self, value: Any, hint: Any, where: str) -> Any:
        """Return the object that a value describes; call :meth:`check` for the whole value first.

        Args:
            value: the value.
            hint: the type that the place needs.
            where: the name of the setting, for messages.

        Raises:
            RefusedError: if the value has another type.
        """
        kinds = _alternatives(hint)
        if value is None or hint is Any or hint is inspect.Parameter.empty:
            return self._untyped(value, where)
        if _is_class(value):
            return self._object(value, kinds, where)
        for kind in kinds:
            if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
                return self._call(kind, value, where)
        for kind in kinds:
            origin = typing.get_origin(kind)
            if origin in (list, tuple, Collection, typing.Sequence) and isinstance(value, list | tuple):
                inner = [a for a in typing.get_args(kind) if a is not Ellipsis] or [Any]
                items = [self.build(v, inner[min(k, len(inner) - 1)], f"{where}[{k}]") for k, v in enumerate(value)]
                return tuple(items) if origin is tuple else items
            if origin is typing.Literal and value in typing.get_args(kind):
                return value
        if any(typing.get_origin(kind) is collections_callable or kind is Callable for kind in kinds) and not any(
            isinstance(kind, type) and isinstance(value, kind) for kind in kinds
        ):
            raise RefusedError(
                f"'{where}' needs a class with 'class_path', but is {str(value)[:60]!r}. A function is not accepted."
            )
        if float in kinds and isinstance(value, int) and not isinstance(value, bool) and int not in kinds:
            return float(value)
        return self._untyped(value, where)

    def _untyped(self, value: Any, where: str) -> Any:
        if _is_class(value):
            return self._object(value, [], where)
        if isinstance(value, list | tuple):
            return [self._untyped(item, f"{where}[{number}]") for number, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {name: self._untyped(item, f"{where}.{name}") for name, item in value.items()}
        return value

    def _object(self, value: Mapping[str, Any], kinds: Collection[Any], where: str) -> Any:
        """Return an object of a class on the list, or a function that creates it from further arguments."""
        path = value["class_path"]
        if path not in self._allowed:
            raise RefusedError(f"'{where}' is the class '{str(path)[:100]}', which this site does not accept.")
        module, _, name = path.rpartition(".")
        found = getattr(import_module(module), name)
        if not isinstance(found, type):
            raise RefusedError(f"'{where}' is '{path}', which is not a class.")
        arguments = value.get("init_args") or {}
        wanted = [kind for kind in kinds if isinstance(kind, type)]
        if wanted and issubclass(found, tuple(wanted)):
            return self._call(found, arguments, where)
        made = [typing.get_args(kind)[-1] for kind in kinds if typing.get_origin(kind) is collections_callable]
        creates = [kind for one in made for kind in _alternatives(one) if isinstance(kind, type)]
        if creates and issubclass(found, tuple(creates)):
            return partial(found, **self._arguments(found, arguments, where))
        if kinds and (wanted or creates):
            raise RefusedError(f"'{where}' is '{path}', but needs {' or '.join(k.__name__ for k in [*wanted, *creates])}.")
        return self._call(found, arguments, where)

    def _call(self, kind: Any, arguments: Mapping[str, Any], where: str) -> Any:
        built = self._arguments(kind, arguments, where)
        try:
            inspect.signature(kind).bind(**built)
        except TypeError as error:
            raise RefusedError(f"'{where}' does not fit {kind.__name__}: {error}.") from error
        return kind(**built)

    def _arguments(self, kind: Any, arguments: Mapping[str, Any], where: str) -> dict[str, Any]:
        hints = _hints(kind)
        return {name: self.build(item, hints.get(name, Any), f"{where}.{name}") for name, item in arguments.items()}


collections_callable = typing.get_origin(Callable[[], None])


def _alternatives(hint: Any) -> list[Any]:
    """Return the members of a union, or the type itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [kind for member in typing.get_args(hint) for kind in _alternatives(member)]
    return [hint]


def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a constructor's arguments, also those that it passes on to its base classes."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object:
            try:
                found |= typing.get_type_hints(base.__init__)
            except (NameError, TypeError, AttributeError):  # a name that is imported for type checkers only
                continue
    return found
