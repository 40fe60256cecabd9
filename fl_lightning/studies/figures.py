"""The figures of a study, readable in print and without telling red from green (colours of Okabe and Ito)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.reporting.matrices import draw_matrix, percent, share_of_row
from fl_lightning.studies.run_table import RunTable, Setting
from fl_lightning.studies.statistics import Curves, Sample
from fl_lightning.studies.tables import Measure, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
STYLES = ("-", "--", "-.", ":")
_COLUMNS = 3
_FIGURES = ("curves", "class_f1", "class_f", "shares", "confusion", "clients")
"""Prefixes of figures' names; the digits after them are removed."""
_MOST_LINES = len(COLOURS) * len(STYLES)


def draw_all(table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure], folder: Path) -> dict[str, str]:
    """Draw every figure for which the table has data, as PNG and SVG.

    Args:
        table: run table of a study.
        panels: groups of settings to compare.
        measures: metrics of the curves, with a figure for each.
        folder: existing folder for the files.

    Returns:
        The names of the files without suffix, each with a description.
    """
    drawn: dict[str, tuple[Callable[[], Figure | None], str]] = {}
    for measure in measures:
        name = "curves" if measure is measures[0] else "curves_" + measure.name.replace("/", "_")
        drawn[name] = partial(curves, table, panels, measure), f"{measure.name} over rounds"
    for number, panel in enumerate(panels):
        end, what = (f"_{number + 1}", f" ({panel.title})") if len(panels) > 1 else ("", "")
        f1, shares = (
            partial(families, table, panel, *named)
            for named in (("val_f1", "F1", "class"), ("client_share", "share of the sum of weights", "client"))
        )
        drawn[f"class_f1{end}"] = f1, f"F1 of each class over rounds{what}"
        drawn[f"shares{end}"] = shares, f"clients' shares p_i over rounds{what}"
        drawn[f"confusion{end}"] = (
            partial(confusions, table, panel),
            f"confusion matrix at the end, of the first seed{what}",
        )
        drawn[f"clients{end}"] = partial(clients, table, panel), f"training examples of each client, of the first seed{what}"
    made: dict[str, str] = {}
    for name, (draw, what) in drawn.items():
        figure = draw()
        if figure is not None:
            save(figure, folder / name)
            made[name] = what
    metrics = {"curves_" + metric.replace("/", "_") for metric in table.metrics}
    for path in folder.iterdir():  # files of an earlier study or another choice of panels
        ours = path.stem.rstrip("0123456789").rstrip("_") in _FIGURES or path.stem in metrics
        if path.suffix in (".png", ".svg") and path.stem not in made and ours:
            path.unlink()
    return made


def _plain(text: str) -> str:
    """Escape text that matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Write ``<path>.png`` and ``<path>.svg``; the same figure gives the same file."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "fl_lightning", "svg.fonttype": "none"}):
        figure.savefig(f"{path}.png", dpi=110, metadata={"Software": None})
        figure.savefig(f"{path}.svg", metadata={"Date": None})


def _grid(count: int, width: float, height: float, **more: Any) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns + 0.6, height * rows + 0.7), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **more).flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def _band(by_seed: Curves, scale: float) -> tuple[list[int], list[float], list[float]]:
    """Return rounds from 1, and mean and standard deviation over the seeds that have the round."""
    rounds = sorted({round_idx for curve in by_seed.values() for round_idx in curve})
    values = [[curve[r] * scale for curve in by_seed.values() if r in curve] for r in rounds]
    values = [[x if math.isfinite(x) else math.nan for x in own] for own in values]  # leaves a gap
    spreads = [Sample(tuple(own)).std for own in values]
    return [r + 1 for r in rounds], [statistics.fmean(own) for own in values], spreads


def _draw_lines(axis: Axes, lines: Iterable[tuple[str, Curves]], scale: float, bands: bool = True) -> None:
    for number, (name, by_seed) in enumerate(lines):
        rounds, mean, std = _band(by_seed, scale)
        style = STYLES[(number + number // len(COLOURS)) % len(STYLES)]  # never the same colour with the same style
        colour = COLOURS[number % len(COLOURS)]
        lone = "." if len(rounds) == 1 else ""
        axis.plot(rounds, mean, linestyle=style, color=colour, label=_plain(name), linewidth=1.6, marker=lone)
        if bands and any(std):
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def _finish(figure: Figure, axes: Sequence[Axes], ylabel: str, members: str = "", legend: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.grid(alpha=0.3, linewidth=0.5)
    for axis in axes[::_COLUMNS]:
        axis.set_ylabel(ylabel)
    if not legend:
        return
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    columns = min(len(named), 4 if max(map(len, named)) > 4 else 10)
    figure.legend(
        named.values(), named.keys(), title=members, loc="outside lower center", ncols=columns, fontsize="small", frameon=False
    )


def curves(table: RunTable, panels: Sequence[Panel], measure: Measure) -> Figure | None:
    """Draw a metric over rounds: mean over seeds, band of one standard deviation, and a panel for each group of settings.

    Many settings are shown a few at a time, with the first of them in every panel.
    """
    logged = [panel for panel in panels if any(panel.curves(table, measure.name))]
    shown = [part for panel in logged for part in _few_at_a_time(panel)]
    if not shown:
        return None
    figure, axes = _grid(len(shown), 6.0 if len(shown) == 1 else 3.6, 3.6 if len(shown) == 1 else 2.9, sharey=True)
    for axis, panel in zip(axes, shown, strict=True):
        lines = zip(panel.names, panel.curves(table, measure.name), strict=True)
        _draw_lines(axis, lines, measure.scale)
        if len(shown) > len(logged):
            axis.legend(fontsize="x-small", framealpha=0.6)
        axis.set_title(_plain(panel.title), fontsize="medium")
    _finish(figure, axes, measure.name + (" in percent" if measure.percent else ""), legend=len(shown) == len(logged))
    return figure


def _few_at_a_time(panel: Panel) -> list[Panel]:
    if len(panel.settings) <= len(COLOURS):
        return [panel]
    first, *others = panel.settings.items()
    size = len(COLOURS) - 1
    parts = [others[start : start + size] for start in range(0, len(others), size)]
    return [Panel(panel.title, panel.axis, dict([first, *part])) for part in parts]


def families(table: RunTable, panel: Panel, prefix: str, ylabel: str, of: str) -> Figure | None:
    """Draw all curves ``<prefix>/<member>`` of each setting side by side, as means over seeds: F1 by class, shares by client.

    Return None if there are none, or too many to distinguish.
    """
    members = table.families(prefix)
    settings = {name: s for name, s in panel.settings.items() if any(table.curves(s, f"{prefix}/{m}") for m in members)}
    if not settings or len(members) > _MOST_LINES:
        return None
    figure, axes = _grid(len(settings), 3.6, 2.9, sharey=True)
    for axis, (name, setting) in zip(axes, settings.items(), strict=True):
        lines = ((member, table.curves(setting, f"{prefix}/{member}")) for member in members)
        _draw_lines(axis, ((member, by_seed) for member, by_seed in lines if by_seed), 1.0, bands=False)
        axis.set_title(_plain(name), fontsize="medium")
    axes[0].set_ylim(bottom=0)  # shared by all
    _finish(figure, axes, ylabel, of)
    return figure


def _matrix(table: RunTable, setting: Setting, prefix: str) -> tuple[list[str], list[str], list[list[float]]] | None:
    """Return rows, columns and values of ``<prefix>/<row>/<column>`` in the last round of the first seed that has them."""
    cells: dict[tuple[str, str], float] = {}
    for member in table.families(prefix):
        row, _, column = member.partition("/")
        by_seed = table.curves(setting, f"{prefix}/{member}")
        if by_seed:
            cells[row, column] = list(next(iter(by_seed.values())).values())[-1]
    if not cells:
        return None
    rows, columns = list(dict.fromkeys(r for r, _ in cells)), list(dict.fromkeys(c for _, c in cells))
    return rows, columns, [[cells.get((row, column), 0.0) for column in columns] for row in rows]


def confusions(table: RunTable, panel: Panel) -> Figure | None:
    """Draw confusion matrices after the last round: rows are true classes in percent of their examples. None without data."""
    found = {name: _matrix(table, setting, "val_confusion") for name, setting in panel.settings.items()}
    there = {name: matrix for name, matrix in found.items() if matrix is not None}
    if not there:
        return None
    figure, axes = _grid(len(there), 3.3, 3.1, sharex=True, sharey=True)
    for axis, (name, (rows, columns, values)) in zip(axes, there.items(), strict=True):
        draw_matrix(axis, rows, columns, share_of_row(values), percent)
        axis.set_title(_plain(name), fontsize="medium")
        axis.set_xlabel("predicted")
    for axis in axes[::_COLUMNS]:
        axis.set_ylabel("true class, rows in percent")
    return figure


def clients(table: RunTable, panel: Panel) -> Figure | None:
    """Draw clients x classes in training examples, for each partition in the panel's settings. None without data."""
    found = {name: _matrix(table, setting, "partition") for name, setting in panel.settings.items()}
    distinct: dict[str, tuple[list[str], list[str], list[list[float]]]] = {}
    for name, matrix in found.items():
        if matrix is not None and matrix not in distinct.values():
            distinct[name] = matrix
    if not distinct:
        return None
    height = max(len(rows) for rows, _, _ in distinct.values())
    width = max(len(columns) for _, columns, _ in distinct.values())
    figure, axes = _grid(len(distinct), min(9.0, 2.5 + 0.4 * width), min(12.0, 1.2 + 0.28 * height))
    for axis, (name, (rows, columns, values)) in zip(axes, distinct.items(), strict=True):
        image = draw_matrix(axis, rows, columns, values, lambda x: f"{x:.0f}")
        axis.set_xlabel("class")
        axis.set_ylabel("client")
        if len(distinct) > 1:
            axis.set_title(_plain(name), fontsize="medium")
        figure.colorbar(image, ax=axis, shrink=0.8, label="training examples")
    return figure
