"""Figures of numeric axes: a metric over the value of a setting, and a heat map of two settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_lightning.studies.drawing import entitle, grid, plain
from fl_lightning.studies.line_figures import looks_of
from fl_lightning.studies.names import as_number
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.statistics import Sample, last_rounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE = 10.0
"""The ratio of the largest to the smallest value from which an axis is logarithmic."""


def over_values(table: RunTable, panels: Sequence[Panel], measure: Measure) -> Figure | None:
    """Draw the final values of a metric over a numeric axis: mean over seeds, bars of one standard deviation.

    There is a line for each group of settings. None if the compared axis is not numeric, or has fewer than 3 values.
    """
    logged = [panel for panel in panels if _is_numeric(panel.names) and any(panel.curves(table, measure.name))]
    if not logged or max(len(panel.names) for panel in logged) < 3:
        return None
    figure, (axis,) = grid(1, 5.0, 3.4)
    values = [as_number(name) for panel in logged for name in panel.names]
    for panel, look in zip(logged, looks_of([_titled(logged)]).values(), strict=True):
        points = sorted((as_number(name), _final(table, panel, name, measure)) for name in panel.names)
        drawn = [(x, sample) for x, sample in points if sample.values]
        axis.errorbar(
            [x for x, _ in drawn],
            [sample.mean * measure.scale for _, sample in drawn],
            [sample.std * measure.scale for _, sample in drawn],
            label=plain(panel.title),
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker or "o",
            markersize=4.5,
            capsize=3,
        )
    _scale(axis, values)
    axis.set_xlabel(logged[0].axis)
    axis.set_ylabel(measure.label)
    axis.grid(alpha=0.3, linewidth=0.5)
    if len(logged) > 1:
        axis.legend(fontsize="small", frameon=False)
    return figure


def heat_map(table: RunTable, panels: Sequence[Panel], measure: Measure) -> Figure | None:
    """Draw the final values of a metric, means over seeds, as a field for each pair of two numeric axes; else None."""
    titles = [panel.title.partition(" = ")[2] for panel in panels]
    if len(table.axes) != 2 or len(panels) < 2 or not _is_numeric(titles) or not all(_is_numeric(p.names) for p in panels):
        return None
    across = sorted(zip(titles, panels, strict=True), key=lambda pair: as_number(pair[0]))
    names = sorted(dict.fromkeys(name for panel in panels for name in panel.names), key=as_number)
    field = [
        [_final(table, p, n, measure).mean * measure.scale if n in p.settings else math.nan for _, p in across] for n in names
    ]
    if all(math.isnan(x) for row in field for x in row):
        return None
    figure, (axis,) = grid(1, 1.2 + 0.8 * len(across), 1.2 + 0.5 * len(names))
    shown = axis.imshow(field, cmap="cividis" if measure.higher else "cividis_r", aspect="auto", origin="lower")
    dark = (
        max(x for row in field for x in row if not math.isnan(x)) + min(x for r in field for x in r if not math.isnan(x))
    ) / 2
    for y, row in enumerate(field):
        for x, value in enumerate(row):
            if not math.isnan(value):
                colour = "black" if (value > dark) == measure.higher else "white"
                axis.text(x, y, f"{value:.{measure.digits}f}", ha="center", va="center", color=colour, fontsize="small")
    axis.set_xticks(range(len(across)), [title for title, _ in across])
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel(panels[0].title.partition(" = ")[0])
    axis.set_ylabel(panels[0].axis)
    figure.colorbar(shown)
    entitle(figure, measure.title)
    return figure


def _titled(panels: Sequence[Panel]) -> Panel:
    """Return a panel whose choices are the groups of settings, for their looks."""
    return Panel("", "", {panel.title: () for panel in panels})


def _final(table: RunTable, panel: Panel, name: str, measure: Measure) -> Sample:
    return Sample(tuple(last_rounds(table.curves(panel.settings[name], measure.name), measure.last).values()))


def _is_numeric(names: Sequence[str]) -> bool:
    return all(not math.isnan(as_number(name)) for name in names)


def _scale(axis: Axes, values: Sequence[float]) -> None:
    positive = [x for x in values if x > 0]
    if positive and max(positive) / min(positive) >= _WIDE:
        if min(values) > 0:
            axis.set_xscale("log")
        elif min(values) == 0:
            axis.set_xscale("symlog", linthresh=min(positive))
