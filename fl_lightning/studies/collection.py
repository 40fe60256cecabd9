"""Turn the log files of a run into rows of the table."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from fl_lightning.studies.grid import Run
from fl_lightning.studies.run_table import Row

LOGS = "csv"
"""Folder of the CSV logger's versions in a run's folder; a resumed run adds a version."""


def read_run(run: Run, folder: Path, keep: Sequence[str]) -> list[Row]:
    """Read a run's log, its last confusion matrix and its partition.

    Args:
        run: run of the study.
        folder: folder of the run.
        keep: patterns of the metrics to keep, such as ``val_*``.
    """
    numbers = [*_metrics(folder), *_confusion(folder), *_partition(folder), *_comparison(folder)]
    last = max((round_idx for round_idx, _, _ in numbers), default=0)
    kept = {metric for metric in {metric for _, metric, _ in numbers} if any(fnmatchcase(metric, p) for p in keep)}
    return [
        Row(run.name, run.setting, run.seed, last if round_idx < 0 else round_idx, metric, value)
        for round_idx, metric, value in numbers
        if metric in kept
    ]


def rounds_logged(folder: Path) -> set[int]:
    """Return the rounds that a run's logs contain."""
    return {round_idx for round_idx, _, _ in _metrics(folder)}


def lines_logged(folder: Path) -> int:
    """Count the complete lines of a run's logs."""
    return sum(len(read_lines(version / "metrics.csv")) - 1 for version in _versions(folder))


def _versions(folder: Path) -> list[Path]:
    found = (path for path in (folder / LOGS).glob("version_*") if path.name.rpartition("_")[2].isdigit())
    return sorted(found, key=lambda path: int(path.name.rpartition("_")[2]))


def read_lines(path: Path) -> list[list[str]]:
    """Return the header and the complete rows of a CSV file; a killed process may leave half a line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    except (OSError, csv.Error):
        rows = []
    return [row for row in rows if len(row) == len(rows[0])] or [[]]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _metrics(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield round, metric and value; values that a resumed run logged again come later."""
    for version in _versions(folder):
        header, *rows = read_lines(version / "metrics.csv")
        for row in rows:
            line = {metric: _number(text) for metric, text in zip(header, row, strict=True)}
            where = line.get("round") if line.get("round") is not None else line.get("epoch")
            if where is not None:
                for metric, value in line.items():
                    if value is not None and metric not in ("round", "epoch", "step"):
                        yield -1 if metric.startswith("test") else int(where), metric, value


def _confusion(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield the last confusion matrix, as ``val_confusion/<true>/<predicted>`` of the last round."""
    for path in reversed([version / "val_confusion.csv" for version in _versions(folder)]):
        if path.exists():
            _, *lines = read_lines(path)
            for true, *counts in lines:
                yield from ((-1, f"val_confusion/{true}/{k}", float(count)) for k, count in enumerate(counts))
            return


def _partition(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield training examples as ``partition/<client>/<class>`` of round 0, if classes are known."""
    header, *lines = read_lines(folder / "partition.csv")
    if "EMD" in header:
        first = header.index("EMD") + 1
        for line in lines:
            name = line[0].replace("/", "_")
            yield from (
                (0, f"partition/{name}/{label}", float(n)) for label, n in zip(header[first:], line[first:], strict=True)
            )


def _comparison(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Yield local only, global and personalised scores as ``client_comparison/<client>/<model>`` of the last round."""
    header, *lines = read_lines(folder / "client_comparison.csv")
    for client, _, *values in lines:
        name = client.replace("/", "_")
        yield from ((-1, f"client_comparison/{name}/{model}", float(x)) for model, x in zip(header[2:], values, strict=True))


def final_value(rows: Sequence[Row], metric: str) -> float:
    """Return a metric's value in the last round that has it; NaN if none has."""
    own = [row for row in rows if row.metric == metric]
    return max(own, key=lambda row: row.round_idx).value if own else math.nan
