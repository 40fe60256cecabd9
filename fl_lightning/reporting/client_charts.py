"""Charts of W&B with a line for each client: one for each figure, all drawn from a single table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.reporting.rounds import quantiles
from fl_lightning.reporting.wandb import ONCE, FederationWandbLogger

TABLE = "client_charts"
"""Name of the table in W&B; its columns are ``round``, ``line`` (a client, or a quantile over clients) and the figures."""
_SECTION = "by_client"
"""Section of W&B with the charts, ``by_client/<figure>``."""
CHART = "wandb/lineseries/v0"
"""W&B's own chart that is drawn from the table."""
FIELDS = {"step": "round", "lineKey": "line"}
"""Columns of the table by the chart's names for them, to which each chart adds its ``lineVal``."""
_MOST_ROWS = 10_000
"""The largest number of rows of a table that W&B draws."""

Row = list[Any]


def chart_rows(header: Sequence[str], rows: Sequence[Row], by_client: bool) -> tuple[list[str], list[Row]]:
    """Return the columns and the rows of the charts' table.

    Args:
        header: columns of ``client_rounds``: the round, the client, and its figures.
        rows: its rows, round by round; None is a missing figure.
        by_client: whether each client has a line; otherwise each quantile over the clients of a round.
    """
    shown = [k for k, name in enumerate(header) if k > 1 and f"client_{name}" not in ONCE]
    columns = ["round", "line", *(header[k] for k in shown)]
    if by_client:
        lines = [[row[0], row[1], *(row[k] for k in shown)] for row in rows]
    else:
        lines = [line for round_, own in groupby(rows, lambda row: row[0]) for line in _quantiles(round_, list(own), shown)]
    return columns, _thin(lines)


def _quantiles(round_: int, rows: Sequence[Row], shown: Sequence[int]) -> Iterator[Row]:
    """Yield a line for each quantile of the clients of a round."""
    found = quantiles({f"{k}/{i}": row[k] for k in shown for i, row in enumerate(rows) if row[k] is not None})
    members = dict.fromkeys(name.partition("/")[2] for name in found)
    for member in members:
        yield [round_, member, *(found.get(f"{k}/{member}") for k in shown)]


def _thin(lines: list[Row]) -> list[Row]:
    """Keep every n-th round, with the last, so that W&B draws the table."""
    every = math.ceil(len(lines) / _MOST_ROWS)
    return [line for line in lines if every == 1 or (lines[-1][0] - line[0]) % every == 0]


def log_client_charts(trainer: Trainer, header: Sequence[str], rows: Sequence[Row], by_client: bool) -> None:
    """Send the charts to a :class:`FederationWandbLogger`, where they replace earlier ones of the run.

    Args:
        trainer: Trainer with the loggers; call this on the first rank.
        header: as for :func:`chart_rows`.
        rows: as for :func:`chart_rows`; at least one.
        by_client: as for :func:`chart_rows`.
    """
    import wandb  # slow to import, and not every run uses it

    from fl_lightning.compat.wandb import chart_of_table

    columns, lines = chart_rows(header, rows, by_client)
    for logger in trainer.loggers:
        if not isinstance(logger, FederationWandbLogger):
            continue
        table = wandb.Table(columns=[*columns], data=lines)
        charts = {
            f"{_SECTION}/{name}": chart_of_table(
                table, TABLE, CHART, {**FIELDS, "lineVal": name}, {"title": name, "xname": "round"}
            )
            for name in columns[2:]
        }
        logger.log_metrics({**charts, "round": float(rows[-1][0])})
