"""The axes of a study, and the runs that they define."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fl_lightning.config.files import find
from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.names import class_name

FIXED = ("run", "seed", "round", "metric", "value")
"""Columns of every table; between the first two is one for each axis of the study."""

SHORT = {
    "strategy": "federation.strategy",
    "route": "federation.route",
    "partition": "data.partitioner",
    "loss": "model.init_args.loss",
    "network": "model.init_args.network",
    "learning_rate": "model.init_args.optimizer.init_args.lr",
    "mu": "federation.local.proximal_mu",
    "clients_per_round": "federation.clients_per_round",
    "local_epochs": "federation.local.max_epochs",
}
"""Short names of settings that studies often vary; any other setting has its full name."""

_HOW = (
    "An axis is a list of values of one setting (strategy: [FedAvg, AdaFed]), of configuration files, or names with their "
    "settings (AdaFed: {federation.strategy: AdaFed})."
)


@dataclass(frozen=True)
class Choice:
    """Hold one value of an axis.

    Attributes:
        name: name in tables and figures.
        files: configuration files on top of the base.
        settings: values by the settings' full names.
    """

    name: str
    files: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Axis:
    """Hold an axis: the choices that a study varies.

    Attributes:
        name: name in tables and figures.
        choices: choices of the axis, at least one.
        setting: setting that the choices are values of; None if they are files or several settings.
    """

    name: str
    choices: tuple[Choice, ...]
    setting: str | None = None

    @property
    def is_numeric(self) -> bool:
        """Whether the choices are numbers, of which a study may choose the best."""
        values = [value for choice in self.choices for _, value in choice.settings]
        return self.setting is not None and all(isinstance(x, int | float) and not isinstance(x, bool) for x in values)


@dataclass(frozen=True)
class Run:
    """Describe one run of a study.

    Attributes:
        setting: names of its choices, one for each axis.
        seed: seed of the run.
        name: name of its folder, and in W&B.
        files: configuration files; later ones override earlier ones.
        settings: values by the settings' full names; later ones override earlier ones.
    """

    setting: tuple[str, ...]
    seed: int
    name: str
    files: tuple[str, ...]
    settings: tuple[tuple[str, Any], ...]


def read_axes(over: Mapping[str, Any]) -> list[Axis]:
    """Parse the axes of a study.

    Raises:
        ConfigurationError: if an axis has no choices, a reserved name or another form.
    """
    axes = [_axis(name, values) for name, values in over.items()]
    for axis in axes:
        if axis.name in FIXED:
            raise ConfigurationError(
                f"'over.{axis.name}' cannot be an axis, because '{axis.name}' is a column of every run table. Rename it."
            )
        names = [choice.name for choice in axis.choices]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not names:
            what = f"has '{twice[0]}' more than once" if twice else "has no choices"
            raise ConfigurationError(
                f"'over.{axis.name}' {what}. Give at least one choice, each once, or name the choices: {{a: ..., b: ...}}."
            )
    return axes


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and value.endswith((".yaml", ".yml"))


def _axis(name: str, values: Any) -> Axis:
    setting = SHORT.get(name, name)
    if isinstance(values, Mapping) and "class_path" not in values:
        return Axis(name, tuple(_named(name, setting, str(key), value) for key, value in values.items()))
    if isinstance(values, str):
        values = [_number(part.strip()) for part in values.split(",") if part.strip()]
    values = [values] if isinstance(values, Mapping) else values
    if not isinstance(values, list):
        raise ConfigurationError(f"'over.{name}' must be a list or names with settings, but is {values!r}. {_HOW}")
    others = [value for value in values if not _is_file(value)]
    if others and len(others) < len(values):
        raise ConfigurationError(f"'over.{name}' mixes configuration files with {others[0]!r}. {_HOW}")
    if others:
        return Axis(name, tuple(Choice(text_of(value), (), ((setting, value),)) for value in values), setting)
    return Axis(name, tuple(Choice(Path(value).stem, (value,)) for value in values))


def _named(axis: str, setting: str, name: str, value: Any) -> Choice:
    """Return a choice with its own name: a file, settings, several of both, or nothing (the base unchanged)."""
    several = isinstance(value, list) and value and all(_is_file(own) or isinstance(own, Mapping) for own in value)
    files: list[str] = []
    settings: list[tuple[str, Any]] = []
    for part in value if several else [] if value is None else [value]:
        if _is_file(part):
            files.append(part)
        elif not isinstance(part, Mapping) or "class_path" in part:
            settings.append((setting, part))
        elif all(isinstance(key, str) for key in part):
            settings += full_names(part)
        else:
            raise ConfigurationError(f"'over.{axis}.{name}' must name settings, but contains {part!r}. {_HOW}")
    return Choice(name, tuple(files), tuple(settings))


def full_names(settings: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return settings by their full names: resolve short names and sections, and keep classes with their settings whole."""
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        name = prefix + (str(key) if prefix else SHORT.get(str(key), str(key)))
        if isinstance(value, Mapping) and value and "class_path" not in value and "init_args" not in value:
            found += full_names(value, f"{name}.")
        else:
            found.append((name, value))
    return found


def _number(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def text_of(value: Any) -> str:
    """Return a short name for a value; for a class, its name and what is set."""
    if isinstance(value, Mapping) and "class_path" in value:
        name = class_name(value)
        settings = ", ".join(f"{key}={text_of(own)}" for key, own in (value.get("init_args") or {}).items())
        return f"{name}({settings})" if settings else name
    # torch.optim.SGD becomes SGD; a file keeps its path.
    return value.rsplit(".", 1)[-1] if isinstance(value, str) and re.fullmatch(r"(\w+\.)+[A-Z]\w*", value) else str(value)


def span(axes: Sequence[Axis], seeds: Sequence[int], base: Sequence[str], common: Mapping[str, Any]) -> list[Run]:
    """Return all runs: every combination of choices with each seed. Seeds vary last, so that seeds of all settings progress.

    Args:
        axes: axes of the study.
        seeds: seeds of the runs.
        base: configuration files of every run, by their paths or names.
        common: settings of every run, by their full names.

    Raises:
        ConfigurationError: if a file does not exist.
    """
    chosen = (file for axis in axes for choice in axis.choices for file in choice.files)
    paths = {name: str(find(name)) for name in (*base, *chosen)}
    runs = []
    for seed, choices in product(seeds, product(*(axis.choices for axis in axes))):
        setting = tuple(choice.name for choice in choices)
        parts = [f"{axis.name}={name}" for axis, name in zip(axes, setting, strict=True)] + [f"seed={seed}"]
        files = tuple(paths[name] for name in (*base, *(file for choice in choices for file in choice.files)))
        settings = (*common.items(), *(pair for choice in choices for pair in choice.settings))
        runs.append(Run(setting, seed, folder_name(parts), files, settings))
    names = [run.name for run in runs]  # two names may be the same folder
    return [replace(run, name=f"{run.name}-{k}") if names.index(run.name) != k else run for k, run in enumerate(runs)]


def folder_name(parts: Sequence[str]) -> str:
    """Return a name that is a valid folder name on every system."""
    return re.sub(r"[^\w.=,+()-]+", "_", ",".join(parts))[:180]
