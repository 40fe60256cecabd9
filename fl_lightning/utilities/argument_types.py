"""Check the types of constructors' arguments in Python, where no YAML parser has checked them."""

from __future__ import annotations

import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence, Sized
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from fl_lightning.errors import ConfigurationError

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "text",
    **dict.fromkeys((list, tuple, Sequence), "a list"),
    **dict.fromkeys((dict, Mapping), "a dictionary"),
    Callable: "a function",
    types.NoneType: "None",
}
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
        given.update({name: value.item() for name, value in given.items() if isinstance(value, np.generic)})
        wanted = {name: kind for name, kind in _hints(build).items() if name not in getattr(self, "checked_elsewhere", ())}
        _refuse_misfits(self, given, wanted, False)
        build(*bound.args, **bound.kwargs)
        _refuse_misfits(self, given, wanted, True)  # after the constructor's own messages

    cls.__init__ = checking  # type: ignore[misc]
    return cls


def _refuse_misfits(owner: Any, given: Mapping[str, Any], wanted: Mapping[str, Any], strict: bool) -> None:
    for name, value in given.items():
        huge = isinstance(value, int) and abs(value) >= 2**63 and not name.endswith("seed")
        finite = strict and name not in getattr(owner, "may_be_infinite", ())
        if name in wanted and (huge or not fits(value, wanted[name], finite)):
            came = f"the class {value.__name__}. Write {value.__name__}()" if isinstance(value, type) else repr(value)
            came = f"of type {type(value).__name__}" if came.startswith("<") or len(came) > 80 else came
            raise ConfigurationError(f"{type(owner).__name__}: '{name}' must be {in_words(wanted[name])}, but is {came}.")


@functools.cache
def _hints(build: Callable[..., None]) -> dict[str, Any]:
    try:
        return get_type_hints(build)
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
    kind = origin or wanted
    if origin in (Union, types.UnionType):
        return any(fits(value, one, strict) for one in inner)
    if origin is Literal:
        return not strict or any(type(value) is type(one) and value == one for one in inner)
    if kind is Callable or not inspect.isclass(kind) or kind is object:
        return kind is not Callable or callable(value)
    if origin is None and isinstance(value, type) and issubclass(value, kind):
        return False  # the class instead of an object of it
    if kind in (int, float):
        finite = not strict or not isinstance(value, Real) or math.isfinite(value)
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool) and finite
    if kind is str:
        return isinstance(value, str | os.PathLike) and value != ""
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping) and (len(inner) != 2 or all(fits(one, inner[1], strict) for one in value.values()))
    if kind in (list, tuple, Sequence):
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sized) or getattr(value, "ndim", 1) == 0:
            return False
        kinds = inner[:1] * len(value) if len(inner) == 1 or ... in inner else inner
        return not isinstance(value, list | tuple) or all(map(fits, value, kinds, [strict] * len(value)))
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol, or Any
        return True


def in_words(wanted: Any) -> str:
    """Describe a type to users, e.g. ``a whole number or None``."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(in_words(one) for one in inner if one is not int or float not in inner))
    name = getattr(origin or wanted, "__name__", str(wanted))
    return _WORDS.get(origin or wanted) or f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
