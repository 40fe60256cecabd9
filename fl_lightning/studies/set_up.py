"""The set-up of a study: what all runs have in common, and what differs from row to row, from the settings of the runs.

A run's settings are facts of the table, ``study/setting <name>/<value>``, so that the set-up is that of the runs themselves.
"""

from __future__ import annotations

import functools
import inspect
import json
import pydoc
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fl_lightning.functional.showing import defaults_of
from fl_lightning.reporting.run_facts import SELECTION, TEST_SET, read_run_facts
from fl_lightning.studies.facts import codes, facts_of
from fl_lightning.studies.grid import text_of
from fl_lightning.studies.layout import Cell, Table
from fl_lightning.studies.names import SETTINGS, as_number, class_name, partition_in_words, readable, setting_in_words
from fl_lightning.studies.run_table import RunTable, Setting

SETTING = "setting "
_OPEN = ("model", "data.datamodule")
"""Classes whose arguments are settings of their own."""
_LEFT_OUT = (
    "config",
    "config_version",
    "seed_everything",
    "federation.seed",
    "ckpt_path",
    "weights_only",
    "trainer.default_root_dir",
    "trainer.logger",
    "trainer.callbacks",
    "trainer.enable_",
    "partition_report.",
    "client_table.",
    "failure_log.",
    "keep_freed_memory",
    "data.datamodule.seed",
    "data.datamodule.root",
    "data.datamodule.num_workers",
)
"""Beginnings of settings that change no result, or are named elsewhere."""
_ONLY_WHERE_SET = {"federation.route", "federation.local.proximal_mu", "model.lr_scheduler"}
_LONGEST = 200
_UNKNOWN = object()


def named_settings(configs: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> set[str]:
    """Return the settings that a report names: some always, and all that are not at their defaults in some run.

    Args:
        configs: the runs' whole configurations.
        defaults: the configuration of a run that sets nothing.
    """
    usual = dict(_leaves(defaults))
    return {
        name
        for config in configs
        for name, text in _leaves(config)
        if not name.startswith(_LEFT_OUT) and (usual.get(name) != text or name in SETTINGS.keys() - _ONLY_WHERE_SET)
    }


def set_up(config: Mapping[str, Any], names: Collection[str], folder: Path) -> Iterator[str]:
    """Yield the facts of a run's settings.

    Args:
        config: the run's whole configuration.
        names: the settings to name.
        folder: the run's folder, whose ``run.json`` holds what only the run itself knows.
    """
    shown = {name: text for name, text in _leaves(config) if name in names and text not in ("", "None")}
    if "federation.clients_per_round" in shown and shown["federation.clients_per_round"] == "1.0":
        shown["federation.clients_per_round"] = "all"
    known = read_run_facts(folder)
    if SELECTION in known:
        yield f"study/{SELECTION}/{known.pop(SELECTION)}"
    shown |= known
    yield from (f"study/{SETTING}{name}/{text}" for name, text in shown.items())


def set_up_tables(table: RunTable) -> Iterator[Table]:
    """Yield the settings that all runs share, and for each axis those that differ along it; nothing for tables without them."""
    known = {
        setting: {kind.removeprefix(SETTING): text for kind, text in facts.items() if kind.startswith(SETTING)}
        for setting, facts in facts_of(table).items()
    }
    given = dict.fromkeys(name for own in known.values() for name in own)
    names = [*(name for name in SETTINGS if name in given), *(name for name in given if name not in SETTINGS)]
    if not names:
        return
    values = {name: {setting: known[setting].get(name, "-") for setting in table.settings} for name in names}
    common = [name for name in names if len(set(values[name].values())) == 1]
    rows = [(setting_in_words(name), next(iter(values[name].values()))) for name in common]
    rows += [("seeds", _seeds(table)), *([("code", _code(table))] if codes(table) else [])]
    note = "From the settings of the runs; what is not named has its default."
    yield Table("Set-up", ("setting", "value"), tuple((Cell(name), Cell(text)) for name, text in rows), note)
    left = [name for name in names if name not in common]
    for place, axis in enumerate(table.axes):
        along = [name for name in left if _follows(values[name], place)]
        left = [name for name in left if name not in along]
        if along and not (len(along) == 1 and _is_named_by_value(values[along[0]], place)):
            yield _differing(axis, place, along, values)
    if left:
        heads = (*map(setting_in_words, table.axes), *map(setting_in_words, left))
        body = tuple(
            (*(Cell(readable(choice)) for choice in setting), *(Cell(values[name][setting]) for name in left))
            for setting in table.settings
        )
        yield Table("What else differs", heads, body)


def on_test_set(table: RunTable) -> bool:
    """Return whether the server of every run has validated on the test set, as far as the table says."""
    return {facts.get(SELECTION) for facts in facts_of(table).values()} == {TEST_SET}


def _differing(axis: str, place: int, names: list[str], values: Mapping[str, Mapping[Setting, str]]) -> Table:
    first = {setting[place]: setting for setting in reversed(list(values[names[0]]))}
    choices = dict.fromkeys(setting[place] for setting in values[names[0]])
    body = tuple((Cell(readable(c)), *(Cell(values[name][first[c]]) for name in names)) for c in choices)
    return Table(f"What differs by {setting_in_words(axis)}", (setting_in_words(axis), *map(setting_in_words, names)), body)


def _follows(values: Mapping[Setting, str], place: int) -> bool:
    """Return whether a setting depends on the choice on one axis alone."""
    by_choice: dict[str, set[str]] = {}
    for setting, text in values.items():
        by_choice.setdefault(setting[place], set()).add(text)
    return all(len(texts) == 1 for texts in by_choice.values())


def _is_named_by_value(values: Mapping[Setting, str], place: int) -> bool:
    """Return whether the choices on an axis are the very values of its setting, so that a table would say nothing."""
    return all(setting[place] == text or as_number(setting[place]) == as_number(text) for setting, text in values.items())


def _seeds(table: RunTable) -> str:
    seeds = {tuple(table.seeds(setting)) for setting in table.settings}
    return "; ".join(", ".join(map(str, own)) for own in sorted(seeds))


def _code(table: RunTable) -> str:
    return "; ".join(f"fl_lightning {name}, {runs} run{'s' * (runs != 1)}" for name, runs in codes(table).items())


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "class_path" in value and name in _OPEN:
            yield name, class_name(value)
            usual, given = _defaults(value["class_path"]), value.get("init_args") or {}
            shown = {k: x for k, x in given.items() if f"{name}.{k}" in SETTINGS or usual.get(k, _UNKNOWN) != x}
            yield from _leaves(shown, f"{name}.")
        elif name == "data.partitioner":
            yield name, partition_in_words(value)
        elif isinstance(value, Mapping) and "class_path" not in value and value and all(isinstance(k, str) for k in value):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, _text(value)[:_LONGEST]


def _text(value: Any) -> str:
    """Return a value in short; of a class, its name and the arguments that are not at their defaults."""
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        return ", ".join(map(_text, value))
    if isinstance(value, list | dict) and "class_path" not in value:
        return json.dumps(value, default=str)
    return text_of(_shortened(value))


def _shortened(value: Any) -> Any:
    """Return a class without the arguments at their defaults and without seeds; a rate is always named."""
    if not (isinstance(value, Mapping) and "class_path" in value):
        return value
    usual = _defaults(value["class_path"])
    given = {k: x for k, x in (value.get("init_args") or {}).items() if k == "lr" or usual.get(k, _UNKNOWN) != x}
    return {**value, "init_args": {key: _shortened(x) for key, x in given.items() if key != "seed"}}


@functools.cache
def _defaults(path: str) -> dict[str, Any]:
    kind: Any = pydoc.locate(path)
    try:
        arguments = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return {}
    found = {name: argument.default for name, argument in arguments.items() if argument.default is not argument.empty}
    return (defaults_of(kind) if isinstance(kind, type) else {}) | found
