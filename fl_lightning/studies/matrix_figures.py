"""Figures of matrices: confusion of classes, and examples of clients by class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fl_lightning.reporting.matrices import draw_matrix, percent, share_of_row
from fl_lightning.studies.drawing import COLUMNS, entitle, grid, plain, where
from fl_lightning.studies.panels import Panel
from fl_lightning.studies.run_table import RunTable, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    figure, axes = grid(len(there), 3.3, 3.1, sharex=True, sharey=True)
    for axis, (name, (rows, columns, values)) in zip(axes, there.items(), strict=True):
        draw_matrix(axis, rows, columns, share_of_row(values), percent)
        axis.set_title(plain(panel.label(name)), fontsize="medium")
        axis.set_xlabel("predicted class")
    for axis in axes[::COLUMNS]:
        axis.set_ylabel("true class, rows in percent")
    entitle(figure, where(panel))
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
    figure, axes = grid(len(distinct), min(9.0, 2.5 + 0.4 * width), min(12.0, 1.2 + 0.28 * height))
    for axis, (name, (rows, columns, values)) in zip(axes, distinct.items(), strict=True):
        image = draw_matrix(axis, rows, columns, values, lambda x: f"{x:.0f}")
        axis.set_xlabel("class")
        axis.set_ylabel("client")
        if len(distinct) > 1:
            axis.set_title(plain(panel.label(name)), fontsize="medium")
        figure.colorbar(image, ax=axis, shrink=0.8, label="training examples")
    entitle(figure, where(panel))
    return figure
