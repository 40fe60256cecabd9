"""A study as a W&B sweep: its configuration, and the files to which it refers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.grid import Axis, Run
from fl_lightning.studies.panels import Measure

Method = Literal["grid", "random", "bayes"]

_WIDE = 10
"""From this ratio of the largest to the smallest choice on, a search draws on a logarithmic scale."""


def write_sweep(
    folder: Path,
    name: str,
    axes: Sequence[Axis],
    runs: Sequence[Run],
    text: Callable[[Run], str],
    measure: Measure,
    method: Method = "grid",
) -> Path:
    """Write ``sweep.yaml``: a grid over the study's runs, or a search between the choices of its axes.

    Axes whose choices are numbers or words become parameters. What W&B cannot vary one by one (the three seeds of a run, files,
    classes with settings) goes into whole configurations, from which the parameter ``config`` chooses. A search draws numbers
    from the range between the smallest and the largest choice. It runs the study's first seed only, because otherwise it would
    choose a seed as if it were a setting.

    Args:
        folder: existing folder for the files.
        name: name of the study.
        axes: axes of the study.
        runs: all runs of the study.
        text: returns the whole configuration of a run, as YAML.
        measure: metric that the sweep optimises.
        method: W&B's method; all but ``grid`` search.

    Returns:
        The file for ``wandb sweep``.
    """
    plain = [k for k, axis in enumerate(axes) if axis.setting is not None and all(map(_is_plain, _values(axis)))]
    chosen = [run for run in runs if all(run.setting[k] == axes[k].choices[0].name for k in plain)]
    if method != "grid":
        chosen = [run for run in chosen if run.seed == runs[0].seed]
    files = folder / "sweep"
    files.mkdir(exist_ok=True)
    for path in files.glob("*.yaml"):  # files of an earlier version of the study
        path.unlink()
    for run in chosen:
        (files / f"{run.name}.yaml").write_text(text(run), encoding="utf-8")
    parameters: dict[str, Any] = {"config": {"values": [str(files / f"{run.name}.yaml") for run in chosen]}}
    parameters |= {str(axes[k].setting): {"values": _values(axes[k])} if method == "grid" else _range(axes[k]) for k in plain}
    configuration = {
        "name": name,
        "program": "fl-lightning",
        "method": method,
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


def refuse_test_set(configs: Iterable[Any]) -> None:
    """Reject a search whose server validates on test examples.

    Args:
        configs: the runs' whole configurations.

    Raises:
        ConfigurationError: naming the setting that holds out a validation set.
    """
    for data in (config.data for config in configs):
        share = dict(data.datamodule.init_args or {}).get("validation_share") if data.datamodule else None
        if data.server_set == "clients":
            held = "'data.server_set' is 'clients': set it to 'datamodule', and hold out a validation set there"
        elif share == 0:
            held = "'data.datamodule.validation_share' is 0: set it to 0.1, for example"
        else:
            continue
        raise ConfigurationError(f"The sweep would choose settings by their figures on test examples, since {held}.")


def _range(axis: Axis) -> dict[str, Any]:
    """Return W&B's parameter of a search: a range if the choices are numbers that differ, otherwise the choices."""
    values = _values(axis)
    if not axis.is_numeric or len(values) == 1:
        return {"values": values}
    low, high = min(values), max(values)
    if all(isinstance(x, int) for x in values):
        return {"distribution": "int_uniform", "min": low, "max": high}
    wide = low > 0 and high >= _WIDE * low
    return {"distribution": "log_uniform_values" if wide else "uniform", "min": float(low), "max": float(high)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)
