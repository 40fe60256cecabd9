"""Write the matrix of models x sites: as CSV, in Markdown, as heat maps, and to W&B."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.evaluation.matrix import Cell
from fl_lightning.messages import EvalReport
from fl_lightning.reporting.matrices import draw_matrix, new_figure

COLUMNS = ("model", "metric", "site", "n", "value", "low", "high", "reason")
CURVE = ("model", "metric", "site", "n", "point")


def rows_of(cells: Sequence[Cell]) -> list[list[Any]]:
    """Return a row for each cell, with None for what there is not."""
    return [[one.model, one.metric, one.site, *_numbers(one.report), one.report.reason] for one in cells]


def _numbers(report: EvalReport) -> list[Any]:
    bounds = report.interval or (None, None)
    return [report.n or None, None if math.isnan(report.value) else report.value, *bounds]


def points_of_curves(cells: Sequence[Cell]) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows of all points of curves; a number that is not told is None."""
    curves = [one for one in cells if one.report.points]
    width = max((len(one.report.points) for one in curves), default=0)
    rows: list[list[Any]] = []
    for one in curves:
        columns = [tensor.flatten().tolist() for tensor in one.report.points]
        for place in range(max(map(len, columns))):
            told = [column[place] if place < len(column) else math.nan for column in columns]
            rows.append([one.model, one.metric, one.site, one.report.n, place, *(None if math.isnan(x) else x for x in told)])
    return [*CURVE, *(f"value {k}" for k in range(width))], rows


def _of(cells: Sequence[Cell], metric: str) -> tuple[list[str], list[str], dict[tuple[str, str], EvalReport]]:
    own = [one for one in cells if one.metric == metric]
    models, sites = list(dict.fromkeys(one.model for one in own)), list(dict.fromkeys(one.site for one in own))
    return models, sites, {(one.model, one.site): one.report for one in own}


def in_words(report: EvalReport, note: int = 0) -> str:
    """Return a cell: the value with its interval and n, or the number of the note that explains why it is missing."""
    if report.points:
        return f"curve (n={report.n})"
    if math.isnan(report.value):
        return f"[{note}]" if note else "-"
    bounds = "" if report.interval is None else f" [{report.interval[0]:.3f}, {report.interval[1]:.3f}]"
    return f"{report.value:.3f}{bounds} (n={report.n})" + (f" [{note}]" if note else "")


def markdown(cells: Sequence[Cell], part: str, level: float) -> str:
    """Return the matrix of each metric as a Markdown table, with the reasons of empty cells below."""
    lines: list[str] = []
    for metric in dict.fromkeys(one.metric for one in cells):
        models, sites, reports = _of(cells, metric)
        notes = list(dict.fromkeys(one.reason for one in reports.values() if one.reason))
        lines += [f"## {metric}", "", f"On the {part} examples; in brackets the {level:.0%} bootstrap interval.", ""]
        lines += [f"| model | {' | '.join(map(_escaped, sites))} |", "|---" * (len(sites) + 1) + "|"]
        for model in models:
            shown = []
            for site in sites:
                report = reports[model, site]
                shown.append(in_words(report, notes.index(report.reason) + 1 if report.reason else 0))
            lines.append(f"| {_escaped(model)} | {' | '.join(shown)} |")
        lines += ["", *(f"[{number}]: {_escaped(note)}  " for number, note in enumerate(notes, 1)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def draw(cells: Sequence[Cell], metric: str, path: Path) -> bool:
    """Draw a heat map of a metric's values, and return whether there were any and matplotlib is installed."""
    models, sites, reports = _of(cells, metric)
    values = [[reports[model, site].value for site in sites] for model in models]
    known = [value for row in values for value in row if math.isfinite(value)]
    figure = new_figure(2.2 + 0.9 * len(sites), 1.4 + 0.5 * len(models)) if known else None
    if figure is None:
        return False
    axis = figure.subplots()
    texts = [[f"{reports[model, site].value:.3f}\nn={reports[model, site].n}" for site in sites] for model in models]
    image = draw_matrix(axis, models, sites, values, texts, "Blues", few=(len(models), len(sites)))
    axis.tick_params(axis="x", rotation=30)
    figure.colorbar(image, ax=axis, label=metric)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return True
