"""The figures of a study, readable in print and without telling red from green: lines over rounds, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd

from fl_lightning.reporting.matrices import draw_matrix, percent, share_of_row
from fl_lightning.studies.names import as_number, family, setting_in_words
from fl_lightning.studies.page import matrix
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.styles import MOST_STYLES, Style, style, styles
from fl_lightning.studies.tables import deviation, finals, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
_COLUMNS = 3
_MARKS_PER_LINE = 6
_MOST_LINES = 12
"""Largest number of settings in one panel; more are drawn in families."""
_WIDE = 10.0
"""The ratio of the largest to the smallest value from which an axis is logarithmic."""
_OF_PANELS = {  # by name: the metric's beginning, the label of the axis, the word for a line, and the description
    "class_f1": ("val_f1", "F1 of the class", "class", "F1 of each class over rounds"),
    "shares": ("client_share", "share of the aggregate", "client", "clients' shares p_i over rounds"),
}


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
    made: dict[str, str] = {}
    planned = _planned(table, panels, measures, families_of or {})
    for name, (draw, what) in planned.items():
        figure = draw()
        if figure is not None:
            _save(figure, folder / name)
            made[name] = what
    _remove_others(folder, table, made)
    return made


def _planned(
    table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure], families_of: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Callable[[], Figure | None], str]]:
    """Return how to draw each figure, by the name of its file, with a description."""
    drawn: dict[str, tuple[Callable[[], Figure | None], str]] = {}
    axes = " and ".join(map(setting_in_words, table.axes))
    for measure in measures:
        end = "" if measure is measures[0] else "_" + measure.name.replace("/", "_")
        drawn[f"curves{end}"] = partial(curves, table, panels, measure, families_of), f"{measure.label} over rounds"
        drawn[f"values{end}"] = partial(over_values, table, panels, measure), f"{measure.label} over {panels[0].axis}"
        drawn[f"heat_map{end}"] = partial(heat_map, table, panels, measure), f"{measure.label} by {axes}"
    for number, panel in enumerate(panels):
        end, where = (f"_{number + 1}", f" ({panel.title})") if len(panels) > 1 else ("", "")
        for name, (prefix, label, of, what) in _OF_PANELS.items():
            drawn[f"{name}{end}"] = partial(families, table, panel, prefix, label, of), f"{what}{where}"
        first = f"of the first seed{where}"
        drawn[f"confusion{end}"] = partial(confusions, table, panel), f"confusion matrix at the end, {first}"
        drawn[f"clients{end}"] = partial(clients, table, panel), f"training examples of each client, {first}"
    return drawn


def _remove_others(folder: Path, table: RunTable, made: Mapping[str, str]) -> None:
    """Remove the files of an earlier study, or of another choice of panels."""
    of_metrics = ("curves", "values", "heat_map")
    ours = {*of_metrics, *(f"{kind}_{metric.replace('/', '_')}" for metric in table.metrics for kind in of_metrics)}
    for path in folder.iterdir():
        kind = path.stem.rstrip("0123456789").rstrip("_")
        if (
            path.suffix[1:] in FORMATS
            and path.stem not in made
            and (kind in (*_OF_PANELS, "confusion", "clients") or path.stem in ours)
        ):
            path.unlink()


# ---------------------------------------------------------------- lines


def curves(
    table: RunTable, panels: Sequence[Panel], measure: Measure, families_of: Mapping[str, Sequence[str]] | None = None
) -> Figure | None:
    """Draw a metric over rounds: mean over seeds, band of one standard deviation, and a panel for each group of settings.

    A setting has the same look in every panel. Many settings are drawn by family, with the baseline in every panel.

    Args:
        table: run table of a study.
        panels: groups of settings to compare.
        measure: metric to draw.
        families_of: choices to draw in one panel, by its title; by default the groups of ``fl-lightning algorithms`` if there
            are more than 12.
    """
    logged = [panel for panel in panels if any(map(len, panel.curves(table, measure.name)))]
    shown = [(part, title) for panel in logged for title, part in _parts(panel, families_of or {})]
    if not shown:
        return None
    looks = _looks(panels)
    single, together = len(shown) == 1, len(shown) == len(logged)
    figure, axes = _grid(len(shown), 6.0 if single else 3.8, 3.9 if single else 3.0 if together else 3.7, sharey=True)
    partitions = {panel.partition for panel in panels}
    whole = partitions.pop() if len(partitions) == 1 else None
    for axis, (panel, title) in zip(axes, shown, strict=True):
        lines = zip(panel.names, panel.curves(table, measure.name), strict=True)
        _draw_lines(axis, ((panel.label(name), looks[name], own * measure.scale) for name, own in lines if len(own)))
        if not together:
            place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
            axis.legend(fontsize="x-small", frameon=False, handlelength=3.2, **place)
        own = f"\npartition: {panel.partition}" if not whole and panel.partition else ""
        axis.set_title(_plain(title + own), fontsize="medium")
    over = _seeds([own.shape[1] for panel in logged for own in panel.curves(table, measure.name) if len(own)])
    words = f"Lines: mean over {over}; bands: ± one standard deviation" if over else "One seed"
    _finish(figure, axes, measure.label, words if together else None, f"Partition: {whole}" if whole else None)
    if not together:
        figure.supxlabel(words, fontsize="small")
    return figure


def _looks(panels: Sequence[Panel]) -> dict[str, Style]:
    """Return the look of each choice, which is the same in every panel and figure."""
    labels = {name: panel.label(name) for panel in panels for name in panel.names}
    found = styles(list(labels.values()), [panel.label(name) for panel in panels for name in panel.references])
    return {name: found[label] for name, label in labels.items()}


def _seeds(counts: Sequence[int]) -> str | None:
    """Describe over how many seeds lines are means, such as ``3 to 5 seeds``; None if each is a single run."""
    least, most = min(counts), max(counts)
    return None if most == 1 else f"{most} seeds" if least == most else f"{least} to {most} seeds"


def _parts(panel: Panel, families_of: Mapping[str, Sequence[str]]) -> list[tuple[str, Panel]]:
    """Divide a panel with many settings into families, each with its title; the baseline is in all of them."""
    if len(panel.names) <= _MOST_LINES and not families_of:
        return [(panel.title, panel)]
    groups: dict[str, list[str]] = {}
    chosen = {choice: title for title, choices in families_of.items() for choice in choices}
    for name in panel.names:
        title = "Baselines" if name in panel.references else family(panel.label(name)) or "Others"
        groups.setdefault(chosen.get(name, title if not families_of else "Others"), []).append(name)
    if len(groups) == 1:  # one family, or none known: equal parts
        (names,) = groups.values()
        count = math.ceil(len(names) / _MOST_LINES)
        size = math.ceil(len(names) / count)
        groups = {f"{part + 1} of {count}": names[part * size : (part + 1) * size] for part in range(count)}
    before = f"{panel.title}: " if panel.title else ""
    return [(before + title, panel.some({panel.against, *names})) for title, names in groups.items()]


def families(table: RunTable, panel: Panel, prefix: str, ylabel: str, of: str) -> Figure | None:
    """Draw all curves ``<prefix>/<member>`` of each setting side by side, as means over seeds: F1 by class, shares by client.

    Clients are those of the first seed if the others divide the data differently.

    Return None if there is no such curve, or too many to distinguish.
    """
    members = table.families(prefix)
    read = table.of_clients if of == "client" else table.curves
    found = {name: [read(setting, f"{prefix}/{member}") for member in members] for name, setting in panel.settings.items()}
    found = {name: own for name, own in found.items() if any(map(len, own))}
    if not found or len(members) > MOST_STYLES:
        return None
    figure, axes = _grid(len(found), 3.6, 2.9, sharey=True)
    for axis, (name, own) in zip(axes, found.items(), strict=True):
        lines = ((member, style(k), curve) for k, (member, curve) in enumerate(zip(members, own, strict=True)) if len(curve))
        _draw_lines(axis, lines, bands=False)
        axis.set_title(_plain(panel.label(name)), fontsize="medium")
    axes[0].set_ylim(bottom=0)  # shared by all
    settings = [panel.settings[name] for name in found]
    over = _seeds([len(table.seeds(setting)) for setting in settings])
    words = f" (mean over {over})" if over else ""
    if over and of == "client" and not all(map(table.has_same_clients, settings)):
        words = f" (seed {min(map(min, map(table.seeds, settings)))}; others divide the data differently)"
    _finish(figure, axes, ylabel, of + words, _where(panel))
    return figure


def over_values(table: RunTable, panels: Sequence[Panel], measure: Measure) -> Figure | None:
    """Draw the final values of a metric over a numeric axis: mean over seeds, bars of one standard deviation.

    There is a line for each group of settings. None if the compared axis is not numeric, or has fewer than 3 values.
    """
    logged = [panel for panel in panels if _is_numeric(panel.names) and any(map(len, panel.curves(table, measure.name)))]
    if not logged or max(len(panel.names) for panel in logged) < 3:
        return None
    figure, (axis,) = _grid(1, 5.0, 3.4)
    for panel, look in zip(logged, styles([panel.title for panel in logged]).values(), strict=True):
        final = pd.DataFrame(finals(table, panel, measure), list(map(as_number, panel.names))).sort_index().dropna(how="all")
        spread = deviation(final).fillna(0) * measure.scale
        more: dict[str, Any] = {"marker": look.marker or "o", "markersize": 4.5, "capsize": 3}
        look_of = {"label": _plain(panel.title), "color": look.colour, "linestyle": look.dash}
        axis.errorbar(final.index, finite(final.mean(axis=1)) * measure.scale, spread, **look_of, **more)
    values = [as_number(name) for panel in logged for name in panel.names]
    positive = [x for x in values if x > 0]
    if positive and max(positive) / min(positive) >= _WIDE and min(values) >= 0:
        axis.set_xscale("log") if min(values) else axis.set_xscale("symlog", linthresh=min(positive))
    axis.set_xlabel(logged[0].axis)
    axis.set_ylabel(measure.label)
    axis.grid(alpha=0.3, linewidth=0.5)
    if len(logged) > 1:
        axis.legend(fontsize="small", frameon=False)
    return figure


def _is_numeric(names: Iterable[str]) -> bool:
    return not any(math.isnan(as_number(name)) for name in names)


def _draw_lines(axis: Axes, lines: Iterable[tuple[str, Style, pd.DataFrame]], bands: bool = True) -> None:
    """Draw the mean over seeds of each named line, in its look, with a band of one standard deviation."""
    drawn = list(lines)
    for number, (name, look, own) in enumerate(drawn):
        rounds, mean, std = own.index + 1, finite(own.mean(axis=1)), deviation(own)
        every = max(1, len(rounds) // _MARKS_PER_LINE)
        axis.plot(
            rounds,
            mean,
            linestyle=look.dash,
            color=look.colour,
            label=_plain(name),
            linewidth=1.6,
            marker=look.marker or ("." if len(rounds) == 1 else ""),
            markersize=4.5,
            markevery=(number * every // len(drawn), every),  # markers of equal lines are not on top of each other
        )
        if bands and std.any():
            std = std.where(own.count(axis=1) > 1, 0)
            axis.fill_between(rounds, mean - std, mean + std, color=look.colour, alpha=0.13, linewidth=0)


# ---------------------------------------------------------------- heat maps


def confusions(table: RunTable, panel: Panel) -> Figure | None:
    """Draw confusion matrices after the last round: rows are true classes in percent of their examples. None without data."""
    found = _matrices(table, panel, "val_confusion")
    if not found:
        return None
    figure, axes = _grid(len(found), 3.3, 3.1, sharex=True, sharey=True)
    for axis, (name, (rows, columns, values)) in zip(axes, found.items(), strict=True):
        draw_matrix(axis, rows, columns, share_of_row(values), percent)
        axis.set_title(_plain(panel.label(name)), fontsize="medium")
        axis.set_xlabel("predicted class")
    for axis in axes[::_COLUMNS]:
        axis.set_ylabel("true class, rows in percent")
    _entitle(figure, _where(panel))
    return figure


def clients(table: RunTable, panel: Panel) -> Figure | None:
    """Draw clients x classes in training examples, for each partition in the panel's settings. None without data."""
    distinct: dict[str, tuple[list[str], list[str], list[list[float]]]] = {}
    for name, found in _matrices(table, panel, "partition").items():
        if found not in distinct.values():
            distinct[name] = found
    if not distinct:
        return None
    height, width = (max(len(own[k]) for own in distinct.values()) for k in (0, 1))
    figure, axes = _grid(len(distinct), min(9.0, 2.5 + 0.4 * width), min(12.0, 1.2 + 0.28 * height))
    for axis, (name, (rows, columns, values)) in zip(axes, distinct.items(), strict=True):
        image = draw_matrix(axis, rows, columns, values, "{:.0f}".format)
        axis.set_xlabel("class")
        axis.set_ylabel("client")
        if len(distinct) > 1:
            axis.set_title(_plain(panel.label(name)), fontsize="medium")
        figure.colorbar(image, ax=axis, shrink=0.8, label="training examples")
    _entitle(figure, _where(panel))
    return figure


def _matrices(table: RunTable, panel: Panel, prefix: str) -> dict[str, tuple[list[str], list[str], list[list[float]]]]:
    found = {name: matrix(table.cells(setting, f"{prefix}/"), prefix) for name, setting in panel.settings.items()}
    return {name: own for name, own in found.items() if own[0]}


def heat_map(table: RunTable, panels: Sequence[Panel], measure: Measure) -> Figure | None:
    """Draw the final values of a metric, means over seeds, as a field for each pair of two numeric axes; else None."""
    titles = [panel.choice.partition(" = ")[2] for panel in panels]
    if len(table.axes) != 2 or len(panels) < 2 or not _is_numeric([*titles, *(name for p in panels for name in p.names)]):
        return None
    means = {
        title: pd.Series([own.mean() for own in finals(table, panel, measure)], panel.names)
        for title, panel in zip(titles, panels, strict=True)
    }
    field = pd.DataFrame(means)[sorted(titles, key=as_number)] * measure.scale
    field = finite(field.loc[sorted(field.index, key=as_number)])
    if field.isna().all(axis=None):
        return None
    figure, (axis,) = _grid(1, 1.2 + 0.8 * len(field.columns), 1.2 + 0.5 * len(field))
    show = f"{{:.{measure.digits}f}}".format
    image = draw_matrix(
        axis,
        list(field.index),
        list(field.columns),
        field.to_numpy().tolist(),
        show,
        "cividis" if measure.higher else "cividis_r",
    )
    axis.invert_yaxis()
    axis.set_xlabel(panels[0].other)
    axis.set_ylabel(panels[0].axis)
    figure.colorbar(image)
    _entitle(figure, measure.title)
    return figure


# ---------------------------------------------------------------- parts


def _save(figure: Figure, path: Path) -> None:
    """Write ``<path>.png``, ``.svg`` and ``.pdf``; the same figure gives the same files."""
    import matplotlib as mpl
    from PIL import Image

    drawn = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "fl_lightning", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(drawn, format="png", dpi=110, metadata={"Software": None})
        figure.savefig(f"{path}.svg", metadata={"Date": None})
        figure.savefig(f"{path}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    # 256 colours take a third of the space, and look the same.
    Image.open(drawn).convert("RGB").quantize(256).save(f"{path}.png", optimize=True)


def _plain(text: str) -> str:
    """Escape text that matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def _grid(count: int, width: float, height: float, **more: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of axes of a size in inches, three in a row."""
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns + 0.6, height * rows + 0.7), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **more).flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def _finish(figure: Figure, axes: Sequence[Axes], ylabel: str, legend: str | None, title: str | None) -> None:
    """Name the axes and the figure; a legend for all axes has a title."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_xlabel("communication rounds")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.grid(alpha=0.3, linewidth=0.5)
    for axis in axes[::_COLUMNS]:
        axis.set_ylabel(fill(ylabel, 36))
    _entitle(figure, title)
    if legend is None:
        return
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    columns = min(len(named), 4 if max(map(len, named)) > 4 else 10)
    small: dict[str, Any] = {"fontsize": "small", "title_fontsize": "small", "frameon": False, "handlelength": 3.2}
    figure.legend(named.values(), named.keys(), title=legend, loc="outside lower center", ncols=columns, **small)


def _entitle(figure: Figure, title: str | None) -> None:
    """Write a figure's title, if it has one."""
    if title:
        figure.suptitle(_plain(title), fontsize="medium")


def _where(panel: Panel) -> str | None:
    """Return what a panel's settings have in common, for a figure's title."""
    partition = f"Partition: {panel.partition}" if panel.partition else ""
    return "; ".join(filter(None, (partition, panel.title))) or None
