"""Find the settings that differ between a checkpoint and the run that resumes from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_lightning.clients.training.schedules import RATES
from fl_lightning.core.resume_rule import Kind, kind_of
from fl_lightning.functional.description import BASE, CLASS

_MISSING = "nothing"
_CONFIGURED = ("model.optimizer.", "model.lr_scheduler.")
_DATA = ("data.training_examples", "data.datamodule.clients.")
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
    """Describe the settings that differ, for a message; of those that follow from others, only their number."""
    causes = _causes(found)
    listed = [f"'{change.name}' {_shown(change.before)}, but this run has {_shown(change.now)}" for change in causes[:_LISTED]]
    more = [f"and {len(causes) - _LISTED} more"] if len(causes) > _LISTED else []
    follow = len(found) - len(causes)
    more += (
        [f"and {follow} setting{'s' * (follow > 1)} of the module that follow{'s' * (follow == 1)} from these"]
        if follow
        else []
    )
    return "; ".join([*listed, *more])


def of_clients(
    found: Sequence[Change], before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], kind: Kind
) -> list[Change]:
    """Name the clients whose training data differ in place of the data sets that hold them.

    Args:
        found: the settings that differ.
        before: name, number of training examples and digest of each client in the checkpoint.
        now: those of this run.
        kind: whether a resumed run may have other data.
    """
    pairs = [(one, other) for one, other in zip(before, now, strict=False) if list(one) != list(other) and one[0] == other[0]]
    if not pairs or (kind is not Kind.STAYS and not any(change.name.startswith(_DATA) for change in found)):
        return list(found)
    kept = [change for change in found if not change.name.startswith(_DATA)]
    words = [(one[0], f"{one[1]} examples ({one[2]})", f"{other[1]} examples ({other[2]})") for one, other in pairs]
    return kept + [Change(f"training data of client {name}", old, new, kind) for name, old, new in words]


def _causes(found: Sequence[Change]) -> list[Change]:
    """Leave out what follows from other changes of the module: the same new value, and rates changed by the same factor."""
    causes: list[Change] = []
    for change in sorted(found, key=_rank):
        if not any(_follows(change, cause) for cause in causes):
            causes.append(change)
    kept = [change for change in found if any(change is cause for cause in causes)]
    names = {change.name for change in kept}
    first = {name: name.replace(".initial_lr", ".lr") for name in names}  # as the user typed it
    return [replace(one, name=one.name if first[one.name] in names else first[one.name]) for one in kept]


def _rank(change: Change) -> int:
    """Return a smaller number for what is more likely the cause of other changes: the module's own settings come first."""
    rates = (".max_lr", ".initial_lr", ".lr")
    place = next((number for number, rate in enumerate(rates, 2) if change.name.endswith(rate)), len(rates) + 2)
    return place if change.name.startswith(_CONFIGURED) else change.name.count(".") > 1


def _follows(change: Change, cause: Change) -> bool:
    values = (change.before, change.now, cause.before, cause.now)
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return False
    if not (change.name.startswith("model.") and cause.name.startswith("model.")):
        return False
    if values[:2] == values[2:]:
        return _rank(cause) < _rank(change)
    rate = change.name.rpartition(".")[2] in RATES or change.name.startswith("model.lr_scheduler.")
    same = math.isclose(change.before * cause.now, change.now * cause.before, rel_tol=1e-9)
    return rate and same and _rank(cause) < _rank(change)


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
    return kind_of(node.get(BASE, node[CLASS]), key) or Kind.ON_PURPOSE


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
