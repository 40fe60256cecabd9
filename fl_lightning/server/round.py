"""One communication round: what a route asks of the cohort, done on several ranks as on one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.collectives import (
    elementwise_maximum,
    gather,
    gather_updates,
    no_counters,
    spread,
)
from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import magnitude, to_float64
from fl_lightning.routes.base import Chains, Cohort
from fl_lightning.server.announcements import announce
from fl_lightning.server.cohort_training import CohortTraining
from fl_lightning.server.federation import Federation
from fl_lightning.server.privacy.round import RoundPrivacy
from fl_lightning.server.round_log import tell_failures
from fl_lightning.server.round_result import RoundResult, as_one, require_weights, shared_out, too_few, with_shares
from fl_lightning.server.sampling import RoundPlan
from fl_lightning.server.update_buffer import UpdateBuffer
from fl_lightning.server.uplink import Uplink
from fl_lightning.strategies.base import JointStrategy, RunningStrategy
from fl_lightning.types import ClientFailure, ClientUpdate, Pull, RoundStart, Snapshot

_ROUTE = "federation.route.metric"


@dataclass
class FederationRound(Cohort):
    """The cohort of one round; see :class:`~fl_lightning.routes.Cohort`.

    Args:
        federation: what stays.
        round_idx: from 0.
        draw: who takes part, and how much each does.
    """

    federation: Federation
    round_idx: int
    draw: RoundPlan

    def __post_init__(self) -> None:
        self.clients = self.draw.clients
        self.num_examples = tuple(self.federation.data.indices.sizes.tolist())
        self._trainer = self.federation.trainer
        self._rank, self._ranks = self._trainer.global_rank, self._trainer.world_size
        self._server = self.federation.server
        self._counters = no_counters(self._server.counters())
        self._updates: list[ClientUpdate] = []  # of this rank, without states
        self._arrivals = UpdateBuffer(self.federation, self.draw, self.round_idx)
        self._chains: Chains = [[client] for client in self.clients]
        self._chosen: Snapshot | None = None
        self._failure: Exception | None = None
        self._training = CohortTraining(self.federation, self.round_idx, self.draw)
        self._uplink = Uplink(self.federation, self.round_idx)
        self._privacy = RoundPrivacy(self.federation, self.round_idx, self.draw)
        self._waiting: dict[int, list[ClientUpdate]] = {}

    # ---------------------------------------------------------------- what routes ask for

    def deliver(self, chains: Chains) -> None:
        """See :meth:`Cohort.deliver`."""
        self._start_strategy([sum(map(self.federation.data.num_examples, chain)) for chain in chains])
        self._privacy.charge(chains, 0)
        self._chains = chains
        control = self.federation.strategy.control
        try:
            for updates in self._training.train(chains, control=control):
                self._receive(updates, self._uplink.send)
        except Exception as error:  # the other ranks must hear of it, or they would wait for this one
            self._failure = error
        self._receive_held_back()

    def train(
        self,
        chains: Chains,
        starts: Mapping[int, Snapshot] | None = None,
        period: int = 0,
        pulled: Mapping[int, Pull] | None = None,
    ) -> list[ClientUpdate]:
        """See :meth:`Cohort.train`."""
        self._privacy.charge(chains, period)
        mine: list[ClientUpdate] = []
        failure: Exception | None = None
        try:
            for updates in self._training.train(chains, starts, period, pulled=pulled):
                announce(self._trainer, "on_client_end", updates[-1])
                mine += updates
        except Exception as error:
            failure = error
        trained = {update.client: update for update in gather_updates(self._trainer, mine, failure)}
        return [trained[client] for chain in chains for client in chain if client in trained]

    def own_models(self) -> Tensor:
        """See :meth:`Cohort.own_models`."""
        memory, start = self.federation.local.memory, self._server.vector()
        kept = (memory.last_model(client) for client in range(self.federation.data.num_clients))
        return torch.stack([start if own is None else own.vector.to(start) for own in kept])

    def hand_in(self, updates: Sequence[ClientUpdate]) -> None:
        """See :meth:`Cohort.hand_in`."""
        self._start_strategy([update.num_examples for update in updates])
        try:
            for update in updates[self._rank :: self._ranks]:
                self.federation.local.load(self._server, update.snapshot)
                moved = self._server.distance(update.snapshot.vector)  # anew: routes mix models
                update = replace(update, update_norm=moved if math.isfinite(moved) else None)
                self._updates.append(self._take_in(update).without_state())
        except Exception as error:
            self._failure = error

    def _receive(self, updates: list[ClientUpdate], send: Callable[[ClientUpdate], ClientUpdate | None]) -> None:
        """Give the strategy what a chain of clients sends, whose model is in the clients' module."""
        try:
            sent = send(as_one(updates))
        except ClientError as error:
            self._training.leave_out([update.client for update in updates], error, 1)
            return
        if sent is None:
            self._waiting[updates[-1].client] = updates
            return
        weighed = self._take_in(sent)
        self._updates += shared_out(weighed, updates)
        announce(self._trainer, "on_client_end", weighed)

    def _receive_held_back(self) -> None:
        """Attackers that act together, when all others are done; on every rank, also where something went wrong."""
        if not self._uplink.acts_together:
            return
        held = self._uplink.held_back()
        try:
            for update in held:
                self._receive(self._waiting.pop(update.client), self._uplink.answer)
        except Exception as error:
            self._failure = self._failure or error

    def conclude(self, updates: Sequence[ClientUpdate], chosen: ClientUpdate) -> None:
        """See :meth:`Cohort.conclude`."""
        self._updates = [replace(update.without_state(), update_norm=None) for update in updates[self._rank :: self._ranks]]
        self._chosen = chosen.snapshot

    def cross_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> Tensor:
        """See :meth:`Cohort.cross_scores`."""
        size = len(updates)
        loaded = -1

        def measure(pair: int) -> float:
            nonlocal loaded
            model, holder = divmod(pair, size)
            if model != loaded:
                self.federation.local.load(self._server, updates[model].snapshot)
                loaded = model
            return self.federation.measures.on_client(
                self.federation.local.module, metric, updates[holder].client, "training", _ROUTE
            )

        return torch.tensor(spread(self._trainer, size * size, measure), dtype=torch.float64).view(size, size).T

    def server_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> list[float]:
        """See :meth:`Cohort.server_scores`."""
        return self._worth([lambda u=update: u.snapshot.vector for update in updates], metric, _ROUTE)  # type: ignore[misc]

    def label_counts(self) -> Tensor:
        """See :meth:`Cohort.label_counts`."""
        return self.federation.data.label_counts()[list(self.clients)]

    @property
    def model_bytes(self) -> int:
        """See :attr:`Cohort.model_bytes`."""
        return self._server.nbytes(upward=True)

    @property
    def turns(self) -> list[tuple[int, int, int, int]]:
        """Return the turns of this rank's clients: client, round, period, and epochs or -1 for all."""
        return self._training.turns

    # ---------------------------------------------------------------- how it is done

    def _start_strategy(self, examples: Sequence[int]) -> None:
        """Tell the strategy where the round begins.

        Args:
            examples: behind each update that it will get.
        """
        size, state = self._server.num_parameters, self._server.vector()
        start = RoundStart(self.round_idx, self.clients, self.federation.data.num_clients, state, size)
        self.federation.strategy.start_round(start)
        self._arrivals.begin(examples)

    def _take_in(self, update: ClientUpdate) -> ClientUpdate:
        """Score a model that is in the clients' module, and give it to the strategy."""
        strategy, measures, module = self.federation.strategy, self.federation.measures, self.federation.local.module
        if strategy.metric is not None:
            update = replace(update, score=self._score(update.client, strategy.metric))
        if strategy.local_metric is not None:
            local_score = measures.on_client(module, strategy.local_metric, update.client, "validation")
            update = replace(update, local_score=local_score)
        self._counters = torch.maximum(self._counters, update.snapshot.counters)
        if not self.federation.shows_updates:
            update = replace(update, update_norm=None)
        return self._arrivals.add(update)

    def _score(self, client: int, metric: str | Metric) -> float:
        """Return the score of the model in the clients' module; in rounds without evaluation the client's last."""
        memory, evaluation = self.federation.local.memory, self.federation.measures.server_evaluation
        kept = None if evaluation.due(self.round_idx) else memory.score(client)
        if kept is not None:
            return kept
        score = self.federation.measures.on_server(self.federation.local.module, metric)
        if evaluation.every_n_rounds > 1:
            memory.remember_score(client, score)
        return score

    def _worth(self, models: Sequence[Callable[[], Tensor]], metric: str | Metric, setting: str) -> list[float]:
        """A metric of models on the server's set, spread over the ranks."""
        counters = self._server.counters()

        def measure(position: int) -> float:
            module = self.federation.local.load(self._server, Snapshot(models[position](), counters))
            return self.federation.measures.on_server(module, metric, setting)

        return spread(self._trainer, len(models), measure)

    # ---------------------------------------------------------------- the end

    def result(self) -> RoundResult:
        """Return the result of the round, the same on every rank.

        Raises:
            ClientError: on every rank, if one failed.
        """
        updates = gather_updates(self._trainer, self._updates, self._failure)
        failures = self._failures(len(updates))
        self._privacy.settle(self._uplink.sent if self.federation.transforms else {})
        updates = [replace(update, epsilon=self.federation.privacy.epsilon_of(update.client)) for update in updates]
        if self._chosen is not None:
            return RoundResult(to_float64(self._chosen.vector), self._chosen.counters, updates, failures)
        strategy = self.federation.strategy
        if isinstance(strategy, JointStrategy):
            aggregate, updates = self._combine(strategy, updates)
        else:
            assert isinstance(strategy, RunningStrategy)
            aggregate = strategy.aggregate(self._arrivals.total())
        aggregate = self._uplink.receive(aggregate, len(updates), len(self.clients))
        if not math.isfinite(magnitude(aggregate)):
            raise ClientError(
                f"What {type(strategy).__name__} made of round {self.round_idx} is not finite. Lower the clients' learning "
                "rate, or clip with 'federation.local.gradient_clip_val'."
            )
        return RoundResult(aggregate, elementwise_maximum(self._trainer, self._counters), with_shares(updates), failures)

    def figures(self) -> dict[str, float]:
        """Return the cost of privacy and the transforms' other figures, once the ranks have shared the clients' state."""
        spent = self.federation.privacy.figures(self.federation.data.num_clients)
        return self._uplink.figures(self.draw.drawn) | spent

    def _failures(self, good: int) -> list[ClientFailure]:
        """Of all ranks.

        Raises:
            ClientError: on every rank, if too few updates are good.
        """
        faults, drawn = self.federation.faults, self.draw.drawn
        if not faults.skips:
            return []
        failures = [one for theirs in gather(self._trainer, self._training.failures) for one in theirs]
        failures.sort(key=lambda failure: failure.client)
        needed = max(1, faults.needed(drawn))
        if good < needed:
            tell_failures(self._trainer, self.round_idx, self.draw.lost, failures)
            raise too_few(self.round_idx, good, drawn, needed, failures)
        return failures

    def close(self) -> None:
        """Delete what the round has written, however it ended."""
        self._arrivals.close()

    def _combine(self, strategy: JointStrategy, updates: list[ClientUpdate]) -> tuple[Tensor, list[ClientUpdate]]:
        everyone = self._arrivals.everyone()

        def worth(models: Sequence[Callable[[], Tensor]]) -> list[float]:
            assert strategy.worth_metric is not None
            return self._worth(models, strategy.worth_metric, "federation.strategy.metric")

        aggregate, weights = strategy.combine(everyone, worth)
        require_weights(strategy, everyone, weights)
        self._arrivals.read()
        handed = {update.client: weight / update.num_examples for update, weight in zip(everyone, weights, strict=True)}
        good = {update.client for update in updates}
        delivered = [[client for client in chain if client in good] for chain in self._chains]
        per_example = {client: handed[chain[-1]] for chain in delivered for client in chain}
        return aggregate, [replace(u, weight=per_example[u.client] * u.num_examples) for u in updates]
