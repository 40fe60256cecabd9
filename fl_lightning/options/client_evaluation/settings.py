"""Settings that measure, on the clients' own test parts, whether the federation was worth it for each client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need, ResumeRule
from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import ClientMetric, OptionSettings, ServerHooks
from fl_lightning.errors import CheckpointError, ConfigurationError, require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.messages import ClientTask, EvalOrder, Progress
from fl_lightning.options.client_evaluation.tables import comparison_table, spread_of_clients
from fl_lightning.reporting.tables import log_table, text_table
from fl_lightning.types import RoundResult, Snapshot
from fl_lightning.utilities.argument_types import checks_types
from fl_lightning.utilities.csv_file import write_csv

_NAME = "federation.client_evaluation."
ROLE = "evaluation"
"""The role of the metric in the server's orders."""
_SHOWN = 30
"""The number of clients that the terminal shows; the files contain all of them."""


@checks_types
@dataclass(frozen=True)
class ClientEvaluation(OptionSettings):
    """Evaluate the global model on each client's own test part, and at the end compare it with models of the clients' own.

    Args:
        every_n_rounds: evaluate all clients after every n-th round and after the last, whether they took part or not, and
            those of ``data.held_out_clients``, which never do; 0 for never.
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        mode: ``max`` if higher is better, ``min`` if lower is; by default, what the torchmetrics metric declares, or what its
            name implies: see :func:`~fl_lightning.functional.metric_mode.known_direction`.
        personal_epochs: at the end, the number of epochs for which every client fine-tunes the global model on its training
            part; 0 for no fine-tuning.
        compare_alone: at the end, train every client also by itself, from the model that the federation began with, for as
            many epochs as it trained in the federation (Fed-Star thesis, Table 5.8).

    Raises:
        ConfigurationError: for a value outside its range, or if neither ``mode`` nor the metric says which direction is better.
    """

    every_n_rounds: int = 0
    metric: str | Metric = "val_accuracy"
    mode: Literal["max", "min"] | None = None
    personal_epochs: int = 0
    compare_alone: bool = False

    setting = "client_evaluation"
    at_sites = True
    clients_may_join = False
    on_resume = ResumeRule(free="every_n_rounds personal_epochs compare_alone")

    def __post_init__(self) -> None:
        require(self.every_n_rounds >= 0, _NAME + "every_n_rounds", "0 or above", self.every_n_rounds)
        require(self.personal_epochs >= 0, _NAME + "personal_epochs", "0 or above", self.personal_epochs)
        if self.active:
            higher_is_better(self.metric, self.mode, _NAME + "mode")

    @property
    def compares(self) -> bool:
        """Whether clients have models of their own for the comparison at the end."""
        return self.compare_alone or self.personal_epochs > 0

    @property
    def active(self) -> bool:
        """Whether anything is measured."""
        return self.compares or self.every_n_rounds > 0

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the metric are better."""
        return higher_is_better(self.metric, self.mode, _NAME + "mode")

    def needs(self) -> Iterator[Need]:
        """Return what it needs: figures of single clients; and for the comparison, that they can begin where all began."""
        why = f"'{_NAME[:-1]}' measures each client"
        yield Need(Capability.SINGLE_FIGURES, why, f"Remove '{_NAME[:-1]}'")
        if self.compare_alone:
            why = f"'{_NAME}compare_alone' trains clients from the first model"
            yield Need(Capability.FIRST_STARTS, why, f"Set '{_NAME}compare_alone' to false")

    def measures(self) -> Iterator[ClientMetric]:
        """Return the metric on the clients' test parts."""
        yield ClientMetric(ROLE, self.metric, "test")

    def logs(self) -> Collection[str]:
        """Return the clients' scores, and the metric itself, if all rounds have them."""
        own = {self.metric} if isinstance(self.metric, str) else set[str]()
        return own | {f"federation/client_{name}" for name in ("mean", "worst", "p10")} if self.every_n_rounds == 1 else ()

    def free_on_resume(self) -> Collection[str]:
        """Return the metric and its mode if there are no earlier results that they must match."""
        return () if self.every_n_rounds else ("metric", "mode")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        return EvaluationAtServer(self, context)


class EvaluationAtServer(ServerHooks):
    """Evaluate models on the clients' own test parts; every rank takes its share of the clients.

    Args:
        settings: the metric to compute, and when.
        context: the fit.

    Raises:
        ConfigurationError: if the clients have no test parts; it says what to set.
    """

    def __init__(self, settings: ClientEvaluation, context: ServerContext) -> None:
        complete = Capability.COMPLETE_MODEL not in context.removed
        alone = context.data.splits.unseen is not None and not settings.compares and complete
        if not context.data.clients_hold("test") and not alone:
            raise ConfigurationError(
                "'federation.client_evaluation' measures on each client's own test part, but the clients have no test parts. "
                "Set 'data.client_test' to the share of its examples that each client holds back, e.g. 0.2."
            )
        self._settings = settings
        self.scores: dict[int, Tensor] = {}
        """The score of each client, by round; of each held-out client in ``unseen``."""
        self.unseen: dict[int, Tensor] = {}
        self._tasks: list[ClientTask] = []
        self._start: Snapshot | None = None
        route, strategy = context.settings.route, context.settings.strategy
        self._own, self._incomplete = route.keeps_models or strategy.own_models, not complete
        self._column = "own" if self._own or self._incomplete else "global"
        if context.data.splits.unseen is not None and self._column == "own":
            rank_zero_warn(
                "Held-out clients never train, so they have no parts or models of their own: they are evaluated with the "
                "server's model, in which a part that clients keep is that of a client which has not trained yet."
            )
        self._tried, self._told = False, set[int]()

    def open(self, federation: Federation) -> None:
        """Take the parts of the federation."""
        self._parts, test = federation, federation.data.splits.test
        none = torch.zeros(0, dtype=torch.int64)
        self._sizes = none if test is None else test.sizes
        unseen = federation.data.splits.unseen
        self._unseen_sizes = none if unseen is None else unseen.sizes

    def state_dict(self) -> dict[str, Any]:
        """Return the scores so far, the turns of all clients, and the initial model."""
        start = None if self._start is None else [self._start.vector, self._start.counters, dict(self._start.moved)]
        tasks = [(t, () if t.progress is None else (t.progress.turn, t.progress.turns)) for t in self._tasks]
        turns = [[t.client, t.round_idx, t.period, -1 if t.epochs is None else t.epochs, *place] for t, place in tasks]
        return {"rounds": dict(self.scores), "unseen": dict(self.unseen), "turns": turns, "start": start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scores, turns and initial model."""
        self.scores, self.unseen = dict(state["rounds"]), dict(state.get("unseen", {}))
        self._tasks = [
            ClientTask(k, round_idx, period, None if epochs < 0 else epochs, progress=Progress(*place) if place else None)
            for k, round_idx, period, epochs, *place in state["turns"]
        ]
        self._start = None if state["start"] is None else Snapshot(*state["start"])

    def begin_round(self, round_idx: int) -> None:
        """Store the initial model if clients will later train from it alone.

        Raises:
            CheckpointError: if the run resumes from a checkpoint without the initial model.
            ConfigurationError: if the module does not log the metric, which is checked before the first round.
        """
        if round_idx == 0:
            self.scores, self.unseen, self._tasks, self._start = {}, {}, [], None
            if self._settings.compare_alone:
                server = self._parts.server
                self._start = Snapshot(server.vector().cpu().clone(), server.counters().cpu().clone())
        self._require_start()
        if self._start is not None and self._start.vector.numel() != self._parts.server.size:
            raise ConfigurationError(
                f"The trained parameters changed in round {round_idx}, so clients alone cannot repeat the training from the "
                "initial model. Set 'federation.client_evaluation.compare_alone' to false, or freeze the same parts in all "
                "rounds."
            )
        if not self._tried:
            self._parts.pool.evaluate([EvalOrder(self._parts.publish().version, self._evaluated[0], "test", ROLE)])
            self._tried = True

    def _require_start(self) -> None:
        """Refuse to compare with clients alone without the initial model.

        Raises:
            CheckpointError: if the initial model is missing.
        """
        if self._settings.compare_alone and self._start is None:
            raise CheckpointError(
                "'federation.client_evaluation.compare_alone' needs the initial model of the federation, but the checkpoint "
                "does not contain it, because the run was started without this setting. Set it to false, or start again "
                "without 'ckpt_path'."
            )

    def before_step(self, result: RoundResult) -> None:
        """Keep the initial values of frozen tensors that clients have changed, before the server changes them."""
        if self._start is not None and result.moved:
            own, before = self._parts.server.tensors(), self._start.moved
            new = {name: own[name].cpu().clone() for name in result.moved if name not in before}
            self._start = replace(self._start, moved={**before, **new})

    def end_round(self, round_idx: int, tasks: Sequence[ClientTask]) -> dict[str, float]:
        """Evaluate the new global model, or the clients' own models, at all clients if due.

        Returns:
            The clients' mean and spread, see ``spread_of_clients``, and those of the held-out clients, whose names begin with
            ``unseen``; empty in a round without an evaluation. The clients' mean is also logged as the metric itself if the
            server cannot measure it, because its model is incomplete.
        """
        if self._settings.compare_alone:
            alone = [ClientTask(t.client, t.round_idx, t.period, t.epochs, progress=t.progress) for t in tasks]
            self._tasks += sorted(alone, key=lambda task: (task.client, task.period))
        every = self._settings.every_n_rounds
        if not every or (round_idx + 1) % every:
            return {}
        self._evaluate(round_idx)
        found = self._spread(self.scores[round_idx], self._sizes, "client", 0)
        unseen = self._spread(self.unseen[round_idx], self._unseen_sizes, "unseen", len(self._parts.data.indices))
        figures, metric = {f"federation/{name}": value for name, value in (found | unseen).items()}, self._settings.metric
        if self._incomplete and isinstance(metric, str) and found:  # which the server cannot log
            figures[metric] = found["client_mean"]
        return figures

    def _spread(self, values: Tensor, sizes: Tensor, whose: str, first: int) -> dict[str, float]:
        """Return the mean and spread of clients; empty without clients, or if no site has answered."""
        counted = self._counted(values, first=first)
        if not len(values) or (not counted.any() and not self._parts.pool.simulated):
            return {}
        counted = counted if counted.any() else torch.ones_like(counted)
        return spread_of_clients(values[counted], sizes[counted], self._settings.higher_is_better, whose)

    def _counted(self, *columns: Tensor, first: int = 0) -> Tensor:
        """Return the clients with values, over which means are taken, bool, shape (K,), and warn of the others.

        A client without a value must not hide those of the others.

        Args:
            columns: the values of the clients, each of shape (K,).
            first: the id of the first of them.
        """
        known = ~torch.stack(columns).isnan().any(dim=0)
        without = [first + client for client in (~known).nonzero().flatten().tolist()]
        if not self._told.issuperset(without):
            self._told.update(without)
            names = [self._parts.data.client_name(client) for client in without[:5]]
            more = f" and {len(without) - 5} more" if len(without) > 5 else ""
            rank_zero_warn(
                f"'{self._metric_name}' has no value (NaN) on the test examples of client {', '.join(names)}{more}. Means, "
                "quantiles and the worst value are those of the other clients."
            )
        return known

    @property
    def _metric_name(self) -> str:
        metric = self._settings.metric
        return metric if isinstance(metric, str) else type(metric).__name__

    @property
    def _evaluated(self) -> range:
        """The ids of the clients that are evaluated: those with test parts, then those that are held out."""
        trained = len(self._parts.data.indices)
        return range(0 if len(self._sizes) else trained, trained + len(self._unseen_sizes))

    def _evaluate(self, round_idx: int) -> None:
        """Evaluate the model of a round at all clients."""
        trained, own = len(self._parts.data.indices), self._own
        values = self._each(
            lambda client, version: EvalOrder(version, client, "test", ROLE, own=own and client < trained), self._evaluated
        )
        count = len(self._sizes)
        self.scores[round_idx], self.unseen[round_idx] = values[:count], values[count:]

    def _each(self, order: Callable[[int, int], EvalOrder], clients: Sequence[int] | None = None) -> Tensor:
        """Return the result of an order for every client, where a function returns the order of a client and a version."""
        version = self._parts.publish().version
        everyone = range(len(self._sizes)) if clients is None else clients
        reports = self._parts.pool.evaluate([order(client, version) for client in everyone])
        return torch.tensor([report.value for report in reports], dtype=torch.float64)

    # ---------------------------------------------------------------- the end

    def conclude(self, rounds: int) -> None:
        """Evaluate the final model, let clients fine-tune it and train alone, and write both tables.

        Args:
            rounds: the number of rounds.
        """
        if not rounds:
            return
        self._require_start()
        if rounds - 1 not in self.scores:
            self._evaluate(rounds - 1)
        self._conclude_all(rounds)
        if len(self._unseen_sizes):
            self._conclude_unseen(rounds)

    def _conclude_unseen(self, rounds: int) -> None:
        """Write and print the scores of the held-out clients."""
        data, trainer, values = self._parts.data, self._parts.trainer, self.unseen[rounds - 1]
        names = [data.client_name(len(data.indices) + k) for k in range(len(values))]
        self._write_scores(rounds - 1, "unseen_clients", names, self.unseen)
        if trainer.is_global_zero:
            counted = self._counted(values, first=len(data.indices))
            header, rows = comparison_table(names, self._unseen_sizes, {"global": values}, True, counted)
            print(f"{self._metric_name} on the test examples of clients that never trained, after round {rounds - 1}:")
            print(text_table(header, [*rows[:-1][:_SHOWN], rows[-1]]))

    def _conclude_all(self, rounds: int) -> None:
        """Write and print the scores of the clients with test parts."""
        if not len(self._sizes):
            return
        columns: dict[str, Tensor] = {self._column: self.scores[rounds - 1]}
        if self._settings.compare_alone:
            columns = {"local only": self._alone(), **columns}
        if self._settings.personal_epochs:
            columns["personalised"] = self._personal(rounds)
        data = self._parts.data
        names = [data.client_name(client) for client in range(data.num_clients)]
        header, rows = comparison_table(
            names, self._sizes, columns, self._settings.higher_is_better, self._counted(*columns.values())
        )
        trainer = self._parts.trainer
        self._write_scores(rounds - 1, "client_evaluation", names, self.scores)
        if self._settings.compares:
            self._write(rounds - 1, "client_comparison", header, rows)
        if trainer.is_global_zero:
            print(f"{self._metric_name} on the clients' own test examples, after round {rounds - 1}:")
            print(text_table(header, [*rows[:-1][:_SHOWN], rows[-1]]))
            if "gain" in header:
                before = "local only" if "local only" in columns else self._column
                after = "personalised" if "personalised" in columns else self._column
                print(f"gain: {after} over {before}, above 0 if better")

    def _write_scores(self, last: int, name: str, names: Sequence[str], scores: Mapping[int, Tensor]) -> None:
        table = [[client, *(float(values[k]) for values in scores.values())] for k, client in enumerate(names)]
        self._write(last, name, ["client", *(f"round {round_idx}" for round_idx in scores)], table)

    def _write(self, round_idx: int, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        trainer = self._parts.trainer
        if not trainer.is_global_zero or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        log_table(trainer, name, header, rows, round_idx)
        write_csv(Path(trainer.default_root_dir) / f"{name}.csv", header, rows)

    def _personal(self, rounds: int) -> Tensor:
        """Evaluate every client's own model, fine-tuned from the global one."""
        epochs = self._settings.personal_epochs
        return self._each(lambda k, v: EvalOrder(v, k, "test", ROLE, tasks=(ClientTask(k, rounds),), epochs=epochs))

    def _alone(self) -> Tensor:
        """Evaluate every client's model, trained alone from the initial model with the same turns as in the federation."""
        tasks: dict[int, list[ClientTask]] = {}
        for task in self._tasks:
            tasks.setdefault(task.client, []).append(task)
        return self._each(lambda k, v: EvalOrder(v, k, "test", ROLE, self._start, tasks=tuple(tasks.get(k, ()))))
