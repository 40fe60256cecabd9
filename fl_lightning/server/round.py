"""Run one communication round: turn a route's requests into tasks of clients, and their results into updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.judging import refuse_moved
from fl_lightning.clients.pool import Chain
from fl_lightning.core.hooks import ServerHooks
from fl_lightning.errors import FederationError, add_note
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.messages import ClientTask, Progress, ServerModel
from fl_lightning.routes.base import Chains, Cohort
from fl_lightning.server.announcements import announce, tell_failures
from fl_lightning.server.federation import Federation
from fl_lightning.server.finalizing import finalize_aggregate
from fl_lightning.server.round_result import RoundResult, as_one, shared_out, too_few, with_shares
from fl_lightning.server.round_scores import RoundScores
from fl_lightning.server.round_sums import RoundSums
from fl_lightning.server.sampling import RoundPlan
from fl_lightning.server.update_buffer import UpdateBuffer
from fl_lightning.strategies.base import JointStrategy, Strategy
from fl_lightning.types import ClientFailure, ClientUpdate, Pull, RoundStart, Snapshot
from fl_lightning.utilities.collectives import no_counters


@dataclass
class FederationRound(Cohort):
    """Carry out a route's requests in one round; see :class:`~fl_lightning.routes.Cohort`.

    An option that puts the clients to work in its own way calls :meth:`begin`, and then :meth:`collect`, or :meth:`orders` and
    :meth:`receive`.

    Args:
        federation: the parts of the federation.
        round_idx: the communication round, from 0.
        plan: the clients that take part, and the work of each.
        hooks: the hooks of the options in use, in order.
        last_scores: the last score of each client's model, by client.
        from_own_models: whether clients start from their own last models.
        progress: the place of the round's first turn in the whole training; None if each round begins again.
    """

    federation: Federation
    round_idx: int
    plan: RoundPlan
    hooks: Sequence[ServerHooks] = ()
    last_scores: Mapping[int, float] = field(default_factory=dict)
    from_own_models: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self.clients = self.plan.clients
        self._comm, self._pool, self._server = self.federation.comm, self.federation.pool, self.federation.server
        self._counters = no_counters(self._server.counters())
        self._updates: list[ClientUpdate] = []  # of this rank, without states
        self.failures: list[ClientFailure] = []
        """The failures of this rank."""
        self._chains: Chains = [[client] for client in self.clients]
        self._chosen: Snapshot | None = None
        self._error: Exception | None = None
        self._scores = RoundScores(self.federation, self.round_idx, self.last_scores)
        self._version: int | None = None
        self.tasks: list[ClientTask] = []
        """The tasks of the round, of all ranks, without the models that they start from."""

    @cached_property
    def num_examples(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the number of training examples of every client; computed only if a route asks."""
        return tuple(self.federation.data.indices.sizes.tolist())

    # ---------------------------------------------------------------- what routes ask for

    def deliver(self, chains: Chains) -> None:
        """See :meth:`Cohort.deliver`."""
        if not any(hook.deliver(self, chains) for hook in self.hooks):
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
                self._announce_end(chain.updates[-1])
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
        self._start_strategy([update.num_examples for update in updates])
        local_scores = self._scores.local(updates, self._published())
        try:
            for number in range(self._comm.rank, len(updates), self._comm.size):
                update = updates[number]
                moved = self._server.distance(update.snapshot.vector)  # computed again, because routes mix models
                norm = moved if math.isfinite(moved) else None
                update = replace(update, update_norm=norm, local_score=local_scores[number])
                self._updates.append(self._take(update).without_state())
        except Exception as error:
            self._error = error

    def conclude(self, updates: Sequence[ClientUpdate], chosen: ClientUpdate) -> None:
        """See :meth:`Cohort.conclude`."""
        mine = updates[self._comm.rank :: self._comm.size]
        self._updates = [replace(update.without_state(), update_norm=None) for update in mine]
        self._chosen = chosen.snapshot

    def cross_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> Tensor:
        """See :meth:`Cohort.cross_scores`."""
        return self._scores.cross(updates, self._published())

    def server_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> list[float]:
        """See :meth:`Cohort.server_scores`."""
        self._published()
        return self._scores.spread([lambda u=update: u.snapshot for update in updates], metric, "federation.route.metric")  # type: ignore[misc]

    def label_counts(self) -> Tensor:
        """See :meth:`Cohort.label_counts`."""
        return self.federation.data.label_counts()[list(self.clients)]

    @property
    def model_bytes(self) -> int:
        """See :attr:`Cohort.model_bytes`."""
        return self._server.nbytes(upward=True)

    # ---------------------------------------------------------------- tasks and results

    def begin(self, chains: Chains) -> None:
        """Start the round of the strategy, which gets the models of these chains."""
        self._chains = chains
        self._start_strategy([sum(map(self.federation.data.num_examples, chain)) for chain in chains])

    def collect(self, chains: Chains, take: Callable[[Chain], None], start: ServerModel | None = None) -> None:
        """Train chains, and pass each one to a function that passes it to :meth:`receive`; :meth:`result` raises an error.

        Args:
            chains: the clients.
            take: the function.
            start: the model that they start from, which is published; None for the global one.
        """
        scored = self.federation.examples_to_score if self._comm.size > 1 and self._scores.due else 0
        error = self._train(self.orders(chains, start=start), take, scored)
        self._error = self._error or error

    def _train(self, tasks: Sequence[Sequence[ClientTask]], take: Callable[[Chain], None], scored: int = 0) -> Exception | None:
        """Train chains, and return an error that ends this, because other ranks must learn about it first."""
        try:
            self._pool.train(tasks, take, self._announce_end, scored)
        except Exception as error:
            return error
        return None

    def _published(self) -> int:
        """Publish the global model once, and return its version."""
        if self._version is None:
            self._version = self.federation.publish().version
        return self._version

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
        plain = ClientTask(0, round_idx, period, own_model=self.from_own_models, progress=progress)
        tasks = [[self._task(replace(plain, client=k, pull=pulled.get(k))) for k in chain] for chain in chains]
        every = [task for chain in tasks for task in chain]
        version = 0 if not every else self._published() if start is None else start.version
        for hook in self.hooks:
            hook.charge(self.federation, self.round_idx, self.plan, every)
        self.tasks += every
        for chain in tasks:
            last, first = chain[-1], starts.get(chain[0].client)
            chain[:] = [replace(t, start=first, delivers=delivers and t is last, version=version) for t in chain]
        return tasks

    @cached_property
    def _gathered(self) -> UpdateBuffer | RoundSums:
        """Return what gathers the updates: all of them, or their sums, plainly or as an option adds them up."""
        federation = self.federation
        if isinstance(federation.strategy, JointStrategy):
            return UpdateBuffer(federation, federation.strategy, len(self.clients))
        found = (hook.round_sums(federation, self.round_idx, self.plan) for hook in self.hooks)
        return next(filter(None, found), None) or RoundSums(federation)

    def _announce_end(self, update: ClientUpdate) -> None:
        announce(self.federation.trainer, "on_client_end", update)

    def _task(self, task: ClientTask) -> ClientTask:
        for hook in self.hooks:
            task = hook.task(task)
        return task

    def receive(self, chain: Chain, rebased: Callable[[ClientUpdate], ClientUpdate] | None = None) -> None:
        """Pass the update of a chain of clients to the strategy.

        Args:
            chain: the chain.
            rebased: returns the update as the strategy reads it, after its model has been scored.
        """
        self.failures += chain.failures
        if not chain.updates:
            return
        weighed = self._take(as_one(chain.updates), rebased)
        self._updates += shared_out(weighed, chain.updates)
        self._announce_end(weighed)

    def _start_strategy(self, examples: Sequence[int]) -> None:
        """Start the round of the strategy.

        Args:
            examples: the number of examples of each expected update.
        """
        strategy, size = self.federation.strategy, self._server.num_parameters
        if type(strategy).start_round is not Strategy.start_round:  # the state is a copy of the model
            state = self._server.vector()
            strategy.start_round(RoundStart(self.round_idx, self.clients, self.federation.data.num_clients, state, size))
        self._gathered.begin(examples)

    def _take(self, update: ClientUpdate, rebased: Callable[[ClientUpdate], ClientUpdate] | None = None) -> ClientUpdate:
        """Score a model, and pass it to the strategy."""
        refuse_moved(update.snapshot.moved, self.federation.fixed)
        metric = self.federation.strategy.metric
        if metric is not None:
            update = replace(update, score=self._scores.of(update, metric))
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
        updates = self._comm.gather_updates(self._updates, self._error)
        failures = self._all_failures(len(updates))
        for hook in self.hooks:
            updates = hook.drained(self.federation, self.round_idx, updates)
        if self._chosen is not None:
            chosen = self._chosen
            return RoundResult(to_float64(chosen.vector), chosen.counters, updates, failures, chosen.moved, self.plan.lost)
        strategy = self.federation.strategy
        delivered = self._delivered({update.client for update in updates})
        aggregate, updates, moved = self._gathered.aggregate(updates, delivered, self._worth)
        aggregate = finalize_aggregate(self.federation, self.round_idx, aggregate, len(updates), len(self.clients))
        counters = self._comm.elementwise_maximum(self._counters)
        return RoundResult(aggregate, counters, with_shares(updates, strategy), failures, moved, self.plan.lost)

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
        faults, drawn = self.federation.faults, self.plan.drawn
        if not faults.skips:
            return []
        failures = [one for theirs in self._comm.gather(self.failures) for one in theirs]
        failures.sort(key=lambda failure: failure.client)
        needed = max(1, faults.needed(drawn))
        if good < needed:
            name_of = self.federation.data.client_name
            tell_failures(self.federation.trainer, self.round_idx, self.plan.lost, failures, name_of)
            raise too_few(self.round_idx, good, drawn, needed, failures, name_of)
        return failures

    def _worth(self, models: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Score models that a strategy has made, on the server's set."""
        strategy, counters = self.federation.strategy, self._server.counters()
        assert isinstance(strategy, JointStrategy)
        assert strategy.worth_metric is not None
        self._published()
        return self._scores.spread([lambda m=model: Snapshot(m(), counters) for model in models], strategy.worth_metric)  # type: ignore[misc]

    def close(self) -> None:
        """Delete the files of the round, however it ended."""
        if "_gathered" in vars(self):
            self._gathered.close()
