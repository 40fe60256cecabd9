"""Keep state outside a module's attributes from leaking from client to client: of classes, closures, defaults and globals.

``Net.seen.append(...)`` changes a list of the class, which all clients of a process share. For each turn, classes, closures and
default arguments get the values of the start of the fit, with the numbers and texts that the client keeps; after the turn, they
get back what they had. Globals are often a user's log, so they are left alone, and a warning names those that change.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from types import CellType, FunctionType
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import nn

from fl_lightning.clients.isolation.attribute_values import copied, equal, is_constant, is_copied, tensors_in
from fl_lightning.clients.isolation.plain_values import PLAIN, is_storable
from fl_lightning.functional.description import is_users

_LARGEST = 32 * 2**20
"""The bytes up to which tensors are copied; what is larger is data rather than state."""
_KEY = "outside the module: "
_ABSENT = object()


@dataclass(frozen=True)
class _Place:
    """A place outside the module that holds a value, with the value at the start of the fit."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    beginning: Any = field(compare=False)


class OutsideState:
    """Swap what a module's code keeps outside its attributes, for each turn of a client.

    Args:
        module: the clients' module, at the start of the fit.
    """

    def __init__(self, module: nn.Module) -> None:
        self._owner = type(module).__name__
        self._classes = list(_classes_of(module))
        self._names: dict[type, tuple[str, ...]] = {}  # of each class, before a turn
        own, methods = list(_enclosed(_functions_of(module))), list(_enclosed(_methods_of(self._classes)))
        found = [*_in_classes(self._classes), *chain.from_iterable(map(_closure_of, own))]
        found += chain.from_iterable(map(_defaults_of, [*own, *methods]))
        self._places = _named_apart([place for place in found if _is_small(place.beginning)])
        self._outer: list[tuple[_Place, Any]] = []
        around = {place.name: place.get for method in methods for place in _closure_of(method)}
        self._shared = _Shared(dict(_globals_of([*own, *methods])) | around)
        self._warned: set[str] = set()

    def begin(self, kept: Mapping[str, Any]) -> None:
        """Set the values of the start, and those that the client keeps.

        Args:
            kept: what :meth:`end` returned after the client's last turn, among other values.
        """
        self._leave()  # a turn that failed
        self._names = {kind: tuple(vars(kind)) for kind in self._classes}
        for place in self._places:
            value, now = kept.get(_KEY + place.name, place.beginning), place.get()
            self._outer.append((place, now))
            if not (isinstance(now, PLAIN) and equal(now, value)):
                place.put(copied(value))
        self._shared.begin()

    def end(self) -> dict[str, Any]:
        """Return the numbers and texts that differ from the start, by the names of their places, and undo :meth:`begin`."""
        changed = {place.name: place.get() for place in self._places if not equal(place.get(), place.beginning)}
        kept = {name: value for name, value in changed.items() if isinstance(value, PLAIN) and is_storable(value)}
        new = [(kind, name) for kind, names in self._names.items() for name in _new(kind, names)]
        for kind, name in new:
            delattr(kind, name)
        self._warn([*(changed.keys() - kept.keys()), *(f"{kind.__name__}.{name}" for kind, name in new)])
        self._shared.end(self._owner)
        self._leave()
        return {_KEY + name: value for name, value in kept.items()}

    def _leave(self) -> None:
        for place, value in reversed(self._outer):  # two functions may share a variable, which is then here twice
            if place.get() is not value:
                place.put(value)
        self._outer = []

    def _warn(self, names: list[str]) -> None:
        new = sorted({*names} - self._warned)
        self._warned.update(new)
        if new:
            rank_zero_warn(
                f"Training changed {', '.join(map(repr, new))}, which {self._owner} keeps outside its own attributes. Every "
                "client's turn finds it as it was at the start of the fit. To let each client keep it, store it in an "
                "attribute of the module (self.name = ...), and name that in 'client_state'. Figures that are only collected "
                "belong in self.log, or in a global list."
            )


class _Shared:
    """Notice numbers, texts and containers that methods share with other code, and that the first two turns change."""

    def __init__(self, places: dict[str, Callable[[], Any]]) -> None:
        self._places, self._turns, self._before = places, 2, dict[str, Any]()

    def _values(self) -> dict[str, Any]:
        found = {name: get() for name, get in self._places.items()}
        return {name: value for name, value in found.items() if _is_value(value) and _is_small(value)}

    def begin(self) -> None:
        if self._turns:
            self._before = copied(self._values())

    def end(self, owner: str) -> None:
        if not self._turns:
            return
        self._turns -= 1
        changed = sorted(n for n, value in self._values().items() if not equal(value, self._before.get(n, _ABSENT)))
        for name in changed:
            del self._places[name]
        if changed:
            rank_zero_warn(
                f"Training changed {', '.join(map(repr, changed))}, which all clients of a process share. If it is "
                f"more than a log or a cache, a client's result depends on who trained before it. Keep such state in {owner} "
                "itself: numbers, lists and dictionaries in attributes, networks in parts."
            )


def _named_apart(places: list[_Place]) -> list[_Place]:
    """Number places of one name, such as variables of two closures that one function made: a client keeps both."""
    seen: Counter[str] = Counter()
    found = []
    for place in places:
        seen[place.name] += 1
        number = seen[place.name]
        found.append(place if number == 1 else replace(place, name=f"{place.name} ({number})"))
    return found


def _classes_of(module: nn.Module) -> Iterator[type]:
    """Yield the user's classes of the module, of its parts, and of objects in their attributes, with their bases, each once."""
    kinds: dict[type, None] = {}
    for part in module.modules():
        for value in (part, *vars(part).values()):
            if not isinstance(value, type | FunctionType | Enum):
                kinds[type(value)] = None
    bases = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    return (base for base in bases if is_users(base) and hasattr(base, "__dict__"))


def _in_classes(classes: list[type]) -> Iterator[_Place]:
    for kind in classes:
        for name, value in vars(kind).items():
            if not name.startswith("__") and _is_value(value) and not _is_fixed(value):
                get = functools.partial(lambda kind, name: vars(kind).get(name, _ABSENT), kind, name)
                yield _Place(f"{kind.__name__}.{name}", get, functools.partial(setattr, kind, name), copied(value))


def _closure_of(function: FunctionType) -> Iterator[_Place]:
    """Yield the variables of a function's closure."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = _content(cell)
        if _is_value(value):
            put = functools.partial(setattr, cell, "cell_contents")
            yield _Place(f"{function.__qualname__}.{name}", functools.partial(_content, cell), put, copied(value))


def _defaults_of(function: FunctionType) -> Iterator[_Place]:
    """Yield a function's default arguments that can change in place."""
    given = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(given) :]
    for index, (name, value) in enumerate(zip(names, given, strict=bool(given))):
        if is_copied(value) and not _is_fixed(value):
            get, put = functools.partial(_default, function, index), functools.partial(_set_default, function, index)
            yield _Place(f"{function.__qualname__}({name}=...)", get, put, copied(value))
    keywords = function.__kwdefaults__ or {}
    for name, value in keywords.items():
        if is_copied(value) and not _is_fixed(value):
            get, put = functools.partial(keywords.get, name), functools.partial(keywords.__setitem__, name)
            yield _Place(f"{function.__qualname__}({name}=...)", get, put, copied(value))


def _default(function: FunctionType, index: int) -> Any:
    return (function.__defaults__ or ())[index]


def _set_default(function: FunctionType, index: int, value: Any) -> None:
    defaults = function.__defaults__ or ()
    function.__defaults__ = (*defaults[:index], value, *defaults[index + 1 :])


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return _ABSENT


def _methods_of(classes: list[type]) -> Iterator[FunctionType]:
    for kind in classes:
        for value in vars(kind).values():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                yield function


def _functions_of(module: nn.Module) -> Iterator[FunctionType]:
    for part in module.modules():
        for value in vars(part).values():
            function = getattr(value, "__func__", getattr(value, "func", value))
            if isinstance(function, FunctionType) and is_users(function):
                yield function


def _enclosed(functions: Iterator[FunctionType]) -> Iterator[FunctionType]:
    """Yield functions and those of the user's that they close over, as a decorator does, each once."""
    seen: set[int] = set()
    waiting = list(functions)
    while waiting:
        function = waiting.pop(0)
        if id(function) not in seen:
            seen.add(id(function))
            yield function
            inner = [_content(cell) for cell in function.__closure__ or ()]
            waiting += [value for value in inner if isinstance(value, FunctionType) and is_users(value)]


def _globals_of(functions: list[FunctionType]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the globals that functions read by name, and those that functions of the same file read which they call."""
    seen: set[int] = set()
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        space = function.__globals__
        for name in function.__code__.co_names:
            value = space.get(name, _ABSENT)
            if isinstance(value, FunctionType) and value.__globals__ is space:
                waiting.append(value)
            elif _is_value(value):
                yield f"{space.get('__name__', '')}.{name}", functools.partial(space.get, name)


def _new(kind: type, names: tuple[str, ...]) -> list[str]:
    """Return the values that training has added to a class."""
    if len(vars(kind)) == len(names):
        return []
    return [n for n, v in list(vars(kind).items()) if n not in names and _is_value(v)]


def _is_value(value: Any) -> bool:
    return isinstance(value, PLAIN) or is_copied(value)


def _is_fixed(value: Any) -> bool:
    """Return whether a value of a class or a default argument is a tuple of constants, such as ``client_state``."""
    return isinstance(value, tuple) and is_constant(value)


def _is_small(value: Any) -> bool:
    return sum(tensor.nbytes for tensor in tensors_in(value)) <= _LARGEST and getattr(value, "nbytes", 0) <= _LARGEST
