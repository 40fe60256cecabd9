"""The log files of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

LOGS = "csv"
"""Folder of the CSV logger's versions in a run's folder; a resumed run adds a version."""

Logged = tuple[int, str, float]
"""The index of a round, the name of a metric, and its value."""


def read_run(folder: Path, keep: Sequence[str]) -> list[Logged]:
    """Read a run's log, its last confusion matrix, its partition and its comparison of clients' models.

    Args:
        folder: folder of the run.
        keep: patterns of the metrics to keep, such as ``val_*``.

    Returns:
        The numbers; of two for the same round and metric, which a resumed run logs again, the later one counts.
    """
    numbers = [*_metrics(folder), *_confusion(folder), *_partition(folder), *_comparison(folder)]
    last = max((round_idx for round_idx, _, _ in numbers), default=0)
    kept = {metric for metric in {metric for _, metric, _ in numbers} if any(fnmatchcase(metric, p) for p in keep)}
    return [(last if round_idx < 0 else round_idx, metric, value) for round_idx, metric, value in numbers if metric in kept]


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


def _metrics(folder: Path) -> Iterator[Logged]:
    for version in _versions(folder):
        header, *rows = read_lines(version / "metrics.csv")
        for row in rows:
            line = {}
            for metric, text in zip(header, row, strict=True):
                try:
                    line[metric] = float(text)
                except ValueError:  # an empty cell
                    continue
            where = line.get("round", line.get("epoch"))
            if where is not None:
                for metric, value in line.items():
                    if metric not in ("round", "epoch", "step"):
                        yield -1 if metric.startswith("test") else int(where), metric, value


def _confusion(folder: Path) -> Iterator[Logged]:
    """Yield the last confusion matrix, as ``val_confusion/<true>/<predicted>`` of the last round."""
    for path in reversed([version / "val_confusion.csv" for version in _versions(folder)]):
        if path.exists():
            _, *lines = read_lines(path)
            for true, *counts in lines:
                yield from ((-1, f"val_confusion/{true}/{k}", float(count)) for k, count in enumerate(counts))
            return


def _partition(folder: Path) -> Iterator[Logged]:
    """Yield training examples as ``partition/<client>/<class>`` of round 0, if classes are known."""
    header, *lines = read_lines(folder / "partition.csv")
    if "EMD" in header:
        yield from _of_clients("partition", 0, header, lines, header.index("EMD") + 1)


def _comparison(folder: Path) -> Iterator[Logged]:
    """Yield local only, global and personalised scores as ``client_comparison/<client>/<model>`` of the last round."""
    header, *lines = read_lines(folder / "client_comparison.csv")
    yield from _of_clients("client_comparison", -1, header, lines, 2)


def _of_clients(prefix: str, round_idx: int, header: list[str], lines: list[list[str]], first: int) -> Iterator[Logged]:
    for line in lines:
        name = line[0].replace("/", "_")
        yield from (
            (round_idx, f"{prefix}/{name}/{column}", float(x)) for column, x in zip(header[first:], line[first:], strict=True)
        )


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names of metrics, with numbers in them by value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("/")]
