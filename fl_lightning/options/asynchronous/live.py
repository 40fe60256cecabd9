"""Run asynchronous rounds with clients at sites, whose updates really arrive one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.core.federation import Chain, LastingPool
from fl_lightning.functional.event_queue import EventQueue, Flight
from fl_lightning.messages import ServerModel
from fl_lightning.options.asynchronous.jobs import pass_on, start_vector
from fl_lightning.options.asynchronous.sampler import AsynchronousPlan, AsynchronousSampler
from fl_lightning.server.round import FederationRound
from fl_lightning.types import ClientFailure, ClientUpdate


@dataclass(frozen=True, kw_only=True)
class LiveSampler(AsynchronousSampler):
    """Say who may begin a task; which updates arrive is known only at the end of a round. See :class:`AsynchronousSampler`."""

    def round(self, round_idx: int) -> AsynchronousPlan:
        """Return a plan without events."""
        return self.of(round_idx, (), (), self.in_progress.queue)


class LiveRound:
    """Let clients train until enough updates have arrived; the tasks of the others outlast the round.

    Updates wait in memory until the buffer is full, so that the strategy knows the clients of the round when it starts, as in a
    simulation.

    Args:
        current: the round.
        sampler: says who may begin a task.
    """

    def __init__(self, current: FederationRound, sampler: LiveSampler) -> None:
        self._current, self._sampler, self._in_progress = current, sampler, sampler.in_progress
        self._federation, self._pool = current.federation, cast(LastingPool, current.federation.pool)

    def deliver(self) -> None:
        """Wait for updates, and pass them to the strategy, those from the newest model last."""
        self._take_up()
        self._begin_more()
        arrived: list[tuple[int, ClientUpdate]] = []  # with the rounds of their starts
        ends, running, current = self._in_progress.ends, self._in_progress.running, self._current

        def take(result: ClientUpdate | ClientFailure) -> bool:
            start = running.pop(result.client)
            ends.append(Flight(0, result.client, start, isinstance(result, ClientFailure)))
            if isinstance(result, ClientFailure):
                current.failures.append(replace(result, round_idx=current.round_idx))
            else:
                arrived.append((start, result))
            if len(arrived) < self._sampler.buffer:
                self._begin_more()
            return len(arrived) < self._sampler.buffer

        self._pool.follow(take)
        if not current.failures:
            self._sampler.require(current.round_idx, len(arrived))
        self._settle_plan()
        if arrived:
            self._aggregate(arrived)

    def _begin_more(self) -> None:
        """Begin tasks of clients that can begin one from the current model, as long as there are slots."""
        running = self._in_progress.running
        unable = {*running, *self._pool.absent(), *(one.client for one in self._in_progress.ends)}
        present = [client for client in self._sampler.candidates(self._current.round_idx) if client not in unable]
        chosen = self._sampler.drawn(self._current.round_idx, self._sampler.slots - len(running), present)
        for (task,) in self._current.orders([[client] for client in chosen], start=self._model if chosen else None):
            running[task.client] = self._current.round_idx
            self._pool.begin(task)

    @cached_property
    def _model(self) -> ServerModel:
        """Publish a copy of the global model, which does not change while tasks refer to it."""
        held = self._in_progress.hold(self._current.round_idx, self._federation.server)
        return self._federation.publish(self._current.round_idx, held.tensors)

    def _take_up(self) -> None:
        """Ask once more for the tasks that an earlier process of the server has begun, which charges them again."""
        running, asked = self._in_progress.running, self._in_progress.asked
        lost = [flight for flight in self._in_progress.queue.flights if flight.client not in running]
        if not lost:
            return
        _ = self._model
        self._pool.absent()
        for client, version in ((flight.client, flight.version) for flight in lost):
            start = self._in_progress.start_of(version, self._federation.server)
            model = self._federation.model_of(version, start.tensors)
            ((task,),) = self._current.orders([[client]], start=model)
            running[client] = version
            self._pool.take_up(task, model, asked.get(client, b""))
        names = ", ".join(self._federation.data.client_name(flight.client) for flight in lost)
        rank_zero_info(f"Tasks that were under way when the run stopped are asked for once more: {names}.")

    def _settle_plan(self) -> None:
        """Let the round be that of the clients whose tasks have ended; those that failed are reported as failures."""
        ends = self._in_progress.ends
        arrived, lost = ([flight for flight in ends if flight.lost is which] for which in (False, True))
        under_way = tuple(sorted(Flight(0, client, start) for client, start in self._in_progress.running.items()))
        plan = self._sampler.of(self._current.round_idx, arrived, lost, EventQueue(0, under_way))
        self._current.plan, self._current.clients = replace(plan, lost=()), plan.clients

    def _aggregate(self, arrived: list[tuple[int, ClientUpdate]]) -> None:
        """Pass updates to the strategy, scored beside the other tensors of the models from which their clients started."""
        self._current.begin([[client] for client in self._current.clients])
        scored, server = self._federation.strategy.metric is not None, self._federation.server
        now = server.vector()
        for number, update in sorted(arrived, key=lambda one: one[0]):
            held = self._in_progress.start_of(number, server)
            if scored:
                self._federation.evaluators.publish(self._federation.model_of(number, held.tensors))
            pass_on(self._current, Chain([], [update]), start_vector(held, server), now, self._current.round_idx - number)
        if scored:
            self._federation.evaluators.publish(self._federation.model_of())
