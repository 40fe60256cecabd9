"""The results of a study's runs in one tidy table, and beside it what is known of each run."""

from __future__ import annotations

import gzip
import io
import json
import math
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.studies.collection import natural
from fl_lightning.studies.grid import FIXED
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.csv_file import write_rows

FACTS = "study.json"
"""The file beside a table that says by run how it was set up, see :mod:`fl_lightning.studies.set_up`."""

Setting = tuple[str, ...]
"""The choices of a run, in the order of the axes; runs with the same setting differ only in their seed."""


class Row(NamedTuple):
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
        rows: rows in any order, or the columns of ``frame``; of two rows for the same run, round and metric, the later one
            counts.
        facts: what is known of each run, by its name.

    Attributes:
        frame: the table, with the columns ``run``, the axes, ``seed``, ``round``, ``metric`` and ``value``.
        runs: the name of each run, by its setting and seed.
    """

    def __init__(
        self, axes: Sequence[str], rows: Iterable[Row] | pd.DataFrame, facts: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.axes = tuple(axes)
        columns = [FIXED[0], *axes, *FIXED[1:]]
        frame = (
            rows if isinstance(rows, pd.DataFrame) else pd.DataFrame([(r.run, *r.setting, *r[2:]) for r in rows], None, columns)
        )
        frame = frame.drop_duplicates([*axes, "seed", "round", "metric"], keep="last")
        self.metrics: list[str] = sorted(frame["metric"].unique(), key=natural)
        """The names of the metrics, sorted, with numbers in names by value."""
        run = frame.groupby([*axes, "seed"], sort=False).ngroup()
        metric = frame["metric"].map({name: k for k, name in enumerate(self.metrics)})
        self.frame = frame.iloc[np.lexsort((frame["round"], metric, run))].reset_index(drop=True)
        first = self.frame.drop_duplicates([*axes, "seed"])
        self.runs: dict[tuple[Setting, int], str] = {
            (tuple(setting), seed): name for name, *setting, seed in first[["run", *axes, "seed"]].itertuples(index=False)
        }
        self._curves: dict[tuple[str, ...], pd.DataFrame] = {}
        self.facts = {name: dict((facts or {})[name]) for name in self.runs.values() if name in (facts or {})}

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    @property
    def settings(self) -> list[Setting]:
        """The settings in the order of the table."""
        return list(dict.fromkeys(setting for setting, _ in self.runs))

    def seeds(self, setting: Setting) -> list[int]:
        """Return the seeds of the runs of a setting."""
        return sorted(seed for other, seed in self.runs if other == setting)

    def facts_of(self, setting: Setting) -> dict[str, Any]:
        """Return what is known of a setting: of the run with its first seed."""
        return self.facts.get(self.runs[setting, self.seeds(setting)[0]], {})

    @cached_property
    def _places(self) -> dict[Any, Any]:
        """The places of a setting's metric in the frame."""
        found = self.frame.groupby([*self.axes, "metric"], sort=False).indices
        return found if self.axes else {(name,): places for name, places in found.items()}

    def curves(self, setting: Setting, metric: str) -> pd.DataFrame:
        """Return a metric with a row for each round and a column for each seed; empty if it was not logged.

        A value that is missing is NaN; one that was logged and is not finite is infinity, so that no mean leaves it out.
        """
        key = *setting, metric
        if key not in self._curves:
            rows = self.frame.iloc[self._places.get(key, [])]
            finite = rows.assign(value=rows["value"].astype(float).where(lambda own: np.isfinite(own), math.inf))
            self._curves[key] = finite.pivot(index="round", columns="seed", values="value")
        return self._curves[key]

    def of_clients(self, setting: Setting, metric: str) -> pd.DataFrame:
        """Return a client's metric as :meth:`curves`; of the first seed alone if seeds divide the data among other clients."""
        found = self.curves(setting, metric)
        return found if self.has_same_clients(setting) else found.iloc[:, :1].dropna()

    def has_same_clients(self, setting: Setting) -> bool:
        """Return whether each client has the same numbers of training examples in every seed, as far as they are known."""
        names = [name for name in self.metrics if name.startswith("partition/")]
        places = [place for name in names for place in self._places.get((*setting, name), [])]
        return not places or bool(self.frame.iloc[places].groupby("metric")["value"].nunique().max() == 1)

    def families(self, prefix: str) -> list[str]:
        """Return the ends of metric names after ``<prefix>/``: classes of ``val_f1``, clients of ``client_share``."""
        return [metric.removeprefix(f"{prefix}/") for metric in self.metrics if metric.startswith(f"{prefix}/")]

    def cells(self, setting: Setting, *prefixes: str) -> dict[str, float]:
        """Return the metrics ``<prefix>/...`` of the first seed in their last rounds: the cells of a matrix."""
        places = [k for name in self.metrics if name.startswith(prefixes) for k in self._places.get((*setting, name), [])]
        own = self.frame.iloc[places]
        last = own[own["seed"] == own["seed"].min()].drop_duplicates("metric", keep="last")
        return dict(zip(last["metric"], last["value"], strict=True))

    def rows(self) -> list[Row]:
        """Return the rows in the order of runs, metrics and rounds."""
        return [Row(run, tuple(own[:-4]), *own[-4:]) for run, *own in self.frame.itertuples(index=False)]

    def write(self, path: Path) -> None:
        """Write the table as CSV with 6 significant digits, compressed if the name ends in ``.gz``, and its facts beside it."""
        text = io.StringIO()
        lines = ((*cells, f"{value:.6g}") for *cells, value in self.frame.itertuples(index=False))
        write_rows(text, [list(self.frame.columns), *lines], end="\n")
        data = text.getvalue().encode()
        # Without a time in the header, so that the same table gives the same file.
        write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        write_whole(path.parent / FACTS, (json.dumps(self.facts, indent=1) + "\n").encode())

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
        whole = cls(axes, [])
        for path in paths:
            table = cls.read(path)
            if table.axes != whole.axes:
                raise ConfigurationError(
                    f"The run table '{path}' has the axes {', '.join(table.axes) or 'none'}, but the study's are "
                    f"{', '.join(axes) or 'none'}. Use tables of the same study."
                )
            if not table.facts:
                print(
                    f"Note: '{path.parent / FACTS}' is not there or is of other runs, so the report does not say how those of "
                    f"'{path}' were set up, nor which of their figures are not comparable.",
                    file=sys.stderr,
                )
            earlier = [row for row in whole.rows() if (row.setting, row.seed) not in table.runs]
            whole = cls(axes, [*earlier, *table.rows()], whole.facts | table.facts)
        return whole

    @classmethod
    def read(cls, path: Path) -> RunTable:
        """Read a table that :meth:`write` wrote.

        Raises:
            DataError: if the file is not such a table.
        """
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
            known = json.loads((path.parent / FACTS).read_bytes()) if (path.parent / FACTS).exists() else {}
            head, axes = list(frame.columns), list(frame.columns)[1 : 1 - len(FIXED)]
            kinds = {name: kind for name, kind in (("seed", int), ("round", int), ("value", float)) if name in head}
            frame = frame.astype(kinds)
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise DataError(f"Cannot read the run table '{path}' ({error}). Use one that 'compare' wrote.") from error
        if head != [FIXED[0], *axes, *FIXED[1:]]:
            raise DataError(
                f"'{path}' is not a run table: its columns are {', '.join(head)}, but it needs {FIXED[0]}, one for each axis, "
                f"and {', '.join(FIXED[1:])}. Use one that 'compare' wrote."
            )
        return cls(axes, frame, known)
