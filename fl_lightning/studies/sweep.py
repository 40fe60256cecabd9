"""A study as a W&B sweep: its configuration, and the files to which it refers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from fl_lightning.studies.panels import Measure


def write_sweep(folder: Path, name: str, texts: Mapping[str, str], measure: Measure) -> Path:
    """Write ``sweep.yaml``, a grid over the runs of a study, whose whole configurations are in the folder ``sweep``.

    Args:
        folder: existing folder for the files.
        name: name of the study.
        texts: the whole configuration of each run by its name, as YAML.
        measure: metric that the sweep optimises.

    Returns:
        The file for ``wandb sweep``.
    """
    files = folder / "sweep"
    files.mkdir(exist_ok=True)
    for path in files.glob("*.yaml"):  # files of an earlier version of the study
        path.unlink()
    for run, text in texts.items():
        (files / f"{run}.yaml").write_text(text, encoding="utf-8")
    configuration = {
        "name": name,
        "program": "fl-lightning",
        "method": "grid",
        "metric": {"name": measure.name, "goal": "maximize" if measure.higher else "minimize"},
        "parameters": {"config": {"values": [str(files / f"{run}.yaml") for run in texts]}},
        "command": ["fl-lightning", "fit", "${args}"],
    }
    path = folder / "sweep.yaml"
    head = f"# wandb sweep {path}, then on every machine: wandb agent <what that prints>\n"
    path.write_text(head + yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
    return path
