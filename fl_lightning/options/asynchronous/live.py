"""Run asynchronous rounds with clients at sites, whose updates really arrive one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.clients.pool import LastingPool
from fl_lightning.core.loop import ChainRun
from fl_lightning.functional.event_queue import EventQueue, Flight
from fl_lightning.messages import ClientTask
from fl_lightning.options.asynchronous.jobs import start_vector
from fl_lightning.options.asynchronous.round import AsynchronousRound
from fl_lightning.options.asynchronous.sampler import AsynchronousPlan, AsynchronousSampler
from fl_lightning.routes.base import Chains
from fl_lightning.server.round_result import RoundResult


@dataclass(frozen=True, kw_only=True)
class LiveSampler(AsynchronousSampler):
    """Say who may begin a task; which updates arrive is known only at the end of a round. See :class:`AsynchronousSampler`."""

    def round(self, round_idx: int) -> AsynchronousPlan:
        """Return a plan without events."""
        return self.of(round_idx, (), (), self.in_progress.queue)


@dataclass
class LiveRound(AsynchronousRound):
    """Let clients train until enough updates have arrived; the tasks of the others outlast the round.

    Updates wait in memory until the buffer is full, so that the strategy knows the clients of the round when it starts, as in a
    simulation.

    Args:
        sampler: says who may begin a task.
    """

    sampler: LiveSampler = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lasting = cast(LastingPool, self._pool)
        self._begun = {flight.client: flight.version for flight in self.in_progress.queue.flights}

    @property
    def _starts(self) -> Mapping[int, int]:
        return self._begun

    def deliver(self, chains: Chains) -> None:
        """Wait for updates, and pass them to the strategy, those from the newest model last."""
        arrived = self._gather()
        self._settle_plan()
        if not arrived:
            return
        self._start_strategy([self.federation.data.num_examples(client) for client in self.clients])
        self._now = self._server.vector()
        by_start = sorted(arrived, key=lambda chain: chain.tasks[0].round_idx)
        self._error = self._drain(iter(by_start), self._take_from_start)
        if self.federation.strategy.metric is not None:
            self.federation.evaluators.publish(self.federation.model_of())

    def _take_from_start(self, chain: ChainRun) -> None:
        """Pass an update to the strategy, scored beside the other tensors of the model from which its client started."""
        model = self.in_progress.start_of(chain.tasks[0].round_idx, self._server)
        self._start = start_vector(model, self._server)
        if self.federation.strategy.metric is not None:
            self.federation.evaluators.publish(self.federation.model_of(model.round_idx, model.tensors))
        self._receive(chain)

    def _gather(self) -> list[ChainRun]:
        """Return the tasks that end with an update until the buffer is full, or until none is under way."""
        arrived: list[ChainRun] = []
        self._take_up()
        for chain in self._loop.keep_busy(self.in_progress.running, self._more):
            task = chain.tasks[0]
            self.in_progress.ends.append(Flight(0, task.client, task.round_idx, not chain.updates))
            self._failures += [replace(failure, round_idx=self.round_idx) for failure in chain.failures]
            arrived += [chain] if chain.updates else []
            if len(arrived) == self.sampler.buffer:
                break
        if not self._failures:
            self.sampler.require(self.round_idx, len(arrived))
        return arrived

    def _more(self) -> Sequence[Sequence[ClientTask]]:
        """Return tasks of clients that can begin one from the current model, as long as there are slots."""
        running = self.in_progress.running
        unable = {*running, *self._lasting.absent(), *(one.client for one in self.in_progress.ends)}
        present = [client for client in self.sampler.candidates(self.round_idx) if client not in unable]
        chosen = self.sampler.drawn(self.round_idx, self.sampler.slots - len(running), present)
        self._begun |= dict.fromkeys(chosen, self.round_idx)
        return self._orders([[client] for client in chosen])

    def _published(self) -> int:
        """Publish a copy of the global model once, which does not change while tasks refer to it."""
        if self._version is None:
            model = self.in_progress.hold(self.round_idx, self._server)
            self._version = self.federation.publish(self.round_idx, model.tensors).version
        return self._version

    def _take_up(self) -> None:
        """Ask once more for the tasks that an earlier process of the server has begun, which charges them again."""
        running, asked = self.in_progress.running, self.in_progress.asked
        lost = [flight for flight in self.in_progress.queue.flights if flight.client not in running]
        if not lost:
            return
        self._published()
        self._lasting.absent()
        for client, version in ((flight.client, flight.version) for flight in lost):
            start = self.in_progress.start_of(version, self._server)
            model = self.federation.model_of(version, start.tensors)
            plain = ClientTask(client, self.round_idx, own_model=self.from_own_models, progress=self.progress)
            task = replace(self._task(plain), version=model.version)
            for hook in self.hooks:
                hook.charge(self.federation, self.round_idx, self.plan, [task])
            running[client] = ChainRun([task]), task
            self._lasting.take_up(task, model, asked.get(client, b""))
        names = ", ".join(self.federation.data.client_name(flight.client) for flight in lost)
        rank_zero_info(f"Tasks that were under way when the run stopped are asked for once more: {names}.")

    def _settle_plan(self) -> None:
        """Let the round be that of the clients whose tasks have ended; those that failed are reported as failures."""
        ends = self.in_progress.ends
        arrived, lost = ([flight for flight in ends if flight.lost is which] for which in (False, True))
        self.plan = replace(self.sampler.of(self.round_idx, arrived, lost, self._under_way()), lost=())
        self.clients = self.plan.clients
        self._chains = [[client] for client in self.clients]
        self._gathered = self._gathering()

    def _under_way(self) -> EventQueue:
        running = self.in_progress.running.items()
        return EventQueue(0, tuple(sorted(Flight(0, client, task.round_idx) for client, (_, task) in running)))

    def result(self) -> RoundResult:
        """Return the result of the round, and note what asks once more for the tasks under way."""
        result = super().result()
        self.in_progress.asked = dict(self._lasting.under_way())
        return result
