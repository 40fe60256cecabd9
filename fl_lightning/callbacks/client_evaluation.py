"""Evaluation at the clients: the global model on each one's test part, and at the end against models of its own."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from fl_lightning.callbacks.exchange import spread
from fl_lightning.callbacks.round import Federation
from fl_lightning.clients.client_evaluation import ClientEvaluation
from fl_lightning.reporting.client_scores import comparison_table, spread_of_clients
from fl_lightning.reporting.tables import log_table, text_table
from fl_lightning.types import Snapshot

_SETTING = "federation.client_evaluation.metric"
_SHOWN = 30
"""Clients that the terminal shows; the files have all."""

Turns = Callable[[int], Sequence[Sequence[tuple[int, int]]]]


class ClientScores:
    """What was measured so far, and the model that the federation began with: state of the run."""

    def __init__(self) -> None:
        self.rounds: dict[int, Tensor] = {}
        self.start: Snapshot | None = None

    def state_dict(self) -> dict[str, Any]:
        """Everything, for a checkpoint."""
        start = None if self.start is None else [self.start.vector, self.start.counters]
        return {"rounds": dict(self.rounds), "start": start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take everything back."""
        self.rounds = dict(state["rounds"])
        self.start = None if state["start"] is None else Snapshot(*state["start"])


class ClientEvaluator:
    """Measures models on the clients' own test parts; every rank takes its share of the clients.

    Args:
        settings: what and when.
        federation: the data, the server's model and who measures.
        scores: where the results are kept.
        turns: given a number of rounds, when each client trained in them: (round, period).
    """

    def __init__(self, settings: ClientEvaluation, federation: Federation, scores: ClientScores, turns: Turns) -> None:
        self._settings, self._parts, self._scores, self._turns = settings, federation, scores, turns
        self._sizes = federation.data.division.test.sizes if federation.data.division.test is not None else torch.zeros(0)

    def begin_round(self, round_idx: int) -> None:
        """Keep the model that the federation begins with, where clients will start from it by themselves."""
        if round_idx == 0:
            self._scores.rounds = {}
            self._scores.start = self._snapshot() if self._settings.compare_alone else None

    def _snapshot(self) -> Snapshot:
        server = self._parts.server
        return Snapshot(server.vector().cpu().clone(), server.counters().cpu().clone())

    def end_round(self, round_idx: int) -> dict[str, float]:
        """Evaluate the new global model at all clients, if it is time; see ``spread_of_clients``."""
        every = self._settings.every_n_rounds
        if not every or (round_idx + 1) % every:
            return {}
        values = self._scores.rounds[round_idx] = self._global()
        return spread_of_clients(values, self._sizes, self._settings.higher_is_better)

    def _global(self) -> Tensor:
        module = self._parts.local.load(self._parts.server)
        return torch.tensor(self._each(lambda client: self._measure(module, client)), dtype=torch.float64)

    def _measure(self, module: LightningModule, client: int) -> float:
        return self._parts.measures.on_client(module, self._settings.metric, client, "test", _SETTING)

    def _each(self, measure: Callable[[int], Any]) -> list[Any]:
        return spread(self._parts.trainer, self._parts.data.num_clients, measure)

    # ---------------------------------------------------------------- the end

    def conclude(self, rounds: int) -> None:
        """Evaluate the final model, let clients fine-tune it and train alone, and write both tables.

        Args:
            rounds: how many there were.
        """
        if not rounds:
            return
        if rounds - 1 not in self._scores.rounds:
            self._scores.rounds[rounds - 1] = self._global()
        columns: dict[str, Tensor] = {"global": self._scores.rounds[rounds - 1]}
        if self._settings.compare_alone:
            columns = {"local only": self._alone(rounds), **columns}
        if self._settings.personal_epochs:
            columns["personalised"] = self._personal(rounds)
        data = self._parts.data
        names = [data.client_name(client) for client in range(data.num_clients)]
        header, rows = comparison_table(names, self._sizes, columns, self._settings.higher_is_better)
        table = [[names[k], *(float(v[k]) for v in self._scores.rounds.values())] for k in range(len(names))]
        trainer = self._parts.trainer
        self._write("client_evaluation", ["client", *(f"round {r}" for r in self._scores.rounds)], table)
        if self._settings.compares:
            self._write("client_comparison", header, rows)
        if trainer.is_global_zero:
            metric = self._settings.metric
            name = metric if isinstance(metric, str) else type(metric).__name__
            print(f"{name} on the clients' own test examples, after round {rounds - 1}:")
            print(text_table(header, [*rows[:-1][:_SHOWN], rows[-1]]))

    def _write(self, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        trainer = self._parts.trainer
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        log_table(trainer, name, header, rows)
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows])

    def _personal(self, rounds: int) -> Tensor:
        trainer = self._parts.local.with_settings(max_epochs=self._settings.personal_epochs, max_steps=-1)

        def personalise(client: int) -> float:
            trainer.train(client, self._parts.data, self._parts.server, rounds)
            return self._measure(trainer.module, client)

        return torch.tensor(self._each(personalise), dtype=torch.float64)

    def _alone(self, rounds: int) -> Tensor:
        """Every client from the federation's first model, by itself, round for round as it trained in the federation."""
        server, start = self._parts.server, self._scores.start
        trainer = self._parts.local.with_settings()
        turns = self._turns(rounds)

        def train_alone(client: int) -> float:
            model = start
            for round_idx, period in turns[client]:
                update = trainer.train(client, self._parts.data, server, round_idx, start=model, period=period)
                model = update.snapshot
            return self._measure(trainer.load(server, model), client)

        return torch.tensor(self._each(train_alone), dtype=torch.float64)
