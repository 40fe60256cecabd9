"""The set-up of a study's runs: what all have in common, what differs, and which of their figures can be compared.

What is known of a run is read from its configuration and its folder, and stands in ``study.json`` beside the table.
"""

from __future__ import annotations

import functools
import json
import pydoc
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.functional.digest import digest
from fl_lightning.functional.showing import defaults_of
from fl_lightning.reporting.run_facts import SELECTION, TEST_SET, read_run_facts
from fl_lightning.studies.grid import text_of
from fl_lightning.studies.names import SETTINGS, class_name, partition_in_words, readable, setting_in_words
from fl_lightning.studies.page import Table

if TYPE_CHECKING:
    from fl_lightning.studies.run_table import RunTable

METRIC = "val_accuracy"
"""The metric by which runs are compared if neither their study nor their best checkpoint names one."""
CENTRALIZED, LOCAL_ONLY, LAST_CLIENT = "centralized", "local only", "last client"
_NOT_CONTENT = ("batch_size", "eval_batch_size", "num_workers", "seed", "root", "data_dir", "download", "pin_memory")
"""Settings of a datamodule that do not change which examples its validation set has for a given seed."""
_CODE = "# fl_lightning=="
_OPEN = ("model", "data.datamodule")
"""Classes whose arguments are settings of their own."""
_LEFT_OUT = (
    "config seed_everything federation.seed ckpt_path weights_only trainer.default_root_dir trainer.logger trainer.callbacks "
    "trainer.enable_ config_version federation_report. keep_freed_memory data.datamodule.seed data.datamodule.root "
    "data.datamodule.num_workers"
)
"""Beginnings of settings that change no result, or are named elsewhere."""
_ONLY_WHERE_SET = {"federation.route", "federation.local.proximal_mu", "model.lr_scheduler"}
_LONGEST_NAME, _LONGEST = 60, 200
_UNKNOWN = object()


# ---------------------------------------------------------------- what is known of a run


def facts(config: Mapping[str, Any], measured: tuple[str, str] | None = None) -> dict[str, str]:
    """Return by kind what a run's configuration says of its figures.

    Args:
        config: its whole configuration.
        measured: the metric by which runs are compared and its mode, if not those of the best checkpoint.

    Returns:
        ``partition`` and ``training``, the share of its examples that a client trains on; ``server_set`` and ``client_set``, on
        which metrics are measured; ``reference``, which baseline the run is; and another ``metric`` than accuracy, with its
        ``mode``.
    """
    data, federation, best = config["data"], config["federation"], config["best_checkpoint"]
    partition, limit = partition_in_words(data["partitioner"]), config["trainer"]["limit_val_batches"]
    held = data["client_validation"] + data["client_test"] + data["public_share"]
    parts = f"the clients' own test parts ({100 * data['client_test']:g} % each; {partition})"
    server_set = f"{parts}, together" if data["server_set"] == "clients" else f"the validation set of {_datamodule(data)}"
    server_set += f", limited to {limit} batches" if limit not in (None, 1.0) and limit > 0 else ""
    if federation["enabled"] and federation["personal"]:
        server_set = f"{parts}, each with its client's complete model"
    kinds = {"LocalOnly": LOCAL_ONLY, "LastClient": LAST_CLIENT}
    used = [kinds.get(class_name(federation[part])) for part in ("route", "strategy") if federation[part]]
    metric, mode = measured or (best["monitor"], best["mode"])
    found = {
        "partition": partition,
        "training": f"{100 * (1 - held):g} %",
        "client_set": parts if data["client_test"] else None,
        **({"metric": metric, "mode": mode} if metric != METRIC else {}),
        "server_set": server_set,
        "reference": next(filter(None, used), None) if federation["enabled"] else CENTRALIZED,
    }
    return {kind: text for kind, text in found.items() if text}


def code_of(folder: Path) -> dict[str, str]:
    """Return the code that a run ran with as ``code``, from the first line of its ``config.yaml``, if it has one."""
    path = folder / "config.yaml"
    first = path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else ""
    return {"code": first.removeprefix(_CODE)} if first.startswith(_CODE) else {}


def _datamodule(data: Mapping[str, Any]) -> str:
    if not data["datamodule"]:
        return "the clients' datamodules"
    given = (data["datamodule"].get("init_args") or {}).items()
    text = ", ".join(f"{key} {x}" for key, x in given if key not in _NOT_CONTENT and x not in (None, False))
    if len(text) > _LONGEST_NAME:
        text = f"settings {digest(text)[:8]}"
    return class_name(data["datamodule"]) + (f" ({text})" if text else "")


def named_settings(configs: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> set[str]:
    """Return the settings that a report names: some always, and all that are not at their defaults in some run.

    Args:
        configs: the runs' whole configurations.
        defaults: the configuration of a run that sets nothing.
    """
    usual, left_out = dict(_leaves(defaults)), tuple(_LEFT_OUT.split())
    return {
        name
        for config in configs
        for name, text in _leaves(config)
        if not name.startswith(left_out) and (usual.get(name) != text or name in set(SETTINGS) - _ONLY_WHERE_SET)
    }


def set_up(config: Mapping[str, Any], names: Collection[str], folder: Path) -> dict[str, Any]:
    """Return a run's ``settings`` by name, and its ``selection``, the set by which the server chooses, if that is known.

    Args:
        config: the run's whole configuration.
        names: the settings to name.
        folder: the run's folder, whose ``run.json`` holds what only the run itself knows.
    """
    shown = {name: text for name, text in _leaves(config) if name in names and text not in ("", "None")}
    if shown.get("federation.clients_per_round") == "1.0":
        shown["federation.clients_per_round"] = "all"
    known = read_run_facts(folder)
    own = {SELECTION: known.pop(SELECTION)} if SELECTION in known else {}
    return {**own, "settings": shown | known}


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
        return defaults_of(kind)
    except (AttributeError, TypeError, ValueError):  # a function, or what Python cannot inspect
        return {}


# ---------------------------------------------------------------- what a report says of it


def codes(table: RunTable) -> Counter[str]:
    """Return the number of runs of a table by the code that they ran with, as far as it is known."""
    return Counter(sorted(own["code"] for own in table.facts.values() if "code" in own))


def on_test_set(facts_of_runs: Collection[Mapping[str, Any]]) -> bool:
    """Return whether the server of every run has validated on the test set, as far as that is known."""
    return {own.get(SELECTION) for own in facts_of_runs} == {TEST_SET}


def code_in_words(code: Mapping[str, int]) -> str:
    """Return which code the runs ran with."""
    return "fl_lightning " + "; ".join(f"{name}, {runs} run{'s' * (runs != 1)}" for name, runs in code.items())


def common_table(settings: Mapping[str, str], seeds: str, code: Mapping[str, int]) -> Table:
    """Tabulate the settings that all runs share, their seeds and their code."""
    rows = [(setting_in_words(name), settings[name]) for name in in_order(settings)]
    rows += [("seeds", seeds), *([("code", code_in_words(code))] if code else [])]
    return Table("Set-up", ("setting", "value"), rows, "From the settings of the runs; what is not named has its default.")


def in_order(names: Iterable[str]) -> list[str]:
    """Return settings in the order in which reports name them."""
    given = dict.fromkeys(names)
    return [*(name for name in SETTINGS if name in given), *sorted(given.keys() - set(SETTINGS))]


def set_up_tables(table: RunTable) -> Iterator[Table]:
    """Yield the settings that all runs share, and for each axis those that differ along it; nothing for tables without them."""
    import pandas as pd  # the page of a single run does without

    values = pd.DataFrame([table.facts_of(setting).get("settings", {}) for setting in table.settings])
    values = values[in_order(values.columns)].fillna("-")
    if values.empty:
        return
    left = [name for name in values if values[name].nunique() > 1]
    seeds = sorted({tuple(table.seeds(setting)) for setting in table.settings})
    common = {name: values[name][0] for name in values if name not in left}
    yield common_table(common, "; ".join(", ".join(map(str, own)) for own in seeds), codes(table))
    for choices, axis in zip(zip(*table.settings, strict=True), map(setting_in_words, table.axes), strict=True):
        by_choice = values[left].groupby(list(choices), sort=False)
        along = [name for name in left if by_choice[name].nunique().max() == 1]
        left = [name for name in left if name not in along]
        if along:
            rows = [(readable(choice), *own) for choice, *own in by_choice[along].first().itertuples()]
            yield Table(f"What differs by {axis}", (axis, *map(setting_in_words, along)), rows)
    if left:
        rows = [(*map(readable, setting), *own) for setting, own in zip(table.settings, values[left].to_numpy(), strict=True)]
        yield Table("What else differs", tuple(map(setting_in_words, (*table.axes, *left))), rows)
