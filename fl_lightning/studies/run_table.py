"""The results of a study's runs in one tidy table: run, choices, seed, round, metric, value."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.csv_file import write_rows

FIXED = ("run", "seed", "round", "metric", "value")
"""Columns of every table; between the first two is one for each axis of the study."""

Setting = tuple[str, ...]
"""The choices of a run, in the order of the axes; runs with the same setting differ only in their seed."""


@dataclass(frozen=True)
class Row:
    """Hold one number.

    Attributes:
        run: name of the run.
        setting: its choice on each axis.
        seed: its seed.
        round_idx: index of the round, from 0.
        metric: name of the metric as logged; see docs/metrics.md.
        value: value in the metric's unit.
    """

    run: str
    setting: Setting
    seed: int
    round_idx: int
    metric: str
    value: float


class RunTable:
    """Hold the numbers of a study's runs.

    Args:
        axes: names of the axes.
        rows: rows in any order; of two rows for the same run, round and metric, the later one counts.
    """

    def __init__(self, axes: Sequence[str], rows: Iterable[Row]) -> None:
        self.axes = tuple(axes)
        self._runs: dict[tuple[Setting, int], str] = {}
        self._values: dict[tuple[Setting, str], dict[int, dict[int, float]]] = {}
        for row in rows:
            self._runs.setdefault((row.setting, row.seed), row.run)
            self._values.setdefault((row.setting, row.metric), {}).setdefault(row.seed, {})[row.round_idx] = row.value

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def has(self, setting: Setting, seed: int) -> bool:
        """Return whether the run is in the table."""
        return (setting, seed) in self._runs

    @property
    def settings(self) -> list[Setting]:
        """The settings in the order of the table."""
        return list(dict.fromkeys(setting for setting, _ in self._runs))

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, sorted, with numbers in names by value."""
        return sorted({metric for _, metric in self._values}, key=_natural)

    def seeds(self, setting: Setting) -> list[int]:
        """Return the seeds of the runs of a setting."""
        return sorted(seed for other, seed in self._runs if other == setting)

    def curves(self, setting: Setting, metric: str) -> dict[int, dict[int, float]]:
        """Return the metric by seed, then by round; empty if it was not logged."""
        found = self._values.get((setting, metric), {})
        return {seed: dict(sorted(found[seed].items())) for seed in sorted(found)}

    def of_clients(self, setting: Setting, metric: str) -> dict[int, dict[int, float]]:
        """Return a client's metric as :meth:`curves`; of the first seed alone if seeds divide the data among other clients."""
        found = self.curves(setting, metric)
        return found if self.has_same_clients(setting) else dict(list(found.items())[:1])

    def has_same_clients(self, setting: Setting) -> bool:
        """Return whether each client has the same numbers of training examples in every seed, as far as they are known."""
        members = [self.curves(setting, f"partition/{member}") for member in self.families("partition")]
        return all(len({tuple(curve.values()) for curve in by_seed.values()}) <= 1 for by_seed in members)

    def families(self, prefix: str) -> list[str]:
        """Return the ends of metric names after ``<prefix>/``: classes of ``val_f1``, clients of ``client_share``."""
        return [metric.removeprefix(f"{prefix}/") for metric in self.metrics if metric.startswith(f"{prefix}/")]

    def rows(self) -> Iterator[Row]:
        """Yield the rows in the order of runs, metrics and rounds."""
        for setting, seed in self._runs:
            yield from self.rows_of(setting, seed)

    def rows_of(self, setting: Setting, seed: int) -> Iterator[Row]:
        """Yield the rows of one run in the order of metrics and rounds."""
        for metric in self.metrics:
            for round_idx, value in sorted(self._values.get((setting, metric), {}).get(seed, {}).items()):
                yield Row(self._runs[setting, seed], setting, seed, round_idx, metric, value)

    def write(self, path: Path) -> None:
        """Write the table as CSV, compressed if the name ends in ``.gz``; numbers have 6 significant digits."""
        text = io.StringIO()
        rows = ([row.run, *row.setting, row.seed, row.round_idx, row.metric, f"{row.value:.6g}"] for row in self.rows())
        write_rows(text, [[FIXED[0], *self.axes, *FIXED[1:]], *rows], end="\n")
        data = text.getvalue().encode()
        # Without a time in the header, so that the same table gives the same file.
        write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    @classmethod
    def join(cls, axes: Sequence[str], paths: Iterable[Path]) -> RunTable:
        """Read several tables of one study as one.

        Args:
            axes: axes that the tables must have.
            paths: paths of the tables; if a run is in several, the last one counts.

        Raises:
            DataError: if a table cannot be read.
            ConfigurationError: if a table has other axes.
        """
        rows: dict[tuple[Setting, int], list[Row]] = {}
        for path in paths:
            table = cls.read(path)
            if table.axes != tuple(axes):
                raise ConfigurationError(
                    f"The run table '{path}' has the axes {', '.join(table.axes) or 'none'}, but the study's are "
                    f"{', '.join(axes) or 'none'}. Use tables of the same study."
                )
            rows |= {key: list(table.rows_of(*key)) for key in table._runs}
        return cls(axes, [row for found in rows.values() for row in found])

    @classmethod
    def read(cls, path: Path) -> RunTable:
        """Read a table that :meth:`write` wrote.

        Raises:
            DataError: if the file is not such a table.
        """
        try:
            data = path.read_bytes()
            text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
            header, *rows = list(csv.reader(io.StringIO(text))) or [[]]
        except (OSError, ValueError, EOFError, zlib.error, csv.Error) as error:
            raise DataError(f"Cannot read the run table '{path}' ({error}). Use one that 'compare' wrote.") from error
        axes = header[1 : len(header) - len(FIXED) + 1]
        if tuple(header[:1] + header[len(axes) + 1 :]) != FIXED:
            raise DataError(
                f"'{path}' is not a run table: its columns are {', '.join(header) or 'none'}, but it needs {FIXED[0]}, one for "
                f"each axis, and {', '.join(FIXED[1:])}. Use one that 'compare' wrote."
            )
        try:
            return cls(axes, [_row(cells, len(header)) for cells in rows if cells])
        except ValueError as error:
            raise DataError(f"The run table '{path}' is damaged: {error}. Write it again with 'compare'.") from error


def _row(cells: list[str], columns: int) -> Row:
    if len(cells) != columns:
        raise ValueError(f"a row has {len(cells)} cells, but the header has {columns}")
    run, *setting, seed, round_idx, metric, value = cells
    return Row(run, tuple(setting), int(seed), int(round_idx), metric, float(value))


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("/")]
