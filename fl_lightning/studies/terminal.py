"""Text charts of curves over rounds, for the end of a study on the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

import pandas as pd

from fl_lightning.studies.execution import Job
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.tables import finite

_CLEAR = "\r\033[K"
_MARKS = "o*+x#@"
_WIDTH, _HEIGHT = 60, 14


class LiveStatus:
    """Show the progress of a study's runs in one line that is overwritten on a terminal; elsewhere show nothing."""

    def __init__(self) -> None:
        self.enabled = sys.stdout.isatty()

    def show(self, jobs: Sequence[Job]) -> None:
        """Write the line again."""
        if self.enabled:
            text = "   ".join(f"{job.name}: {job.progress()}" for job in jobs)
            width = shutil.get_terminal_size().columns - 1
            print(f"{_CLEAR}{text[:width]}", end="", flush=True)

    def clear(self) -> None:
        """Clear the line, so that permanent output can follow."""
        if self.enabled:
            print(_CLEAR, end="", flush=True)


def print_curves(table: RunTable, panels: list[Panel], measure: Measure) -> None:
    """Print the mean curves of a study that compares up to six choices on one axis; larger studies have figures."""
    if len(panels) != 1 or not 1 <= len(panels[0].settings) <= len(_MARKS):
        return
    (panel,) = panels
    curves = panel.curves(table, measure.name)
    means = {panel.label(name): mean_curve(own * measure.scale) for name, own in zip(panel.names, curves, strict=True)}
    print(text_chart(means, measure, len({seed for own in curves for seed in own})))


def mean_curve(curves: pd.DataFrame) -> dict[int, float]:
    """Average over seeds, in the rounds (from 0) that all of them have and in which all values are finite."""
    means = finite(curves).dropna().mean(axis=1)
    return dict(zip(means.index, means, strict=True))


def text_chart(curves: Mapping[str, Mapping[int, float]], measure: Measure, seeds: int) -> str:
    """Draw curves with a mark for each, and print the last value of each below.

    Args:
        curves: the value of each round, from 0, by name; at most six.
        measure: metric that is shown.
        seeds: number of seeds over which the curves are averaged.

    Returns:
        Lines of text; empty if no curve has two rounds.
    """
    known = {name: curve for name, curve in curves.items() if curve}
    values = [y for curve in known.values() for y in curve.values()]
    last = max((max(curve) for curve in known.values()), default=0)
    if not values or not last:
        return ""
    low, high = min(values), max(values)
    span = high - low or 1.0
    cells = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    for mark, curve in zip(_MARKS, known.values(), strict=False):
        for column in range(_WIDTH):
            y = _between(curve, column / (_WIDTH - 1) * last)
            if y is not None:
                cells[round((high - y) / span * (_HEIGHT - 1))][column] = mark
    lines = [f"{measure.title} over rounds" + (f", mean of {seeds} seeds" if seeds > 1 else "")]
    for row, cell in enumerate(cells):
        level = f"{high - row / (_HEIGHT - 1) * span:.4g}" if row in (0, _HEIGHT // 2, _HEIGHT - 1) else ""
        lines.append(f"{level:>10} |{''.join(cell)}".rstrip())
    lines.append(" " * 11 + "+" + "-" * _WIDTH)
    lines.append(f"{'round':>10}  1{last + 1:>{_WIDTH - 1}}")
    width = max(map(len, known))
    for mark, (name, curve) in zip(_MARKS, known.items(), strict=False):
        rounds, value = max(curve) + 1, f"{curve[max(curve)]:.{measure.digits}f}"
        lines.append(f"  {mark} {name:<{width}}  {value} after {rounds} round{'s' * (rounds != 1)}")
    return "\n".join(lines)


def _between(curve: Mapping[int, float], position: float) -> float | None:
    """Interpolate a curve between two of its rounds; None outside of them."""
    before = max((r for r in curve if r <= position + 1e-9), default=None)
    after = min((r for r in curve if r >= position - 1e-9), default=None)
    if before is None or after is None:
        return None
    share = 0.0 if before == after else (position - before) / (after - before)
    return curve[before] + share * (curve[after] - curve[before])
