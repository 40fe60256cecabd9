"""The figures of a study, readable in print and without telling red from green: lines over rounds, and heat maps."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fl_lightning.reporting.matrices import draw_matrix, percent, share_of_row
from fl_lightning.strategies import ALGORITHMS
from fl_lightning.studies.names import family
from fl_lightning.studies.page import matrix
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.tables import deviation, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
_COLUMNS = 3
_MARKS_PER_LINE = 6
_MOST_LINES = 12
"""Largest number of settings in one panel; more are drawn in families."""
_OF_PANELS = {  # by name: the metric's beginning, the label of the axis, the word for a line, and the description
    "class_f1": ("val_f1", "F1 of the class", "class", "F1 of each class over rounds"),
    "shares": ("client_share", "share of the aggregate", "client", "clients' shares p_i over rounds"),
}


def draw_all(table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure], folder: Path) -> dict[str, str]:
    """Draw every figure for which the table has data, as PNG, SVG and PDF, and remove those of an earlier report.

    Args:
        table: run table of a study.
        panels: groups of settings to compare.
        measures: metrics of the curves, with a figure for each.
        folder: existing folder for the files.

    Returns:
        The names of the files without suffix, each with a description.
    """
    made: dict[str, str] = {}
    for name, what, figure in _figures(table, panels, measures):
        if figure is not None:
            _save(figure, folder / name)
            made[name] = what
    metrics = "|".join(re.escape(metric.replace("/", "_")) for metric in table.metrics)
    ours = rf"(curves|values|heat_map)(_({metrics}))?|({'|'.join(_OF_PANELS)}|confusion|clients)(_\d+)?"
    for path in folder.iterdir():
        if path.suffix[1:] in FORMATS and path.stem not in made and re.fullmatch(ours, path.stem):
            path.unlink()
    return made


def _figures(table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure]) -> Iterator[tuple[str, str, Figure | None]]:
    """Yield the name of each figure's file, its description, and the figure; None without data."""
    for measure in measures:
        end = "" if measure is measures[0] else "_" + measure.name.replace("/", "_")
        yield f"curves{end}", f"{measure.label} over rounds", curves(table, panels, measure)
    for number, panel in enumerate(panels, 1):
        end, where = (f"_{number}", f" ({panel.title})") if len(panels) > 1 else ("", "")
        for name, (prefix, label, of, what) in _OF_PANELS.items():
            yield f"{name}{end}", f"{what}{where}", families(table, panel, prefix, label, of)
        first = f"of the first seed{where}"
        yield f"confusion{end}", f"confusion matrix at the end, {first}", confusions(table, panel)
        yield f"clients{end}", f"training examples of each client, {first}", clients(table, panel)


# ---------------------------------------------------------------- the look of lines


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933")
"""Okabe and Ito's colours, which readers who do not tell red from green distinguish."""
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 2, 1, 2, 1, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
MOST_STYLES = len(COLOURS) * len(DASHES)
"""Number of styles of which any two differ in at least two of colour, dash and marker, so that they differ in grey, too."""
_GREY = "0.45"
_NUMBERS = {one.name: k + max(0, k - 1) // (len(COLOURS) - 1) for k, one in enumerate(chain.from_iterable(ALGORITHMS.values()))}
"""Numbers of the algorithms' styles; only the first, FedAvg, has the first colour, because it is in most figures."""


class Style(NamedTuple):
    """Describe the look of a line in matplotlib's terms.

    Attributes:
        colour: colour of the line, its markers and its band.
        dash: its line style.
        marker: its marker; empty for none.
    """

    colour: str
    dash: Any
    marker: str = ""


def style(number: int) -> Style:
    """Return the n-th style, from 0. The three lists have no common divisor, so early styles share one feature at most."""
    return Style(*(kind[number % len(kind)] for kind in (COLOURS, DASHES, MARKERS)))


def styles(labels: Sequence[str], references: Collection[str] = ()) -> dict[str, Style]:
    """Return a style for each label: an algorithm always has the same, references are grey, others have what is left.

    Args:
        labels: names of all lines of a study, as readers see them.
        references: labels that are no competitors, such as centralized training.
    """
    found = {label: Style(_GREY, DASHES[k % len(DASHES)]) for k, label in enumerate(dict.fromkeys(references))}
    compete = [label for label in dict.fromkeys(labels) if label not in found]
    numbers = {label: _NUMBERS[label] for label in compete if label in _NUMBERS}
    for label in compete:
        if label not in numbers:
            taken = {*numbers.values()}
            colours = {k % len(COLOURS) for k in taken}
            spare = range(2 * (len(labels) + len(_NUMBERS)))
            free = [k for k in spare if k not in taken and (k % len(COLOURS) or 0 not in taken)]
            numbers[label] = next((k for k in free if k % len(COLOURS) not in colours), free[0])
    return found | {label: style(numbers[label]) for label in compete}


# ---------------------------------------------------------------- lines


def curves(table: RunTable, panels: Sequence[Panel], measure: Measure) -> Figure | None:
    """Draw a metric over rounds: mean over seeds, band of one standard deviation, and a panel for each group of settings.

    A setting has the same look in every panel. More than 12 settings are drawn by the groups of ``fl-lightning algorithms``,
    with the baseline in each.

    Args:
        table: run table of a study.
        panels: groups of settings to compare.
        measure: metric to draw.
    """
    logged = [panel for panel in panels if any(map(len, panel.curves(table, measure.name)))]
    shown = [(part, title) for panel in logged for title, part in _parts(panel)]
    if not shown:
        return None
    labels = {name: panel.label(name) for panel in panels for name in panel.names}
    looks = styles([*labels.values()], [panel.label(name) for panel in panels for name in panel.references])
    single, together = len(shown) == 1, len(shown) == len(logged)
    figure, axes = _grid(len(shown), 6.0 if single else 3.8, 3.9 if single else 3.0 if together else 3.7, sharey=True)
    partitions = {panel.partition for panel in panels}
    whole = partitions.pop() if len(partitions) == 1 else None
    for axis, (panel, title) in zip(axes, shown, strict=True):
        lines = zip(panel.names, panel.curves(table, measure.name), strict=True)
        _draw_lines(axis, [(panel.label(name), looks[labels[name]], own * measure.scale) for name, own in lines if len(own)])
        if not together:
            place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
            axis.legend(fontsize="x-small", frameon=False, handlelength=3.2, **place)
        own = f"\npartition: {panel.partition}" if not whole and panel.partition else ""
        axis.set_title(_plain(title + own), fontsize="medium")
    over = _seeds([own.shape[1] for panel in logged for own in panel.curves(table, measure.name) if len(own)])
    words = f"Lines: mean over {over}; bands: ± one standard deviation" if over else "One seed"
    if not together:
        figure.supxlabel(words, fontsize="small")
    return _finish(figure, axes, measure.label, words if together else None, f"Partition: {whole}" if whole else None)


def _seeds(counts: Sequence[int]) -> str | None:
    """Describe over how many seeds lines are means, such as ``3 to 5 seeds``; None if each is a single run."""
    least, most = min(counts), max(counts)
    return None if most == 1 else f"{most} seeds" if least == most else f"{least} to {most} seeds"


def _parts(panel: Panel) -> list[tuple[str, Panel]]:
    """Divide a panel with many settings into families, each with its title; the baseline is in all of them."""
    if len(panel.names) <= _MOST_LINES:
        return [(panel.title, panel)]
    groups: dict[str, list[str]] = {}
    for name in panel.names:
        groups.setdefault("Baselines" if name in panel.references else family(panel.label(name)) or "Others", []).append(name)
    if len(groups) == 1:  # one family, or none known: equal parts
        count = math.ceil(len(panel.names) / _MOST_LINES)
        size = math.ceil(len(panel.names) / count)
        groups = {f"{part + 1} of {count}": panel.names[part * size : (part + 1) * size] for part in range(count)}
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
        lines = [(member, style(k), curve) for k, (member, curve) in enumerate(zip(members, own, strict=True)) if len(curve)]
        _draw_lines(axis, lines, bands=False)
        axis.set_title(_plain(panel.label(name)), fontsize="medium")
    axes[0].set_ylim(bottom=0)  # shared by all
    settings = [panel.settings[name] for name in found]
    over = _seeds([len(table.seeds(setting)) for setting in settings])
    words = f" (mean over {over})" if over else ""
    if over and of == "client" and not all(map(table.has_same_clients, settings)):
        words = f" (seed {min(map(min, map(table.seeds, settings)))}; others divide the data differently)"
    return _finish(figure, axes, ylabel, of + words, _where(panel))


def _draw_lines(axis: Axes, lines: Sequence[tuple[str, Style, pd.DataFrame]], bands: bool = True) -> None:
    """Draw the mean over seeds of each named line, in its look, with a band of one standard deviation."""
    for number, (name, look, own) in enumerate(lines):
        rounds, mean, std = own.index + 1, finite(own.mean(axis=1)), deviation(own)
        every = max(1, len(rounds) // _MARKS_PER_LINE)
        marks: dict[str, Any] = {
            "marker": look.marker or ("." if len(rounds) == 1 else ""),
            "markersize": 4.5,
            "markevery": (number * every // len(lines), every),  # markers of equal lines are not on top of each other
        }
        axis.plot(rounds, mean, linestyle=look.dash, color=look.colour, label=_plain(name), linewidth=1.6, **marks)
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
    return _entitle(figure, _where(panel))


def clients(table: RunTable, panel: Panel) -> Figure | None:
    """Draw clients x classes in training examples, for each partition in the panel's settings. None without data."""
    found = _matrices(table, panel, "partition")
    distinct = {name: own for k, (name, own) in enumerate(found.items()) if own not in [*found.values()][:k]}
    if not distinct:
        return None
    height, width = (max(len(own[k]) for own in distinct.values()) for k in (0, 1))
    figure, axes = _grid(len(distinct), min(9.0, 2.5 + 0.4 * width), min(12.0, 1.2 + 0.28 * height))
    for axis, (name, (rows, columns, values)) in zip(axes, distinct.items(), strict=True):
        image = draw_matrix(axis, rows, columns, values, "{:.0f}".format)
        axis.set(xlabel="class", ylabel="client")
        if len(distinct) > 1:
            axis.set_title(_plain(panel.label(name)), fontsize="medium")
        figure.colorbar(image, ax=axis, shrink=0.8, label="training examples")
    return _entitle(figure, _where(panel))


def _matrices(table: RunTable, panel: Panel, prefix: str) -> dict[str, tuple[list[str], list[str], list[list[float]]]]:
    found = {name: matrix(table.cells(setting, f"{prefix}/"), prefix) for name, setting in panel.settings.items()}
    return {name: own for name, own in found.items() if own[0]}


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


def _finish(figure: Figure, axes: Sequence[Axes], ylabel: str, legend: str | None, title: str | None) -> Figure:
    """Name the axes and the figure; a legend for all axes has a title."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_xlabel("communication rounds")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.grid(alpha=0.3, linewidth=0.5)
    for axis in axes[::_COLUMNS]:
        axis.set_ylabel(fill(ylabel, 36))
    if legend is None:
        return _entitle(figure, title)
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    columns = min(len(named), 4 if max(map(len, named)) > 4 else 10)
    small: dict[str, Any] = {"fontsize": "small", "title_fontsize": "small", "frameon": False, "handlelength": 3.2}
    figure.legend(named.values(), named.keys(), title=legend, loc="outside lower center", ncols=columns, **small)
    return _entitle(figure, title)


def _entitle(figure: Figure, title: str | None) -> Figure:
    """Write a figure's title, if it has one, and return it."""
    if title:
        figure.suptitle(_plain(title), fontsize="medium")
    return figure


def _where(panel: Panel) -> str | None:
    """Return what a panel's settings have in common, for a figure's title."""
    partition = f"Partition: {panel.partition}" if panel.partition else ""
    return "; ".join(filter(None, (partition, panel.title))) or None
