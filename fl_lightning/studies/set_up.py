"""The set-up of a study: what all runs have in common, and what differs from row to row, from the settings of the runs.

A run's settings are facts of the table, ``study/setting <name>/<value>``, so that the set-up is that of the runs themselves.
"""

from __future__ import annotations

import functools
import inspect
import json
import pydoc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fl_lightning.reporting.run_facts import read_run_facts
from fl_lightning.studies.facts import codes, facts_of
from fl_lightning.studies.layout import Cell, Table
from fl_lightning.studies.names import partition_in_words, readable
from fl_lightning.studies.run_table import RunTable, Setting

SETTING = "setting "
_OPEN = ("model", "data.datamodule")
"""Classes whose arguments are settings of their own."""
_ALWAYS = {
    "data": "data",
    "examples": "examples",
    "validated on": "validated on",
    "data.datamodule": "data module",
    "data.datamodule.batch_size": "batch size",
    "data.partitioner": "partition",
    "model": "module",
    "model.network": "network",
    "parameters": "parameters",
    "model.loss": "loss",
    "model.optimizer": "optimizer",
    "model.lr_scheduler": "schedule",
    "trainer.max_epochs": "rounds",
    "federation.local.max_epochs": "local epochs",
    "federation.clients_per_round": "clients per round",
    "federation.strategy": "strategy",
    "federation.route": "route",
    "federation.local.proximal_mu": "proximal mu",
    "precision": "precision",
    "device": "device",
    "versions": "versions",
}
"""Settings that a report names also where they have their defaults, in this order, with their names for readers."""
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
_ONLY_WHERE_SET = ("federation.route", "federation.local.proximal_mu", "model.lr_scheduler")
_LONGEST = 200
_UNKNOWN = object()


def set_up(config: Any, defaults: Any, folder: Path) -> Iterator[str]:
    """Yield the facts of a run's settings: those that a report always names, and all that are not at their defaults.

    Args:
        config: the run's whole configuration.
        defaults: the configuration of a run that sets nothing.
        folder: the run's folder, whose ``run.json`` holds what only the run itself knows.
    """
    own, usual = dict(_leaves(config.as_dict())), dict(_leaves(defaults.as_dict()))
    shown = {
        name: text
        for name, text in own.items()
        if not name.startswith(_LEFT_OUT)
        and (usual.get(name) != text or (name in _ALWAYS and name not in _ONLY_WHERE_SET))
        and text not in ("", "None")
    }
    if "federation.clients_per_round" in shown and shown["federation.clients_per_round"] == "1.0":
        shown["federation.clients_per_round"] = "all"
    shown |= read_run_facts(folder)
    yield from (f"study/{SETTING}{name}/{text}" for name, text in shown.items())


def set_up_tables(table: RunTable) -> Iterator[Table]:
    """Yield the settings that all runs share, and for each axis those that differ along it; nothing for tables without them."""
    known = {
        setting: {kind.removeprefix(SETTING): text for kind, text in facts.items() if kind.startswith(SETTING)}
        for setting, facts in facts_of(table).items()
    }
    given = dict.fromkeys(name for own in known.values() for name in own)
    names = [*(name for name in _ALWAYS if name in given), *(name for name in given if name not in _ALWAYS)]
    if not names:
        return
    values = {name: {setting: known[setting].get(name, "-") for setting in table.settings} for name in names}
    common = [name for name in names if len(set(values[name].values())) == 1]
    rows = [(_words(name), next(iter(values[name].values()))) for name in common]
    rows += [("seeds", _seeds(table)), *([("code", _code(table))] if codes(table) else [])]
    note = "From the settings of the runs; what is not named has its default."
    yield Table("Set-up", ("setting", "value"), tuple((Cell(name), Cell(text)) for name, text in rows), note)
    left = [name for name in names if name not in common]
    for place, axis in enumerate(table.axes):
        along = [name for name in left if _follows(values[name], place)]
        left = [name for name in left if name not in along]
        if along:
            yield _differing(axis, place, along, values)
    if left:
        heads = (*table.axes, *map(_words, left))
        body = tuple(
            (*(Cell(readable(choice)) for choice in setting), *(Cell(values[name][setting]) for name in left))
            for setting in table.settings
        )
        yield Table("What else differs", heads, body)


def _differing(axis: str, place: int, names: list[str], values: Mapping[str, Mapping[Setting, str]]) -> Table:
    first = {setting[place]: setting for setting in reversed(list(values[names[0]]))}
    choices = dict.fromkeys(setting[place] for setting in values[names[0]])
    body = tuple((Cell(readable(c)), *(Cell(values[name][first[c]]) for name in names)) for c in choices)
    return Table(f"What differs by {axis}", (axis, *map(_words, names)), body)


def _follows(values: Mapping[Setting, str], place: int) -> bool:
    """Return whether a setting depends on the choice on one axis alone."""
    by_choice: dict[str, set[str]] = {}
    for setting, text in values.items():
        by_choice.setdefault(setting[place], set()).add(text)
    return all(len(texts) == 1 for texts in by_choice.values())


def _words(name: str) -> str:
    return _ALWAYS.get(name, name.removeprefix("federation.").removeprefix("local."))


def _seeds(table: RunTable) -> str:
    seeds = {tuple(table.seeds(setting)) for setting in table.settings}
    return "; ".join(", ".join(map(str, own)) for own in sorted(seeds))


def _code(table: RunTable) -> str:
    return "; ".join(f"fl_lightning {name}, {runs} run{'s' * (runs != 1)}" for name, runs in codes(table).items())


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "class_path" in value and name in _OPEN:
            yield name, _class_name(value)
            usual, given = _defaults(value["class_path"]), value.get("init_args") or {}
            shown = {k: x for k, x in given.items() if f"{name}.{k}" in _ALWAYS or usual.get(k, _UNKNOWN) != x}
            yield from _leaves(shown, f"{name}.")
        elif name == "data.partitioner":
            yield name, partition_in_words(value)
        elif isinstance(value, Mapping) and "class_path" not in value and value and all(isinstance(k, str) for k in value):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, _text(value)[:_LONGEST]


def _text(value: Any) -> str:
    """Return a value in short; of a class, its name and the arguments that are not at their defaults."""
    if isinstance(value, Mapping) and "class_path" in value:
        usual = _defaults(value["class_path"])
        given = {
            k: x
            for k, x in (value.get("init_args") or {}).items()
            if k == "lr" or (k != "seed" and usual.get(k, _UNKNOWN) != x)
        }
        inner = ", ".join(f"{key}={_text(x)}" for key, x in given.items())
        return f"{_class_name(value)}({inner})" if inner else _class_name(value)
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        return ", ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)


def _class_name(value: Mapping[str, Any]) -> str:
    return str(value["class_path"]).rsplit(".", 1)[-1]


@functools.cache
def _defaults(path: str) -> dict[str, Any]:
    try:
        arguments = inspect.signature(pydoc.locate(path)).parameters  # type: ignore[arg-type]  # None is a TypeError
    except (TypeError, ValueError):
        return {}
    return {name: argument.default for name, argument in arguments.items() if argument.default is not argument.empty}
