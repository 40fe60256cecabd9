"""Run asynchronous rounds on a simulated clock: plan which updates arrive, and train their clients from their own starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fl_lightning.clients.pool import ChainReport
from fl_lightning.errors import ClientError
from fl_lightning.functional.event_queue import EventQueue, Flight, until_flush
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.messages import ClientJob, Progress
from fl_lightning.routes.base import Chains
from fl_lightning.server.round import FederationRound
from fl_lightning.server.sampling import ClientSampler, RoundPlan
from fl_lightning.server.start_models import StartModels, start_vector
from fl_lightning.settings.asynchronous import Asynchronous
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.clock import Clock
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.types import ClientUpdate, Pull, Snapshot


@dataclass(frozen=True)
class AsynchronousPlan(RoundPlan):
    """Hold the updates that become a new model; see :class:`RoundPlan`.

    Attributes:
        starts: the rounds from whose models the clients started, by client.
    """

    starts: Mapping[int, int] = field(default_factory=dict)

    def job(
        self,
        client: int,
        round_idx: int,
        period: int = 0,
        pull: Pull | None = None,
        own_model: bool = False,
        progress: Progress | None = None,
    ) -> ClientJob:
        """Return one client's turn, which belongs to the round of its start."""
        start = self.starts[client]
        place = None if progress is None else replace(progress, turn=start)
        return ClientJob(client, start, period, pull=pull, own_model=own_model, progress=place)


class AsynchronousSampler(ClientSampler):
    """Plan rounds from the events of a simulated clock; see :class:`ClientSampler`.

    Args:
        num_clients: the number K of clients in the federation.
        settings: the settings of asynchronous rounds.
        local: the settings of the local training.
        availability: the settings of absent, slow and lost clients.
        faults: the settings of failures, with the smallest number of updates.
        seed: the seed of the federation.
        secret: the key from which to draw clients if they must stay secret; None to use the seed.
        clock: the durations of jobs.
        sizes: the numbers of examples of all clients.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        settings: Asynchronous,
        local: LocalTraining,
        availability: Availability,
        faults: Faults,
        seed: int,
        secret: SecretKey | None,
        clock: Clock,
        sizes: Sequence[int],
    ) -> None:
        super().__init__(num_clients, 1.0, local, availability, faults, seed, secret, clock, sizes)
        self._slots, self._buffer, self._durations = settings.slots(num_clients), settings.buffer, clock

    def round(self, round_idx: int, queue: EventQueue = EventQueue()) -> AsynchronousPlan:  # noqa: B008 (frozen)
        """Return the updates that become the next model, and the clock when the last of them arrives.

        Raises:
            ClientError: if fewer updates can arrive than the round needs.
        """
        present = self._present(round_idx)

        def begin(tick: int, free: int, busy: Collection[int]) -> list[Flight]:
            return self._begin(round_idx, tick, free, [client for client in present if client not in busy])

        flush = until_flush(queue, self._buffer, self._slots, begin)
        if len(flush.arrived) < max(1, self._faults.needed(self._buffer)):
            raise ClientError(
                f"Round {round_idx}: {len(flush.arrived)} updates can arrive, but a new model needs "
                f"{max(1, self._faults.needed(self._buffer))}. Lower 'drop_out' and 'leave' of 'federation.availability', "
                "'federation.faults.min_updates', or 'federation.asynchronous.buffer'."
            )
        starts = {flight.client: flight.version for flight in flush.arrived}
        lost = tuple(sorted(flight.client for flight in flush.lost))
        return AsynchronousPlan(tuple(sorted(starts)), len(starts) + len(lost), lost, queue=flush.queue, starts=starts)

    def _begin(self, round_idx: int, tick: int, free: int, clients: Sequence[int]) -> list[Flight]:
        """Return the jobs of clients that are drawn from those that can begin one."""
        if not clients:
            return []
        order = None
        if self._secret is not None:
            order = self._secret.stream("cohort", round_idx).permutation(self._num_clients)
        chosen = draw_cohort(self._num_clients, free, self._seed, round_idx, clients, order)
        return [self._flight(client, round_idx, tick) for client in chosen]

    def _flight(self, client: int, round_idx: int, tick: int) -> Flight:
        slowness = self._slowness.get(client, 1.0)
        duration = self._durations.duration(client, round_idx, self._sizes, self._seed, slowness)
        return Flight(tick + duration, client, round_idx, self._availability.loses(client, self._seed, round_idx))


@dataclass
class AsynchronousRound(FederationRound):
    """Train the clients whose updates become a new model, each from its own start; see :class:`FederationRound`.

    A job trains when its update arrives, not when it begins: the result is the same, and only start models must be kept.

    Args:
        start_models: the models from which clients started in earlier rounds.
    """

    start_models: StartModels = field(default_factory=StartModels)

    def deliver(self, chains: Chains) -> None:
        """Train the clients by the model that they started from, the newest last."""
        self._start_strategy([self.federation.data.num_examples(client) for (client,) in chains])
        self._chains = chains
        self._now = self._server.vector()
        starts, scored = self._starts, self._scored()
        for start in sorted(set(starts.values())):
            self._version, self._start = None, self._now
            if start < self.round_idx:
                model = self.start_models.of(start, self._server)
                self._version, self._start = self.federation.publish(model).version, start_vector(model, self._server)
            orders = self._orders([chain for chain in chains if starts[chain[0]] == start], scored=scored)
            error = self._drain(self._loop.run(orders), self._receive)
            self._error = self._error or error
        if self.round_idx not in starts.values():
            self._version = None  # the clients have an earlier model

    @property
    def _starts(self) -> Mapping[int, int]:
        assert isinstance(self.plan, AsynchronousPlan)
        return self.plan.starts

    def _receive(self, report: ChainReport) -> None:
        """Let failures belong to this round, not to that of the start."""
        failures = tuple(replace(failure, round_idx=self.round_idx) for failure in report.failures)
        super()._receive(replace(report, failures=failures))

    def _arrived(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update with its staleness, and with its change on top of the current model."""
        staleness = self.round_idx - self._starts[update.client]
        update = replace(update, round_idx=self.round_idx, staleness=staleness)
        if not staleness:
            return update
        sent = update.snapshot
        vector = sent.vector if self.federation.strategy.takes_stale_models else self._on_top(sent.vector)
        return replace(update, model=Snapshot(vector, torch.maximum(sent.counters, self._server.counters())))

    def _on_top(self, vector: Tensor) -> Tensor:
        """Return w_t plus the change of the parameters from the start. Buffers stay: sums of variances may be negative."""
        size = self._server.num_parameters
        change = to_float64(vector[:size]) - to_float64(self._start[:size]).to(vector.device)
        moved = change + to_float64(self._now[:size]).to(vector.device)
        return torch.cat([moved.to(vector), vector[size:]])
