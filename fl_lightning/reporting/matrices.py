"""Pictures of matrices."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = (12, 12)
"""Largest numbers of rows and of columns for which cells are labelled."""


def new_figure(width: float, height: float) -> Figure | None:
    """Return an empty figure of this size in inches; None if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # optional, and slow to import
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def as_png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def draw_matrix(
    axis: Axes,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    show: Callable[[float], str] | Sequence[Sequence[str]],
    colours: str = "",
    few: tuple[int, int] = _FEW,
) -> Any:
    """Draw a matrix, and label its cells if there are few.

    Args:
        axis: axis of matplotlib.
        rows: names of the rows.
        columns: names of the columns.
        values: one value for each row and column; NaN leaves a cell empty.
        show: formats a value; or the labels of all cells.
        colours: a map of matplotlib for the range of the values; by default blue from 0, for counts, of which 0 has no label.
        few: the largest numbers of rows and of columns for which cells are labelled.

    Returns:
        The image, for a colour bar.
    """
    image = axis.imshow(values, cmap=colours or "Blues", aspect="auto", vmin=None if colours else 0, interpolation="nearest")
    for ticks, names in ((axis.set_xticks, columns), (axis.set_yticks, rows)):
        step = -(-len(names) // 20)
        ticks(range(0, len(names), step), [name.replace("$", r"\$") for name in names[::step]], fontsize="small")
    if len(rows) <= few[0] and len(columns) <= few[1]:
        shades = image.to_rgba(np.asarray(values))
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                if value == value and (value or colours):
                    red, green, blue, _ = shades[y, x]
                    colour = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "black"
                    text = show(value) if callable(show) else show[y][x]
                    axis.text(x, y, text, ha="center", va="center", fontsize=6, color=colour)
    return image


def share_of_row(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return rows in percent of their sums; zeros for an empty row."""
    return [[100 * value / (sum(row) or 1) for value in row] for row in values]


def percent(value: float) -> str:
    """Return whole percents, or an empty text below half a percent."""
    return f"{value:.0f}" if value >= 0.5 else ""


def draw_confusion(matrix: Tensor) -> bytes | None:
    """Draw a confusion matrix as a PNG file: rows are true classes, in percent of their examples.

    Args:
        matrix: counts, shape (C, C), rows true, columns predicted.

    Returns:
        The file; None if matplotlib is not installed.
    """
    figure = new_figure(4.4, 4.0)
    if figure is None:
        return None
    names = [str(k) for k in range(len(matrix))]
    axis = figure.subplots()
    image = draw_matrix(axis, names, names, share_of_row(matrix.double().tolist()), percent)
    axis.set_xlabel("predicted class")
    axis.set_ylabel("true class")
    figure.colorbar(image, ax=axis, shrink=0.8, label="percent of the true class")
    return as_png(figure)
