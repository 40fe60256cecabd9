"""Simulate the events of asynchronous rounds: which clients' jobs end before the server has enough updates."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True, slots=True)
class Flight:
    """Describe a job that has begun. Jobs are ordered by the tick at which they end, then by client and version.

    Attributes:
        tick: the tick at which the job ends.
        client: the client's id, from 0.
        version: the number of the model from which it started, which is the round that used the model.
        lost: whether its update never arrives.
    """

    tick: int
    client: int
    version: int
    lost: bool = False


@dataclass(frozen=True, slots=True)
class EventQueue:
    """Hold the state of the simulated clock after a round.

    Attributes:
        tick: the current tick; 0 at the start.
        flights: the jobs that have begun and not ended, in order.
    """

    tick: int = 0
    flights: tuple[Flight, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain types, for a checkpoint."""
        flights = [[one.tick, one.client, one.version, one.lost] for one in self.flights]
        return {"tick": self.tick, "flights": flights}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> EventQueue:
        """Return the queue that :meth:`state_dict` described; a new one for an empty state."""
        return cls(state.get("tick", 0), tuple(Flight(*one) for one in state.get("flights", [])))


Begin = Callable[[int, int, Collection[int]], Collection[Flight]]
"""Begin jobs, given the tick, the number of free slots, and the clients that cannot begin one."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Hold what happened until the server had enough updates.

    Attributes:
        queue: the state afterwards.
        arrived: the jobs whose updates arrived, in order.
        lost: the jobs that ended without an update, in order.
    """

    queue: EventQueue
    arrived: tuple[Flight, ...]
    lost: tuple[Flight, ...]


def until_flush(queue: EventQueue, buffer: int, slots: int, begin: Begin) -> Flush:
    """Follow the events until the buffer is full, or until no job is left that could end.

    As long as the buffer is not full, all jobs that end at a tick are handled before jobs begin at this tick. A client whose
    job has ended begins no other one before the flush.

    Args:
        queue: the state after the last flush.
        buffer: the number of updates to wait for, >= 1.
        slots: the number of jobs at the same time, >= 1.
        begin: begins jobs of other clients than the given ones, at most as many as there are free slots.
    """
    flights, tick = list(queue.flights), queue.tick
    heapq.heapify(flights)
    arrived: list[Flight] = []
    lost: list[Flight] = []
    while len(arrived) < buffer:
        free = slots - len(flights)
        if free > 0 and not (flights and flights[0].tick == tick):
            for flight in begin(tick, free, {one.client for one in (*flights, *arrived, *lost)}):
                heapq.heappush(flights, flight)
        if not flights:
            break
        ended = heapq.heappop(flights)
        tick = ended.tick
        (lost if ended.lost else arrived).append(ended)
    return Flush(EventQueue(tick, tuple(sorted(flights))), tuple(arrived), tuple(lost))
