"""Show objects in a notebook or a terminal: short texts, tables and bars in HTML. Nothing is read but what they hold."""

from __future__ import annotations

import functools
import html
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from torch import Tensor

from fl_lightning.functional.description import constructor_arguments, own_class

_NOTHING = object()
_DEPTH, _LONGEST, _ENTRIES, _ROWS = 3, 60, 4, 20
_WIDTH, _HEIGHT = 200, 12
_COLOURS = ("4e79a7", "f28e2b", "e15759", "76b7b2", "59a14f", "edc948", "b07aa1", "ff9da7", "9c755f", "bab0ac")


def settings_of(value: Any, depth: int = _DEPTH) -> dict[str, str]:
    """Return the constructor's arguments of an object of this package that are not the defaults, by name, as short texts."""
    held, found, defaults = vars(value), {}, defaults_of(type(value))
    for name in constructor_arguments(type(value)):
        own, default = held.get(name, held.get(f"_{name}", _NOTHING)), defaults.get(name, _NOTHING)
        empty = default is None and isinstance(own, Sequence) and not own
        text = _text(own, depth - 1)
        if own is not _NOTHING and not empty and text != _text(default, depth - 1):
            found[name] = text
    return found


def defaults_of(kind: type) -> dict[str, Any]:
    """Return the defaults of a class's arguments; of an argument without one, a mark."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and (base is kind or base.__module__.startswith("fl_lightning.")):
            found |= {name: own.default for name, own in inspect.signature(vars(base)["__init__"]).parameters.items()}
    if is_dataclass(kind):
        found |= {own.name: own.default_factory() for own in fields(kind) if own.default_factory is not MISSING}
    return found


def short_repr(value: Any, depth: int = _DEPTH) -> str:
    """Return ``Class(argument=text, ...)`` for an object of this package, with the arguments that are not the defaults."""
    given = settings_of(value, depth) if depth > 0 else {}
    return f"{type(value).__name__}({', '.join(f'{name}={text}' for name, text in given.items())})"


def _text(value: Any, depth: int) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    if isinstance(value, functools.partial):
        given = "".join(f", {name}={_text(own, 0)}" for name, own in value.keywords.items())
        return f"partial({_text(value.func, 0)}{given})"
    if isinstance(value, Mapping) and depth >= 0:
        parts = [f"{_text(name, 0)}: {_text(own, depth - 1)}" for name, own in list(value.items())[:_ENTRIES]]
        return f"{{{', '.join(parts)}{', ...' if len(value) > _ENTRIES else ''}}}"
    if isinstance(value, list | tuple) and depth >= 0:
        return f"[{', '.join(_text(own, depth - 1) for own in value[:_ENTRIES])}{', ...' if len(value) > _ENTRIES else ''}]"
    if own_class(type(value)) is type(value) and hasattr(value, "__dict__"):
        return short_repr(value, depth)
    return str(getattr(value, "__qualname__", type(value).__name__))


def settings_table(value: Any) -> str:
    """Return the class and the settings of an object of this package as a table in HTML."""
    rows = "".join(
        f"<tr><td style='text-align:left'>{name}</td><td style='text-align:left'><code>{html.escape(text)}</code></td></tr>"
        for name, text in settings_of(value).items()
    )
    return f"<table><caption>{type(value).__name__}</caption>{rows}</table>"


def client_bars(names: Sequence[str] | None, counts: Tensor) -> str:
    """Return a table of the clients in HTML, each with a bar: as long as its number of examples, and coloured by class.

    Args:
        names: the names of the clients; None shows their numbers.
        counts: the examples of each client by class, int64, shape (K, C); or only in total, shape (K, 1).
    """
    sizes: list[int] = counts.sum(1).tolist()
    rows = []
    for client, (size, own) in enumerate(zip(sizes[:_ROWS], counts[:_ROWS].tolist(), strict=True)):
        name = html.escape(str(client) if names is None else names[client])
        bar = _bar(own, _WIDTH / max(1, *sizes))
        rows.append(f"<tr><td>{name}</td><td>{size:,}</td><td><svg width='{_WIDTH}' height='{_HEIGHT}'>{bar}</svg></td></tr>")
    more = f"<tr><td colspan='3'>... and {len(sizes) - _ROWS:,} more clients</td></tr>" if len(sizes) > _ROWS else ""
    picture = "classes" if counts.shape[1] > 1 else ""
    return f"<table><tr><th>client</th><th>examples</th><th>{picture}</th></tr>{''.join(rows)}{more}</table>"


def _bar(counts: Sequence[int], unit: float) -> str:
    """Return a rectangle for each class next to each other, whose title names it; a single count has no classes."""
    parts, start = [], 0
    for k, count in enumerate(counts):
        title = f"<title>class {k}: {count:,}</title>" if len(counts) > 1 else ""
        place = f"x='{start * unit:.1f}' width='{count * unit:.1f}' height='{_HEIGHT}'"
        parts.append(f"<rect {place} fill='#{_COLOURS[k % len(_COLOURS)]}'>{title}</rect>" if count else "")
        start += count
    return "".join(parts)
