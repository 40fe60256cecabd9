"""Run one communication round: turn a route's requests into tasks of clients, and their results into updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.judging import refuse_moved
from fl_lightning.core.federation import Chain, Federation
from fl_lightning.core.option import Gathering, ServerHooks
from fl_lightning.core.plan import RoundPlan
from fl_lightning.errors import ClientError, FederationError, add_note
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.messages import ClientTask, EvalOrder, Progress, ServerModel
from fl_lightning.routes.base import Chains, Cohort
from fl_lightning.server.aggregate import AllUpdates, RoundSums, finalize_aggregate
from fl_lightning.strategies.base import JointStrategy, Strategy
from fl_lightning.types import ClientFailure, ClientUpdate, Pull, RoundResult, RoundStart, Snapshot
from fl_lightning.utilities.collectives import no_counters

_SHOWN = 3
"""The largest number of failures in an error message."""


@dataclass
class FederationRound(Cohort):
    """Carry out a route's requests in one round; see :class:`~fl_lightning.routes.Cohort`.

    An option that puts the clients to work in its own way (``RoundPlan.deliver``) calls :meth:`begin`, and then
    :meth:`collect`, or :meth:`orders` and :meth:`receive`.

    Args:
        federation: the parts of the federation.
        round_idx: the communication round, from 0.
        plan: the clients that take part, and the work of each.
        hooks: the hooks of the options in use, in order.
        last_scores: the last score of each client's model, by client.
        progress: the place of the round's first turn in the whole training; None if each round begins again.
    """

    federation: Federation
    round_idx: int
    plan: RoundPlan
    hooks: Sequence[ServerHooks] = ()
    last_scores: Mapping[int, float] = field(default_factory=dict)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self.clients = self.plan.clients
        federation = self.federation
        self._pool, self._server, self._strategy = federation.pool, federation.server, federation.settings.strategy
        self._comm = self._pool.comm
        # Otherwise the last scores are used.
        self._due = self.round_idx % federation.settings.server_evaluation.every_n_rounds == 0
        self._tell_end = partial(announce, federation.trainer, "on_client_end")
        self._counters = no_counters(self._server.counters())
        self._updates: list[ClientUpdate] = []  # of this rank, without states
        self.failures: list[ClientFailure] = []
        """The failures of this rank."""
        self._chains: Chains = [[client] for client in self.clients]
        self._chosen: Snapshot | None = None
        self._error: Exception | None = None
        self._published = 0
        self._gathered: Gathering | None = None
        self.tasks: list[ClientTask] = []
        """The tasks of the round, of all ranks, without the models that they start from."""

    @cached_property
    def num_examples(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the number of training examples of every client; computed only if a route asks."""
        return tuple(self.federation.data.indices.sizes.tolist())

    # ---------------------------------------------------------------- what routes ask for

    def deliver(self, chains: Chains) -> None:
        """See :meth:`Cohort.deliver`."""
        if self.plan.deliver is not None:
            self.plan.deliver(self, chains)
            return
        self.begin(chains)
        self.collect(chains, self.receive)

    def train(
        self,
        chains: Chains,
        starts: Mapping[int, Snapshot] | None = None,
        period: int = 0,
        pulled: Mapping[int, Pull] | None = None,
    ) -> list[ClientUpdate]:
        """See :meth:`Cohort.train`."""
        mine: list[ClientUpdate] = []

        def take(chain: Chain) -> None:
            self.failures += chain.failures
            if chain.updates:
                self._tell_end(chain.updates[-1])
            mine.extend(chain.updates)

        error = self._train(self.orders(chains, starts or {}, period, pulled or {}, delivers=False), take)
        trained = {update.client: update for update in self._comm.gather_updates(mine, error)}
        return [trained[client] for chain in chains for client in chain if client in trained]

    def own_models(self) -> Tensor:
        """See :meth:`Cohort.own_models`."""
        start = self._server.vector()
        return torch.stack([start if own is None else own.vector.to(start) for own in self._pool.own_models()])

    def hand_in(self, updates: Sequence[ClientUpdate]) -> None:
        """See :meth:`Cohort.hand_in`."""
        self.begin(self._chains, [update.num_examples for update in updates])
        scores: list[float | None] = [None] * len(updates)
        if self._strategy.local_metric is not None:
            version = self._publish_once()
            orders = [EvalOrder(version, one.client, "validation", "sent", one.snapshot) for one in updates]
            scores = [report.value for report in self._pool.evaluate(orders)]
        try:
            for number in range(self._comm.rank, len(updates), self._comm.size):
                update = updates[number]
                moved = self._server.distance(update.snapshot.vector)  # computed again, because routes mix models
                norm = moved if math.isfinite(moved) else None
                update = replace(update, update_norm=norm, local_score=scores[number])
                self._updates.append(self._take(update).without_state())
        except Exception as error:
            self._error = error

    def conclude(self, updates: Sequence[ClientUpdate], chosen: ClientUpdate) -> None:
        """See :meth:`Cohort.conclude`."""
        mine = updates[self._comm.rank :: self._comm.size]
        self._updates = [replace(update.without_state(), update_norm=None) for update in mine]
        self._chosen = chosen.snapshot

    def cross_scores(self, updates: Sequence[ClientUpdate]) -> Tensor:
        """See :meth:`Cohort.cross_scores`."""
        version = self._publish_once()
        pairs = [(holder, model) for model in updates for holder in updates]
        orders = [EvalOrder(version, holder.client, "training", "route", model.snapshot) for holder, model in pairs]
        values = [report.value for report in self._pool.evaluate(orders)]
        return torch.tensor(values, dtype=torch.float64).view(len(updates), len(updates)).T

    def server_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> list[float]:
        """See :meth:`Cohort.server_scores`."""
        score, _ = self.federation.evaluators.score, self._publish_once()
        return self._comm.spread(len(updates), lambda k: score(updates[k].snapshot, metric, "federation.route.metric"))

    def label_counts(self) -> Tensor:
        """See :meth:`Cohort.label_counts`."""
        return self.federation.data.label_counts()[list(self.clients)]

    @property
    def model_bytes(self) -> int:
        """See :attr:`Cohort.model_bytes`."""
        return self._server.nbytes(upward=True)

    # ---------------------------------------------------------------- tasks and results

    def begin(self, chains: Chains, examples: Sequence[int] = ()) -> None:
        """Start the round of the strategy, and choose what gathers its updates.

        Args:
            chains: the chains whose models it gets.
            examples: the number of examples of each expected update; by default those of the chains.
        """
        federation, strategy, self._chains = self.federation, self._strategy, chains
        examples = examples or [sum(map(federation.data.num_examples, chain)) for chain in chains]
        if type(strategy).start_round is not Strategy.start_round:  # the state is a copy of the model
            state, size = self._server.vector(), self._server.num_parameters
            strategy.start_round(RoundStart(self.round_idx, self.clients, federation.data.num_clients, state, size))
        if isinstance(strategy, JointStrategy):
            self._gathered = AllUpdates(federation, len(self.clients))
        else:
            found = (hook.round_sums(federation, self.round_idx, self.plan, examples) for hook in self.hooks)
            self._gathered = next(filter(None, found), None) or RoundSums(federation, examples)

    def collect(self, chains: Chains, take: Callable[[Chain], None], start: ServerModel | None = None) -> None:
        """Train chains, and pass each one to a function that passes it to :meth:`receive`; :meth:`result` raises an error.

        Args:
            chains: the clients.
            take: the function.
            start: the model that they start from, which is published; None for the global one.
        """
        scores = self._comm.size > 1 and self._due and self._strategy.metric is not None
        scored = self.federation.evaluators.num_server_examples if scores else 0
        error = self._train(self.orders(chains, start=start), take, scored)
        self._error = self._error or error

    def _train(self, tasks: Sequence[Sequence[ClientTask]], take: Callable[[Chain], None], scored: int = 0) -> Exception | None:
        """Train chains, and return an error that ends this, because other ranks must learn about it first."""
        try:
            self._pool.train(tasks, take, self._tell_end, scored)
        except Exception as error:
            return error
        return None

    def _publish_once(self) -> int:
        """Publish the global model unless this round already did, and return its version."""
        self._published = self._published or self.federation.publish().version
        return self._published

    def orders(
        self,
        chains: Chains,
        starts: Mapping[int, Snapshot] | None = None,
        period: int = 0,
        pulled: Mapping[int, Pull] | None = None,
        delivers: bool = True,
        start: ServerModel | None = None,
    ) -> list[list[ClientTask]]:
        """Return the tasks of each chain, of which the options learn; see :meth:`Cohort.train` and :meth:`collect`."""
        starts, pulled, round_idx, progress = starts or {}, pulled or {}, self.round_idx, self.progress
        if start is not None:
            round_idx = start.round_idx
        if progress is not None:
            progress = replace(progress, turn=progress.turn + period if start is None else round_idx)
        own = self.federation.settings.route.keeps_models
        tasks = [
            [ClientTask(k, round_idx, period, own_model=own, progress=progress, pull=pulled.get(k)) for k in chain]
            for chain in chains
        ]
        for hook in self.hooks:
            tasks = [[hook.task(task) for task in chain] for chain in tasks]
        every = [task for chain in tasks for task in chain]
        version = 0 if not every else self._publish_once() if start is None else start.version
        for hook in self.hooks:
            hook.charge(self.federation, self.round_idx, self.plan, every)
        self.tasks += every
        for chain in tasks:
            last, first = chain[-1], starts.get(chain[0].client)
            chain[:] = [replace(t, start=first, delivers=delivers and t is last, version=version) for t in chain]
        return tasks

    def receive(self, chain: Chain, rebased: Callable[[ClientUpdate], ClientUpdate] | None = None) -> None:
        """Pass the update of a chain of clients to the strategy.

        Args:
            chain: the chain.
            rebased: returns the update as the strategy reads it, after its model has been scored.
        """
        self.failures += chain.failures
        if not chain.updates:
            return
        last, alone = chain.updates[-1], len(chain.updates) == 1
        if not alone:  # for the strategy the last client's model, with the examples of all clients
            examples, steps = (sum(getattr(one, name) for one in chain.updates) for name in ("num_examples", "num_steps"))
            last = replace(last, num_examples=examples, num_steps=steps, normalizer=None)
        taken = self._take(last, rebased)
        seen = {name: getattr(taken, name) for name in ("score", "local_score", "update_norm")}
        for one in [taken] if alone else chain.updates:  # in the log each has its share of the weight, by examples
            weight = taken.weight if alone else taken.weight * one.num_examples / taken.num_examples
            self._updates.append(replace(one.without_state(), weight=weight, **seen))
        self._tell_end(taken)

    def _take(self, update: ClientUpdate, rebased: Callable[[ClientUpdate], ClientUpdate] | None = None) -> ClientUpdate:
        """Score a model, and pass it to the strategy."""
        assert self._gathered is not None
        if update.snapshot.moved:
            refuse_moved(update.snapshot.moved, self.federation.fixed)
        metric = self._strategy.metric
        if metric is not None:
            kept = None if self._due else self.last_scores.get(update.client)
            score = self.federation.evaluators.score(update.snapshot, metric) if kept is None else kept
            update = replace(update, score=score)
        update = update if rebased is None else rebased(update)
        self._counters = torch.maximum(self._counters, update.snapshot.counters)
        if not self.federation.shows_updates:
            update = replace(update, update_norm=None)
        try:
            return self._gathered.add(update)
        except FederationError as error:
            name = self.federation.data.client_name(update.client)
            if name != str(update.client):  # which the strategies know
                add_note(error, f"Client {update.client} is '{name}'.")
            raise

    # ---------------------------------------------------------------- the end

    def result(self) -> RoundResult:
        """Return the result of the round, the same on every rank.

        Raises:
            ClientError: on every rank, if a rank failed.
        """
        federation, strategy = self.federation, self._strategy
        updates = self._comm.gather_updates(self._updates, self._error)
        failures = self._all_failures(len(updates)) if federation.settings.faults.skips else []
        for hook in self.hooks:
            updates = hook.drained(federation, self.round_idx, updates)
        if self._chosen is not None:
            chosen = self._chosen
            return RoundResult(to_float64(chosen.vector), chosen.counters, updates, failures, chosen.moved, self.plan.lost)
        assert self._gathered is not None
        delivered = self._delivered({update.client for update in updates})
        aggregate, updates, moved = self._gathered.aggregate(updates, delivered, self._worth)
        aggregate = finalize_aggregate(federation, self.round_idx, aggregate, len(updates), len(self.clients))
        counters = self._comm.elementwise_maximum(self._counters)
        total = sum(update.weight for update in updates)
        if not math.isnan(total):  # otherwise the weights are masked
            if not total > 0 and len(updates) > 1:
                rank_zero_warn(
                    f"{type(strategy).__name__} gave all clients of a round the weight 0, so their plain average was used. "
                    "Check the metric that the weights are computed from."
                )
            updates = [replace(u, share=u.weight / total if total > 0 else 1 / len(updates)) for u in updates]
        return RoundResult(aggregate, counters, updates, failures, moved, self.plan.lost)

    def scores(self, updates: Sequence[ClientUpdate]) -> dict[int, float]:
        """Return the scores of the models that reached the strategy, by client."""
        score_of = {update.client: update.score for update in updates}
        senders = [chain[-1] for chain in self._delivered(score_of.keys()) if chain]
        return {client: score for client in senders if (score := score_of[client]) is not None}

    def _delivered(self, good: Collection[int]) -> list[list[int]]:
        return [[client for client in chain if client in good] for chain in self._chains]

    def _all_failures(self, good: int) -> list[ClientFailure]:
        """Return the failures of all ranks.

        Raises:
            ClientError: on every rank, if too few updates are valid.
        """
        failures = [one for theirs in self._comm.gather(self.failures) for one in theirs]
        failures.sort(key=lambda failure: failure.client)
        needed = max(1, self.federation.settings.faults.needed(len(self.plan.cohort)))
        if good < needed:
            name_of = self.federation.data.client_name
            tell_failures(self.federation, self.plan, failures)
            causes = "; ".join(f"client {name_of(failure.client)}: {failure.cause}" for failure in failures[:_SHOWN])
            more = f"; and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
            raise ClientError(
                f"Round {self.round_idx}: {good} of {len(self.plan.cohort)} updates are valid, but the round needs {needed} "
                f"('federation.faults.min_updates'). Failed: {causes}{more}."
            )
        return failures

    def _worth(self, models: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Score models that a strategy has made, on the server's set."""
        strategy, counters = self._strategy, self._server.counters()
        assert isinstance(strategy, JointStrategy)
        metric = strategy.worth_metric
        assert metric is not None
        score = self.federation.evaluators.score
        self._publish_once()
        return self._comm.spread(len(models), lambda k: score(Snapshot(models[k](), counters), metric))

    def close(self) -> None:
        """Delete the files of the round, however it ended."""
        if isinstance(self._gathered, AllUpdates):
            self._gathered.close()


def announce(trainer: Trainer, hook: str, *args: Any) -> None:
    """Call a hook of every callback of the Trainer that defines it."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        method = getattr(callback, hook, None)
        if method is not None:
            method(trainer, trainer.lightning_module, *args)


def tell_failures(federation: Federation, plan: RoundPlan, failures: Sequence[ClientFailure]) -> int:
    """Warn about each client that failed, notify callbacks of all missing clients, and return their number.

    Args:
        federation: the parts of the federation.
        plan: the plan of the round, with the clients that dropped out in the simulation.
        failures: the failures of other clients.
    """
    for failure in failures:
        tried = f" after {failure.attempts} attempts" if failure.attempts > 1 else ""
        name = federation.data.client_name(failure.client)
        rank_zero_warn(f"Round {plan.round_idx} continues without client {name}{tried}: {failure.cause}")
    simulated = [ClientFailure(client, plan.round_idx, "dropped out (simulated)", 0) for client in plan.lost]
    missed = sorted([*simulated, *failures], key=lambda failure: failure.client)
    for failure in missed:
        announce(federation.trainer, "on_client_failed", failure)
    return len(missed)
