"""Simulated clients that are absent, fail to deliver in time, or are slow, and how long each training takes, in ticks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Literal

import torch

from fl_lightning.core.capabilities import Capability, Removal
from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import USUAL_TICKS, OptionSettings, ServerHooks
from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator
from fl_lightning.messages import ClientTask
from fl_lightning.types import RoundResult
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    from fl_lightning.core.plan import RoundPlan

_NAME = "federation.availability."
Distribution = Literal["constant", "uniform", "exponential", "half_normal", "lognormal"]


@checks_types
@dataclass(frozen=True)
class Clock(OptionSettings):
    """Simulate how long clients train. It changes no result of synchronous rounds, and orders the events of asynchronous ones.

    Client k's training from the model of round t takes ``ticks * a_k * b_kt`` ticks, rounded, and at least one. The factors are
    drawn from distributions of mean 1: ``constant`` is always 1; ``uniform`` lies between 0.5 and 1.5; ``exponential`` is
    Exp(1); ``half_normal`` is ``|x| * sqrt(pi / 2)`` and ``lognormal`` is ``exp(x - 1/2)`` with x from N(0, 1). All draws
    depend only on the federation's seed, the client and the round.

    Args:
        between_clients: the distribution of a_k, which is drawn once for each client.
        between_jobs: the distribution of b_kt, which is drawn anew each time. FedBuff's authors simulate with ``half_normal``.
        ticks: the mean duration in ticks, a whole number >= 1.
        by_examples: whether a duration is also proportional to the client's number of examples; the mean client has factor 1.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    between_clients: Distribution = "constant"
    between_jobs: Distribution = "constant"
    ticks: int = USUAL_TICKS
    by_examples: bool = False

    setting = "availability.clock"
    simulated_only = True

    def __post_init__(self) -> None:
        require(self.ticks >= 1, _NAME + "clock.ticks", "a whole number of 1 or above", self.ticks)

    def removes(self) -> Iterator[Removal]:
        """Return what the clock does not simulate."""
        yield Removal(Capability.WAITING_CLIENTS, f"{self.title} does not simulate that", f"remove {self.title}")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        return ClockAtServer(self, context)

    def duration(self, client: int, round_idx: int, sizes: Sequence[int], seed: int, factor: float = 1.0) -> int:
        """Return the duration of a client's training in ticks, >= 1.

        Args:
            client: the client.
            round_idx: the round from whose model it starts.
            sizes: the numbers of examples of all clients.
            seed: the seed of the federation.
            factor: a further factor, such as the slowness of a slow client.
        """
        speed = _draw(self.between_clients, seed, client, "clock of the client")
        work = _draw(self.between_jobs, seed, client, round_idx, "clock of the job")
        share = sizes[client] * len(sizes) / sum(sizes) if self.by_examples else 1.0
        return max(1, round(self.ticks * speed * work * share * factor))


@checks_types
@dataclass(frozen=True)
class Availability(OptionSettings):
    """Simulate unreliable clients. All draws depend only on the federation's seed and the round.

    Args:
        drop_out: probability in [0, 1) that a client of a round's cohort does not deliver.
        slow: share in [0, 1] of all clients that are slow; the same clients are slow in all rounds.
        slowness: how many times slower they are, >= 1: within the round's deadline they do 1 / slowness of their steps, rounded
            down, but at least one. In asynchronous rounds they do all steps, and take that many times longer.
        leave: probability in [0, 1] that a client that is present is absent in the next round; in round 0 all are present.
        come_back: probability in (0, 1] that an absent client is present in the next round. In the long run, the share
            come_back / (leave + come_back) of all clients is present; cohorts are drawn from the present clients.
        clock: the simulated durations of clients' training, logged as ``federation/ticks``; None for no clock.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    drop_out: float = 0.0
    slow: float = 0.0
    slowness: float = 2.0
    leave: float = 0.0
    come_back: float = 0.5
    clock: Clock | None = None

    setting = "availability"
    simulated_only = True

    def __post_init__(self) -> None:
        require(0 <= self.drop_out < 1, _NAME + "drop_out", "from 0 to below 1", self.drop_out)
        require(0 <= self.slow <= 1, _NAME + "slow", "from 0 to 1", self.slow)
        require(self.slowness >= 1, _NAME + "slowness", "1 or above", self.slowness)
        require(0 <= self.leave <= 1, _NAME + "leave", "from 0 to 1", self.leave)
        require(0 < self.come_back <= 1, _NAME + "come_back", "above 0 and at most 1", self.come_back)

    @property
    def active(self) -> bool:
        """Return whether anything but the clock is set, which is an option of its own."""
        return replace(self, clock=None) != Availability()

    def removes(self) -> Iterator[Removal]:
        """Return what rounds lose whose clients may be missing."""
        if self.drop_out or self.leave:
            remedy = "lower 'drop_out' and 'leave' of 'federation.availability', if need be to 0"
            yield Removal(Capability.EVERY_CLIENT, "'federation.availability' may lose some", remedy)
        if self.leave:
            why = f"clients may be away, because '{_NAME}leave' is {self.leave}"
            yield Removal(Capability.FULL_DRAWS, why, f"set '{_NAME}leave' to 0")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server.

        Raises:
            ConfigurationError: if the engine cannot end the work of slow clients.
        """
        return AvailabilityAtServer(self, context)

    def slow_clients(self, num_clients: int, seed: int) -> frozenset[int]:
        """Return the slow clients, round(slow * K) of them."""
        order = torch.randperm(num_clients, generator=generator(seed, "slow clients")).tolist()
        return frozenset(order[: round(self.slow * num_clients)])

    def present(self, num_clients: int, seed: int) -> Iterator[list[int]]:
        """Yield the clients that are present in round 0, in round 1, and so on, in ascending order.

        Every round has random numbers of its own, so a resumed run finds the same clients.
        """
        there = torch.ones(num_clients, dtype=torch.bool)
        for round_idx in count():
            yield there.nonzero().flatten().tolist()
            draw = torch.rand(num_clients, generator=generator(seed, round_idx, "coming and going"))
            there = torch.where(there, draw >= self.leave, draw < self.come_back)

    def loses(self, client: int, seed: int, round_idx: int) -> bool:
        """Return whether a client that starts from the model of a round does not deliver, in asynchronous rounds."""
        if not self.drop_out:
            return False
        return float(torch.rand((), generator=generator(seed, round_idx, client, "drop out"))) < self.drop_out

    def dropped_out(self, cohort: Sequence[int], seed: int, round_idx: int) -> frozenset[int]:
        """Return the clients of a cohort that do not deliver."""
        if not self.drop_out:
            return frozenset()
        draw = torch.rand(len(cohort), generator=generator(seed, round_idx, "drop out"))
        return frozenset(client for client, x in zip(cohort, draw.tolist(), strict=True) if x < self.drop_out)


def _draw(distribution: Distribution, *key: int | str) -> float:
    """Return a number > 0 from a distribution of mean 1."""
    if distribution == "constant":
        return 1.0
    draw = generator(*key)
    if distribution == "uniform":
        return 0.5 + float(torch.rand((), generator=draw, dtype=torch.float64))
    if distribution == "exponential":
        return -math.log1p(-float(torch.rand((), generator=draw, dtype=torch.float64)))
    normal = float(torch.randn((), generator=draw, dtype=torch.float64))
    return abs(normal) * math.sqrt(math.pi / 2) if distribution == "half_normal" else math.exp(normal - 0.5)


class AvailabilityAtServer(ServerHooks):
    """Simulate who is there, who is slow and who is lost.

    Args:
        settings: the settings.
        context: the fit.

    Raises:
        ConfigurationError: if the engine cannot end the work of slow clients.
    """

    def __init__(self, settings: Availability, context: ServerContext) -> None:
        self._settings, self._num_clients, self._seed = settings, context.data.num_clients, context.seed
        self._deadline = context.synchronous  # ends the work of slow clients, which otherwise takes longer
        if settings.slow and self._deadline:
            context.settings.local.require_steps("federation.availability.slow")
        self._slow = settings.slow_clients(self._num_clients, self._seed)
        self._rounds, self._next_round = settings.present(self._num_clients, self._seed), 0

    def candidates(self, round_idx: int, clients: Sequence[int]) -> Sequence[int]:
        """Return the clients that are present."""
        if not self._settings.leave:
            return clients
        there = set(self._present(round_idx))
        return [client for client in clients if client in there]

    def _present(self, round_idx: int) -> list[int]:
        """Return the present clients: one step after the previous round, or all steps in a resumed run's first round."""
        if round_idx < self._next_round:
            self._rounds, self._next_round = self._settings.present(self._num_clients, self._seed), 0
        there = next(islice(self._rounds, round_idx - self._next_round, None))
        self._next_round = round_idx + 1
        return there

    def plan(self, plan: RoundPlan) -> RoundPlan:
        """Lose clients of the cohort."""
        if self._deadline:
            lost = self._settings.dropped_out(plan.cohort, plan.seed, plan.round_idx)
        else:  # other clients may start from the same model later
            lost = frozenset(k for k in plan.cohort if self._settings.loses(k, plan.seed, plan.round_idx))
        left = tuple(client for client in plan.clients if client not in lost)
        return replace(plan, clients=left, lost=tuple(sorted({*plan.lost, *lost})))

    def task(self, task: ClientTask) -> ClientTask:
        """Let slow clients do fewer steps until the deadline."""
        return replace(task, slowness=self._settings.slowness) if self._deadline and task.client in self._slow else task

    def duration(self, client: int, round_idx: int, ticks: float) -> float:
        """Let slow clients take longer."""
        return ticks * self._settings.slowness if client in self._slow else ticks

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the number of clients that dropped out."""
        return {"failures": float(len(result.lost))} if self._settings.drop_out else {}


class ClockAtServer(ServerHooks):
    """Say how long clients train, and follow the time of rounds that wait for the slowest client.

    Args:
        clock: the settings.
        context: the fit.
    """

    def __init__(self, clock: Clock, context: ServerContext) -> None:
        self._clock, self._seed, self._sizes = clock, context.seed, context.data.indices.sizes.tolist()
        self._epochs, self._follows = context.settings.local.max_epochs, context.synchronous
        self._tick = self._longest = 0

    def begin_round(self, round_idx: int) -> None:
        """Start the time with the first round."""
        self._tick, self._longest = self._tick if round_idx else 0, 0

    def task(self, task: ClientTask) -> ClientTask:
        """Note how long the task takes."""
        if self._follows:
            share = 1.0 if task.epochs is None else task.epochs / self._epochs
            taken = self._clock.duration(task.client, task.round_idx, self._sizes, self._seed, share)
            self._longest = max(self._longest, taken)
        return task

    def duration(self, client: int, round_idx: int, ticks: float) -> float:
        """Return the duration of a client's training."""
        return self._clock.duration(client, round_idx, self._sizes, self._seed, ticks / USUAL_TICKS)

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the time at the end of the round, which ends when the last of its clients has delivered."""
        self._tick += self._longest
        return {"ticks": float(self._tick)} if self._follows else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the time."""
        return {"tick": self._tick}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the time."""
        self._tick = state["tick"]
