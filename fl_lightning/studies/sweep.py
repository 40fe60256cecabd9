"""A study as a W&B sweep: its configuration, and the files to which it refers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.studies.grid import Axis, Run
from fl_lightning.studies.panels import Measure


def write_sweep(
    folder: Path, name: str, axes: Sequence[Axis], runs: Sequence[Run], text: Callable[[Run], str], measure: Measure
) -> Path:
    """Write ``sweep.yaml``, a grid over the study's runs.

    Axes whose choices are numbers or words become parameters. What W&B cannot vary one by one (the three seeds of a run, files,
    classes with settings) goes into whole configurations, from which the parameter ``config`` chooses.

    Args:
        folder: existing folder for the files.
        name: name of the study.
        axes: axes of the study.
        runs: all runs of the study.
        text: returns the whole configuration of a run, as YAML.
        measure: metric that the sweep optimises.

    Returns:
        The file for ``wandb sweep``.
    """
    plain = [k for k, axis in enumerate(axes) if axis.setting is not None and all(map(_is_plain, _values(axis)))]
    chosen = [run for run in runs if all(run.setting[k] == axes[k].choices[0].name for k in plain)]
    files = folder / "sweep"
    files.mkdir(exist_ok=True)
    for path in files.glob("*.yaml"):  # files of an earlier version of the study
        path.unlink()
    for run in chosen:
        (files / f"{run.name}.yaml").write_text(text(run), encoding="utf-8")
    parameters: dict[str, Any] = {"config": {"values": [str(files / f"{run.name}.yaml") for run in chosen]}}
    parameters |= {str(axes[k].setting): {"values": _values(axes[k])} for k in plain}
    configuration = {
        "name": name,
        "program": "fl-lightning",
        "method": "grid",
        "metric": {"name": measure.name, "goal": "maximize" if measure.higher else "minimize"},
        "parameters": parameters,
        "command": ["fl-lightning", "fit", "${args}"],
    }
    path = folder / "sweep.yaml"
    head = f"# wandb sweep {path}, then on every machine: wandb agent <what that prints>\n"
    path.write_text(head + yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
    return path


def _values(axis: Axis) -> list[Any]:
    return [choice.settings[0][1] for choice in axis.choices]


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
