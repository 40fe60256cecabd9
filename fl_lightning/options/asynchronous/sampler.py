"""Plan asynchronous rounds: which updates arrive, by a simulated clock or as in an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_lightning.core.option import USUAL_TICKS
from fl_lightning.core.plan import ClientSampler, RoundPlan
from fl_lightning.errors import ClientError
from fl_lightning.functional.event_queue import EventQueue, Flight, until_flush
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.options.asynchronous.arrivals import Recording
from fl_lightning.options.asynchronous.jobs import JobsInProgress
from fl_lightning.routes.base import Chains


@dataclass(frozen=True, kw_only=True)
class AsynchronousPlan(RoundPlan):
    """Hold the updates that become a new model; see :class:`RoundPlan`.

    Attributes:
        queue: the simulated clock, or the tasks under way, at the end of the round.
        starts: the rounds from whose models the clients started, by client.
    """

    queue: EventQueue
    starts: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class AsynchronousSampler(ClientSampler):
    """Plan rounds from the events of a simulated clock; see :class:`ClientSampler`.

    Args:
        in_progress: the jobs that have begun before the round.
        slots: the number of clients that train at the same time.
        buffer: the number of updates in a new model.
        deliver: trains the clients of a round.
    """

    in_progress: JobsInProgress
    slots: int
    buffer: int
    deliver: Callable[[Any, Chains], None]

    def round(self, round_idx: int) -> AsynchronousPlan:
        """Return the updates that become the next model, and the clock when the last of them arrives.

        Raises:
            ClientError: if fewer updates can arrive than the round needs.
        """
        present = self.candidates(round_idx)

        def begin(tick: int, free: int, busy: Collection[int]) -> list[Flight]:
            return self._begin(round_idx, tick, free, [client for client in present if client not in busy])

        flush = until_flush(self.in_progress.queue, self.buffer, self.slots, begin)
        self.require(round_idx, len(flush.arrived))
        return self.of(round_idx, flush.arrived, flush.lost, flush.queue)

    def require(self, round_idx: int, updates: int) -> None:
        """Refuse a round that gets too few updates.

        Raises:
            ClientError: with the number that it needs.
        """
        needed = max(1, self.faults.needed(self.buffer))
        if updates < needed:
            raise ClientError(
                f"Round {round_idx}: {updates} updates can arrive, but a new model needs {needed}. "
                + self.advice("Lower 'federation.asynchronous.buffer' or 'federation.faults.min_updates'")
            )

    def of(self, round_idx: int, arrived: Collection[Flight], lost: Collection[Flight], queue: EventQueue) -> AsynchronousPlan:
        """Return the plan of a round from its events."""
        starts = {flight.client: flight.version for flight in arrived}
        gone = tuple(sorted(flight.client for flight in lost))
        return AsynchronousPlan(
            round_idx=round_idx,
            seed=self.seed,
            cohort=tuple(sorted([*starts, *gone])),
            clients=tuple(sorted(starts)),
            lost=gone,
            deliver=self.deliver,
            queue=queue,
            starts=starts,
        )

    def _begin(self, round_idx: int, tick: int, free: int, clients: Sequence[int]) -> list[Flight]:
        """Return the jobs of clients that are drawn from those that can begin one."""
        cohort = self.drawn(round_idx, free, clients)
        plan = self.followed(RoundPlan(round_idx=round_idx, seed=self.seed, cohort=cohort, clients=cohort))
        begun = sorted({*plan.clients, *plan.lost})
        return [Flight(tick + self._ticks(client, round_idx), client, round_idx, client in plan.lost) for client in begun]

    def drawn(self, round_idx: int, free: int, clients: Sequence[int]) -> tuple[int, ...]:
        """Return the clients, at most as many as are free to begin, that begin a task of those that can."""
        if not clients or free < 1:
            return ()
        order = None if self.secret is None else self.order(self.secret, round_idx)
        return draw_cohort(self.num_clients, free, self.seed, round_idx, clients, order)

    def _ticks(self, client: int, round_idx: int) -> int:
        ticks = float(USUAL_TICKS)
        for hook in self.hooks:
            ticks = hook.duration(client, round_idx, ticks)
        return max(1, round(ticks))


@dataclass(frozen=True, kw_only=True)
class ReplaySampler(AsynchronousSampler):
    """Plan the rounds of an earlier run; see :class:`AsynchronousSampler`.

    Args:
        recording: what happened in that run.
    """

    recording: Recording

    def round(self, round_idx: int) -> AsynchronousPlan:
        """Return the updates of the same round of the earlier run."""
        ends = [(one.lost, Flight(one.order, one.client, one.version, one.lost)) for one in self.recording.of(round_idx)]
        arrived, lost = ([flight for gone, flight in ends if gone is which] for which in (False, True))
        return self.of(round_idx, arrived, lost, self.recording.after(round_idx))
