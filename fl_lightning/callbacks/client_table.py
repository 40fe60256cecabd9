"""Tables of what each client did during the run."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.callbacks.round_file import append_rows, client_name, forget_rounds, read_rows
from fl_lightning.reporting.client_charts import log_client_charts
from fl_lightning.reporting.rounds import MOST_COLUMNS, client_figures
from fl_lightning.reporting.tables import log_table
from fl_lightning.types import ClientUpdate
from fl_lightning.utilities.csv_file import write_csv

COLUMNS = ("client", "rounds", "examples", "steps", "last loss", "last score", "mean share", "seconds", "MB down", "MB up")
_SUMS = ("rounds", "steps", "share", "seconds", "down", "up")
_MOST_ROWS = 100_000
"""The largest number of rows of ``client_rounds`` in W&B."""


class ClientTable(FederationCallback):
    """Write what each client did to the run's folder, and at the end of a fit to W&B as ``clients`` and ``client_rounds``.

    ``clients.csv`` has a row for every client that took part: its number of rounds, training examples, total optimizer steps,
    loss and score (if the strategy needs one) of its last round, mean share p_k / sum p_k, total seconds of training, and
    megabytes received and sent. ``client_rounds.csv`` has a row for every client and round, with every value that the log
    could contain as a column; W&B gets the last 100,000 rows. Cells without a value are empty. W&B also gets a chart for each
    figure, with a line for each client: after rounds 1, 2, 4, 8 and so on, and at the end.

    Args:
        enabled: whether a fit writes the tables.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._sums: dict[int, dict[str, float]] = {}
        self._resumes, self._begins = False, True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clear the sums, unless a checkpoint was loaded for this fit."""
        if not self._resumes:
            self._sums = {}
        self._resumes, self._begins = False, True

    def on_round_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Remove this round and later ones from the file, before the first round of a fit."""
        if self._begins and self._writes(trainer):
            forget_rounds(_rounds_of(trainer), round_idx)
        self._begins = False

    def _writes(self, trainer: Trainer) -> bool:
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        return self.enabled and trainer.is_global_zero and not quick

    def on_aggregated(self, trainer: Trainer, pl_module: LightningModule, updates: list[ClientUpdate]) -> None:
        """Add the rows of a round."""
        if not self.enabled:
            return
        if self._writes(trainer):
            _write_round(trainer, updates)
            number = trainer.current_epoch + 1
            if number & (number - 1) == 0:  # a power of two: all tables together are then twice as long as the last
                _draw(trainer)
        for update in updates:
            own = self._sums.setdefault(update.client, dict.fromkeys(_SUMS, 0.0))
            own["rounds"] += 1
            own["examples"] = float(update.num_examples)
            own["loss"] = math.nan if update.train_loss is None else update.train_loss
            own["score"] = math.nan if update.score is None else update.score
            for name, value in (
                ("steps", update.num_steps),
                ("share", update.share),
                ("seconds", update.seconds),
                ("down", update.bytes_down / 1e6),
                ("up", update.bytes_up / 1e6),
            ):
                own[name] += value

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the tables, on the first rank."""
        if not self._sums or not self._writes(trainer):
            return
        rows = [self._row(trainer, client, own) for client, own in sorted(self._sums.items())]
        write_csv(Path(trainer.default_root_dir) / "clients.csv", COLUMNS, rows)
        last = max(0, trainer.current_epoch - 1)
        log_table(trainer, "clients", COLUMNS, rows, last)
        if _uses_wandb(trainer) and _rounds_of(trainer).exists():
            header, rows = _draw(trainer)
            log_table(trainer, "client_rounds", header, rows[-_MOST_ROWS:], last)

    def _row(self, trainer: Trainer, client: int, own: dict[str, float]) -> list[Any]:
        figures = [own["loss"], own["score"], own["share"] / own["rounds"], own["seconds"], own["down"], own["up"]]
        counts = [int(own[count]) for count in ("rounds", "examples", "steps")]
        return [client_name(trainer, client), *counts, *(None if math.isnan(x) else x for x in figures)]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums so far."""
        return {"sums": {client: dict(own) for client, own in self._sums.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the sums."""
        self._sums = {int(client): dict(own) for client, own in state_dict["sums"].items()}
        self._resumes = True


def _rounds_of(trainer: Trainer) -> Path:
    return Path(trainer.default_root_dir) / "client_rounds.csv"


def _uses_wandb(trainer: Trainer) -> bool:
    return any(isinstance(logger, WandbLogger) for logger in trainer.loggers)


def _draw(trainer: Trainer) -> tuple[list[str], list[list[Any]]]:
    """Send the charts of all rounds so far, also of those before a resume, and return the header and the rows of the file."""
    if not _uses_wandb(trainer):
        return [], []
    header, *lines = read_rows(_rounds_of(trainer))
    rows = [_values(line) for line in lines]
    by_client = trainer.datamodule.num_clients <= MOST_COLUMNS  # type: ignore[attr-defined]
    log_client_charts(trainer, header, rows, by_client=by_client)
    return header, rows


def _write_round(trainer: Trainer, updates: Sequence[ClientUpdate]) -> None:
    """Append the rows of a round to the file; the first round decides the columns."""
    path = _rounds_of(trainer)
    figures = [client_figures(update) for update in updates]
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            columns = next(csv.reader(file))
    else:
        logged = {name for update in updates for name in update.metrics}
        names = {name: None for own in figures for name in own}
        columns = ["round", "client", *(n for n in names if n not in logged), *sorted(logged & names.keys())]
    rows = [
        [update.round_idx, client_name(trainer, update.client), *(own.get(name, "") for name in columns[2:])]
        for update, own in zip(updates, figures, strict=True)
    ]
    append_rows(path, columns, rows)


def _values(line: list[str]) -> list[Any]:
    """Convert a row to the types that W&B expects: the round, the client, and numbers."""
    return [int(line[0]), line[1], *(float(cell) if cell else None for cell in line[2:])]
