"""Find the settings that differ between a checkpoint and the run that resumes from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_lightning.functional.description import BASE, CLASS
from fl_lightning.server.resume.table import Kind, kind_of

_MISSING = "nothing"
_LISTED, _SHOWN = 12, 160
"""The largest numbers of changes in a message, and of characters in a value."""


@dataclass(frozen=True)
class Change:
    """Describe a setting that differs.

    Attributes:
        name: the name of the setting, as the user types it.
        before: the value in the checkpoint.
        now: the value in this run.
        kind: whether a resumed run may change the setting.
    """

    name: str
    before: Any
    now: Any
    kind: Kind


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return the differences between the settings of two runs.

    Objects of the same class are compared by the settings that both have, because another version of torch may add some.
    """
    found: list[Change] = []
    for name in now:
        if name in before:
            found += _differences(name, before[name], now[name], Kind.ON_PURPOSE)
    return [change for change in found if change.kind is not Kind.FREE]


def in_words(found: Sequence[Change]) -> str:
    """Describe the settings that differ, for a message."""
    listed = [f"'{change.name}' {_shown(change.before)}, but this run has {_shown(change.now)}" for change in found[:_LISTED]]
    return "; ".join([*listed, *([f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else [])])


def _differences(name: str, before: Any, now: Any, kind: Kind) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.get(CLASS) == now.get(CLASS):
        keys = [key for key in now if key in before] if CLASS in now else [*now, *(key for key in before if key not in now)]
        for key in keys:
            values = before.get(key, _MISSING), now.get(key, _MISSING)
            yield from _differences(f"{name}.{key}", *values, _kind_in(now, key, kind))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for position, values in enumerate(zip(before, now, strict=True)):
            yield from _differences(f"{name}.{position}", *values, kind)
    elif before != now or type(before) is not type(now):
        yield Change(name, before, now, kind)


def _kind_in(node: Mapping[str, Any], key: str, kind: Kind) -> Kind:
    """Return whether a resumed run may change a setting of an object; lists and dictionaries inherit the kind."""
    if CLASS not in node:
        return kind
    return kind_of(_short(node.get(BASE, node[CLASS])), key) or Kind.ON_PURPOSE


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(value: Any) -> str:
    text = repr(_named(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _named(value: Any) -> Any:
    """Replace objects by the names of their classes."""
    if isinstance(value, Mapping):
        return _short(value[CLASS]) if CLASS in value else {key: _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list) else value
