"""The figures of a study, readable in print and without telling red from green."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fl_lightning.studies.drawing import FORMATS, save
from fl_lightning.studies.line_figures import curves, families
from fl_lightning.studies.matrix_figures import clients, confusions
from fl_lightning.studies.names import setting_in_words
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.value_figures import heat_map, over_values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURES = ("curves", "values", "heat_map", "class_f1", "class_f", "shares", "confusion", "clients")
"""Prefixes of figures' names; the digits after them are removed."""


def draw_all(
    table: RunTable,
    panels: Sequence[Panel],
    measures: Sequence[Measure],
    folder: Path,
    families_of: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Draw every figure for which the table has data, as PNG, SVG and PDF.

    Args:
        table: run table of a study.
        panels: groups of settings to compare.
        measures: metrics of the curves, with a figure for each.
        folder: existing folder for the files.
        families_of: choices to draw in one panel, by its title.

    Returns:
        The names of the files without suffix, each with a description.
    """
    drawn = _planned(table, panels, measures, families_of)
    made: dict[str, str] = {}
    for name, (draw, what) in drawn.items():
        figure = draw()
        if figure is not None:
            save(figure, folder / name)
            made[name] = what
    _remove_others(folder, table, made)
    return made


_Drawn = dict[str, tuple[Callable[[], "Figure | None"], str]]


def _planned(
    table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure], families_of: Mapping[str, Sequence[str]] | None
) -> _Drawn:
    """Return how to draw each figure, by the name of its file, with a description."""
    drawn: _Drawn = {}
    axes = " and ".join(map(setting_in_words, table.axes))
    for measure in measures:
        name = "curves" if measure is measures[0] else "curves_" + measure.name.replace("/", "_")
        end = name.removeprefix("curves")
        drawn[name] = partial(curves, table, panels, measure, families_of), f"{measure.label} over rounds"
        drawn[f"values{end}"] = partial(over_values, table, panels, measure), f"{measure.label} over {panels[0].axis}"
        drawn[f"heat_map{end}"] = (
            partial(heat_map, table, panels, measure),
            f"{measure.label} by {axes}",
        )
    for number, panel in enumerate(panels):
        end, what = (f"_{number + 1}", f" ({panel.title})") if len(panels) > 1 else ("", "")
        f1, shares = (
            partial(families, table, panel, *named)
            for named in (("val_f1", "F1 of the class", "class"), ("client_share", "share of the aggregate", "client"))
        )
        drawn[f"class_f1{end}"] = f1, f"F1 of each class over rounds{what}"
        drawn[f"shares{end}"] = shares, f"clients' shares p_i over rounds{what}"
        drawn[f"confusion{end}"] = (
            partial(confusions, table, panel),
            f"confusion matrix at the end, of the first seed{what}",
        )
        drawn[f"clients{end}"] = partial(clients, table, panel), f"training examples of each client, of the first seed{what}"
    return drawn


def _remove_others(folder: Path, table: RunTable, made: Mapping[str, str]) -> None:
    """Remove the files of an earlier study, or of another choice of panels."""
    kinds = ("curves", "values", "heat_map")
    metrics = {f"{kind}_{metric.replace('/', '_')}" for metric in table.metrics for kind in kinds}
    for path in folder.iterdir():
        ours = path.stem.rstrip("0123456789").rstrip("_") in _FIGURES or path.stem in metrics
        if path.suffix.removeprefix(".") in FORMATS and path.stem not in made and ours:
            path.unlink()
