"""What each client did over the whole run."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.callbacks.hooks import FederationCallback
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.reporting.tables import log_table
from fl_lightning.types import ClientUpdate

COLUMNS = ("client", "rounds", "examples", "steps", "last loss", "last score", "mean share", "seconds", "MB down", "MB up")
_SUMS = ("rounds", "steps", "share", "seconds", "down", "up")


class ClientTable(FederationCallback):
    """Sums up each client when a fit ends: a table in W&B, ``clients`` there, and ``clients.csv`` in the run's folder.

    A row for every client that took part: its rounds, training examples, optimizer steps in all, loss and score (where the
    strategy asks for one) of its last round, mean of its shares p_k / sum p_k, seconds of training in all, and megabytes that
    were sent to it and that it sent. What there is none of is left empty.

    Args:
        enabled: whether a fit makes it.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._sums: dict[int, dict[str, float]] = {}
        self._resumes = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin anew, unless a checkpoint was loaded for this fit."""
        if not self._resumes:
            self._sums = {}
        self._resumes = False

    def on_aggregated(self, trainer: Trainer, pl_module: LightningModule, updates: list[ClientUpdate]) -> None:
        """Add a round."""
        if not self.enabled:
            return
        for update in updates:
            own = self._sums.setdefault(
                update.client, dict.fromkeys(("rounds", "steps", "share", "seconds", "down", "up"), 0.0)
            )
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
        """Write the table, on the first rank."""
        quick: bool = trainer.fast_dev_run  # type: ignore[attr-defined]
        if not self._sums or quick or not trainer.is_global_zero:
            return
        data = getattr(trainer, "datamodule", None)
        rows = [self._row(client, own, data) for client, own in sorted(self._sums.items())]
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "clients.csv").open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        log_table(trainer, "clients", COLUMNS, rows, max(0, trainer.current_epoch - 1))

    def _row(self, client: int, own: dict[str, float], data: Any) -> list[Any]:
        name = data.client_name(client) if isinstance(data, FederatedDataModule) else str(client)
        figures = [own["loss"], own["score"], own["share"] / own["rounds"], own["seconds"], own["down"], own["up"]]
        counts = [int(own[count]) for count in ("rounds", "examples", "steps")]
        return [name, *counts, *(None if math.isnan(x) else x for x in figures)]

    def state_dict(self) -> dict[str, Any]:
        """The sums so far."""
        return {"sums": {client: dict(own) for client, own in self._sums.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self._sums = {int(client): dict(own) for client, own in state_dict["sums"].items()}
        self._resumes = True
