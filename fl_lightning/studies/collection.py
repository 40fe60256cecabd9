"""The log files of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from fl_lightning.utilities.csv_file import read_rows

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
    clients = (*_of_clients(folder, "partition", 0), *_of_clients(folder, "client_comparison", -1))
    numbers = [*_metrics(folder), *_confusion(folder), *clients]
    last = max((round_idx for round_idx, _, _ in numbers), default=0)
    kept = {metric for metric in {metric for _, metric, _ in numbers} if any(fnmatchcase(metric, p) for p in keep)}
    return [(last if round_idx < 0 else round_idx, metric, value) for round_idx, metric, value in numbers if metric in kept]


def rounds_logged(folder: Path) -> set[int]:
    """Return the rounds that a run's logs contain."""
    return {round_idx for round_idx, _, _ in _metrics(folder)}


def lines_logged(folder: Path) -> int:
    """Count the complete lines of a run's logs."""
    return sum(len(read_rows(version / "metrics.csv")) - 1 for version in _versions(folder))


def _versions(folder: Path) -> list[Path]:
    found = (path for path in (folder / LOGS).glob("version_*") if path.name.rpartition("_")[2].isdigit())
    return sorted(found, key=lambda path: int(path.name.rpartition("_")[2]))


def _metrics(folder: Path) -> Iterator[Logged]:
    for version in _versions(folder):
        header, *rows = read_rows(version / "metrics.csv")
        for row in rows:
            line = {}
            for metric, text in zip(header, row, strict=True):
                with contextlib.suppress(ValueError):  # an empty cell
                    line[metric] = float(text)
            where = line.get("round", line.get("epoch"))
            if where is not None:
                kept = ((metric, value) for metric, value in line.items() if metric not in ("round", "epoch", "step"))
                yield from ((-1 if metric.startswith("test") else int(where), metric, value) for metric, value in kept)


def _confusion(folder: Path) -> Iterator[Logged]:
    """Yield the last confusion matrix, as ``val_confusion/<true>/<predicted>`` of the last round."""
    found = [path for version in _versions(folder) if (path := version / "val_confusion.csv").exists()]
    for true, *counts in read_rows(found[-1])[1:] if found else ():
        yield from ((-1, f"val_confusion/{true}/{k}", float(count)) for k, count in enumerate(counts))


def _of_clients(folder: Path, name: str, round_idx: int) -> Iterator[Logged]:
    """Yield a table of clients as ``<name>/<client>/<column>``.

    That is ``partition``, the training examples of each class, if classes are known; or ``client_comparison``, the scores of
    local, global and personalised models.
    """
    header, *lines = read_rows(folder / f"{name}.csv")
    first = header.index("EMD") + 1 if "EMD" in header else len(header) if name == "partition" else 2
    for client, *values in ((line[0].replace("/", "_"), *line[first:]) for line in lines):
        yield from ((round_idx, f"{name}/{client}/{c}", float(x)) for c, x in zip(header[first:], values, strict=True))


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names of metrics, with numbers in them by value."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("/")]
