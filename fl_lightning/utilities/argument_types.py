"""Check the types of constructors' arguments in Python, where no YAML parser has checked them."""

from __future__ import annotations

import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence, Sized
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

import fl_lightning
from fl_lightning.errors import ConfigurationError, nearest

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    list: "a list",
    tuple: "a list",
    Sequence: "a list",
    dict: "a dictionary",
    Mapping: "a dictionary",
    Callable: "a function",
    type: "a class",
    types.NoneType: "None",
}
_PLURAL: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts", list: "lists", dict: "dictionaries"}
_NUMBERS: dict[type, type] = {int: Integral, float: Real}
Class = TypeVar("Class", bound=type)


class ChecksTypes:
    """Check the arguments of the package's subclasses against the types in their constructors' signatures.

    Attributes:
        checked_elsewhere: the arguments for which the constructor has a message of its own.
        may_be_infinite: the arguments that need not be finite numbers.
        renamed: what former arguments are now, in words.
    """

    checked_elsewhere: tuple[str, ...] = ()
    may_be_infinite: tuple[str, ...] = ()
    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let the constructor of a class of this package check its arguments; others may annotate as they like."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("fl_lightning."):
            checks_types(cls)


def checks_types(cls: Class) -> Class:
    """Let a class check the types of its constructor's arguments, as :class:`ChecksTypes` does for its subclasses."""
    build = vars(cls).get("__init__")
    if build is None:
        return cls
    signature = inspect.signature(build)

    @functools.wraps(build)
    def checking(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind_partial(self, *args, **kwargs)
        except TypeError:
            renamed: Mapping[str, str] = getattr(cls, "renamed", {})
            for name in kwargs.keys() & renamed.keys():
                raise ConfigurationError(f"{cls.__name__}: '{name}' is now {renamed[name]}.") from None
            build(self, *args, **kwargs)  # Python names a wrong argument better
            return
        given = bound.arguments
        for name, value in given.items():
            given[name] = value.item() if isinstance(value, np.generic) else value
        wanted = {name: kind for name, kind in _hints(build).items() if name not in getattr(self, "checked_elsewhere", ())}
        _refuse_misfits(type(self).__name__, given, wanted, False)
        build(*bound.args, **bound.kwargs)
        finite = {name: value for name, value in given.items() if name not in getattr(self, "may_be_infinite", ())}
        _refuse_misfits(type(self).__name__, finite, wanted, True)  # after the constructor's own messages

    cls.__init__ = checking  # type: ignore[misc]
    return cls


def _refuse_misfits(owner: str, given: Mapping[str, Any], wanted: Mapping[str, Any], strict: bool) -> None:
    for name, value in given.items():
        huge = isinstance(value, int) and abs(value) >= 2**63 and not name.endswith("seed")
        if name in wanted and (huge or not fits(value, wanted[name], strict)):
            allowed = in_words(wanted[name], _WORDS | ({float: "a finite number"} if strict else {}))
            hint = " Write a smaller one." if huge else _hint(value, wanted[name])
            raise ConfigurationError(f"{owner}: '{name}' must be {allowed}, but is {_shown(value)}.{hint}")


@functools.cache
def _hints(build: Callable[..., None]) -> dict[str, Any]:
    try:
        return get_type_hints(build, include_extras=True)
    except (NameError, TypeError):  # a type that only type checkers import
        return {}


def fits(value: Any, wanted: Any, strict: bool = False) -> bool:
    """Return whether a value has a type; true where that is not certain. Numbers of NumPy and paths fit as well.

    Args:
        value: the value.
        wanted: the type.
        strict: whether words must be among those that the type lists, and numbers finite.
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return fits(value, inner[0], strict)
    if origin in (Union, types.UnionType):
        return any(fits(value, one, strict) for one in inner)
    if origin is None and isinstance(value, type) and inspect.isclass(wanted) and issubclass(value, wanted):
        return False  # the class instead of an object of it
    if origin is Literal:
        return not strict or any(type(value) is type(one) and value == one for one in inner)
    kind = origin or wanted
    if kind is Callable or not inspect.isclass(kind) or kind is object:
        return kind is not Callable or callable(value)
    if kind in (int, float):
        finite = not strict or not isinstance(value, Real) or math.isfinite(value)
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool) and finite
    if kind is str:
        return isinstance(value, str | os.PathLike) and value != ""
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping) and (len(inner) != 2 or all(fits(one, inner[1], strict) for one in value.values()))
    if kind in (list, tuple, Sequence):
        return _fits_sequence(value, inner, strict)
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol
        return True


def _fits_sequence(value: Any, inner: tuple[Any, ...], strict: bool) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sized) or getattr(value, "ndim", 1) == 0:
        return False
    kinds = inner[:1] * len(value) if len(inner) == 1 or ... in inner else inner
    return not isinstance(value, list | tuple) or all(map(fits, value, kinds, [strict] * len(value)))


def in_words(wanted: Any, words: Mapping[Any, str] = _WORDS) -> str:
    """Describe a type to users, e.g. ``a whole number or None``.

    Args:
        wanted: the type.
        words: the descriptions of Python's own types.
    """
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        return in_words(inner[0], words)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(one, words) for one in inner if one is not int or float not in inner))
    kind = origin or wanted
    if kind in (list, tuple, Sequence) and len(inner) == 1 and inspect.isclass(item := get_origin(inner[0]) or inner[0]):
        return f"a list of {_PLURAL.get(item, f'{item.__name__} objects')}"
    if kind in (dict, Mapping) and len(inner) == 2 and (item := get_origin(inner[1]) or inner[1]) in _PLURAL:
        return f"a dictionary of {_PLURAL[item]}"
    return words.get(kind) or _with_article(getattr(kind, "__name__", str(kind)))


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str) and not value:
        return "empty"
    text, kind = repr(value), _with_article(type(value).__name__)
    return kind if text.startswith("<") or len(text) > 80 else f"{text} ({kind})"


def _hint(value: Any, wanted: Any) -> str:
    """Return what to write instead, if that can be guessed."""
    options = [wanted] if get_origin(wanted) not in (Union, types.UnionType) else list(get_args(wanted))
    items = [one for option in options if get_origin(option) is list for one in get_args(option)]
    if isinstance(value, float) and value.is_integer() and int in options:
        return f" Write {int(value)}."
    if any(fits(value, one) for one in items):
        return " Put it in a list."
    for kind in filter(inspect.isclass, (*options, *items)):
        written = _written(value, kind)
        if written:
            return f" Write [{written}]." if kind in items else f" Write {written}."
    return ""


def _written(value: Any, kind: type) -> str:
    """Return what to write for an object of a class, if a value looks like it; empty if not."""
    if isinstance(value, type) and issubclass(value, kind):
        return f"{value.__name__}()"
    if not kind.__module__.startswith("fl_lightning"):
        return ""
    if isinstance(value, Mapping):
        return f"{kind.__name__}({', '.join(f'{name}={one!r}' for name, one in value.items())})"
    public = ((name, getattr(fl_lightning, name)) for name in fl_lightning.__all__)
    known = [name for name, one in public if isinstance(one, type) and issubclass(one, kind) and not inspect.isabstract(one)]
    if isinstance(value, str):
        alike = [name for name in known if name.lower().startswith(value.lower())] or nearest(value, known)
        known = alike or known
    return f"{known[0]}(...)" if len(known) == 1 or (known and isinstance(value, str)) else ""
