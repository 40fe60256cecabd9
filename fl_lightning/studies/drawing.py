"""Parts of figures: grids of axes, lines with bands, titles and legends."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fl_lightning.studies.panels import Panel
from fl_lightning.studies.statistics import Curves, Sample
from fl_lightning.studies.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
COLUMNS = 3
_MARKS_PER_LINE = 6


def save(figure: Figure, path: Path) -> None:
    """Write ``<path>.png``, ``.svg`` and ``.pdf``; the same figure gives the same files."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "fl_lightning", "svg.fonttype": "none", "pdf.fonttype": 42}):
        _save_png(figure, f"{path}.png")
        figure.savefig(f"{path}.svg", metadata={"Date": None})
        figure.savefig(f"{path}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})


def _save_png(figure: Figure, path: str) -> None:
    """Write a picture of 256 colours, which takes a third of the space and looks the same."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=110, metadata={"Software": None})
    Image.open(drawn).convert("RGB").quantize(256).save(path, optimize=True)


def plain(text: str) -> str:
    """Escape text that matplotlib would read as a formula."""
    return text.replace("$", r"\$")


def grid(count: int, width: float, height: float, **more: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of axes of a size in inches, three in a row."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, count)
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


def draw_lines(axis: Axes, lines: Iterable[tuple[str, Style, Curves]], scale: float, bands: bool = True) -> None:
    """Draw the mean over seeds of each named line, in its look, with a band of one standard deviation."""
    drawn = list(lines)
    for number, (name, look, by_seed) in enumerate(drawn):
        rounds, mean, std = _band(by_seed, scale)
        every = max(1, len(rounds) // _MARKS_PER_LINE)
        axis.plot(
            rounds,
            mean,
            linestyle=look.dash,
            color=look.colour,
            label=plain(name),
            linewidth=1.6,
            marker=look.marker or ("." if len(rounds) == 1 else ""),
            markersize=4.5,
            markevery=(number * every // len(drawn), every),  # markers of equal lines are not on top of each other
        )
        if bands and any(std):
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            axis.fill_between(rounds, low, high, color=look.colour, alpha=0.13, linewidth=0)


def finish(figure: Figure, axes: Sequence[Axes], ylabel: str, legend: str | None = None, title: str | None = None) -> None:
    """Name the axes and the figure; a legend for all axes has a title."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_xlabel("communication rounds")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.grid(alpha=0.3, linewidth=0.5)
    for axis in axes[::COLUMNS]:
        axis.set_ylabel(fill(ylabel, 36))
    entitle(figure, title)
    if legend is None:
        return
    named: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    columns = min(len(named), 4 if max(map(len, named)) > 4 else 10)
    figure.legend(
        named.values(),
        named.keys(),
        title=legend,
        loc="outside lower center",
        ncols=columns,
        fontsize="small",
        title_fontsize="small",
        frameon=False,
        handlelength=3.2,
    )


def entitle(figure: Figure, title: str | None) -> None:
    """Write a figure's title, if it has one."""
    if title:
        figure.suptitle(plain(title), fontsize="medium")


def where(panel: Panel) -> str | None:
    """Return what a panel's settings have in common, for a figure's title."""
    partition = f"Partition: {panel.partition}" if panel.partition else ""
    return "; ".join(filter(None, (partition, panel.title))) or None
