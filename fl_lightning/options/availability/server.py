"""Leave out absent clients, lose some of a cohort, and let slow clients do less, or take longer, and follow simulated time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from fl_lightning.core.hooks import USUAL_TICKS, ServerContext, ServerHooks
from fl_lightning.messages import ClientTask
from fl_lightning.server.checks.compatibility import require_steps
from fl_lightning.server.federation import Federation
from fl_lightning.server.round_result import RoundResult
from fl_lightning.server.sampling import RoundPlan

if TYPE_CHECKING:
    from fl_lightning.options.availability.settings import Availability, Clock


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
            require_steps("federation.availability.slow", context.settings.local)
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
