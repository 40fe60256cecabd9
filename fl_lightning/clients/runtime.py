"""The clients of one process: their data, what they keep, and all that they do with the server's orders.

A simulation has all clients of a rank here, a site has its own. Nothing of the server is needed: no strategy, no outer
Trainer, no other client's data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fl_lightning.attacks.models import Crowd
from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.failures import UpdateCheck, describe, is_clients_fault
from fl_lightning.clients.local_trainer import LocalTrainer, Turn
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.outbox import Outbox
from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.stored_state import Kept, StoredState
from fl_lightning.errors import ClientError
from fl_lightning.messages import ChainReport, ClientJob, EvalOrder, EvalReport, ServerModel, TrainOrder
from fl_lightning.settings.faults import Faults
from fl_lightning.types import ClientFailure, ClientUpdate


def _ignore(*_: object) -> None:
    """Hear of nothing."""


@dataclass(frozen=True)
class Listener:
    """Functions that hear of clients while they train.

    Attributes:
        starts: gets a turn that begins.
        passes_on: gets the update of a client whose model goes to the next client of its chain.
    """

    starts: Callable[[ClientJob], None] = _ignore
    passes_on: Callable[[ClientUpdate], None] = _ignore


class ClientRuntime:
    """Carry out the orders of a server for the clients whose data lie here.

    Args:
        resident: the module in which they train.
        trainer: trains them.
        memory: what they keep over rounds.
        outbox: prepares their updates for the server.
        evaluators: measure models on their examples.
        faults: how often a client that failed tries again, and whether the round goes on without it.
        private: makes the clients' steps private, or None.
        in_place: whether tensors that clients keep may be changed in place: no update and no round is taken back.
        alone: returns a trainer for clients that train by themselves, given local epochs or None for the settings'.
        listener: hears of clients while they train.
    """

    def __init__(
        self,
        *,
        resident: ResidentModel,
        trainer: LocalTrainer,
        memory: ClientMemory,
        outbox: Outbox,
        evaluators: ClientEvaluators,
        faults: Faults,
        private: PrivateSteps | None = None,
        in_place: bool = False,
        alone: Callable[[int | None], LocalTrainer],
        listener: Listener = Listener(),
    ) -> None:
        self.resident, self.trainer, self.memory, self._outbox = resident, trainer, memory, outbox
        self._evaluators, self._faults, self._alone, self._listener = evaluators, faults, alone, listener
        self._private, self._in_place = private, in_place
        self._alone_trainers: dict[int | None, LocalTrainer] = {}
        self._check: UpdateCheck | None = None
        self._before: dict[int, Kept | StoredState] = {}  # what clients kept before updates that may still be rejected
        self._held: list[list[ClientUpdate]] = []

    # ---------------------------------------------------------------- orders

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""
        self.resident.publish(model)
        self._check = None

    def train(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """Train chains of clients, and yield what became of each as soon as it is known.

        Attackers that act together have no report here, but in :meth:`answer`.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``; any other error that is not a client's.
        """
        if self._check is None:
            self._check = UpdateCheck(self.resident.view(), self.resident.server)
            self._outbox.begin(self.resident.server.round_idx, self._check)
            self._held = []
        if self.trainer.engine.kind.side_by_side:
            yield from self._side_by_side(orders)
            return
        for order in orders:
            yield from self._report(order, *self._one_after_another(order))

    @property
    def acts_together(self) -> bool:
        """Return whether attackers wait for :meth:`answer`."""
        return self._check is not None and self._outbox.acts_together

    @property
    def outbox(self) -> Outbox:
        """Return what prepares the updates."""
        return self._outbox

    @property
    def held(self) -> int:
        """Return how many attackers wait for :meth:`answer`."""
        return len(self._held)

    def answer(self, crowd: Crowd | None) -> Iterator[ChainReport]:
        """Yield the reports of attackers that act together.

        Args:
            crowd: what they know of the honest updates.
        """
        held, self._held = self._held, []
        for updates in held:
            yield self._sent(updates, (), lambda update: self._outbox.forged(update, crowd))

    def evaluate(self, order: EvalOrder) -> EvalReport:
        """Measure a model on a client's examples, after the turns that the client should train alone."""
        model = self.memory.last_model(order.client) if order.own else order.model
        if order.jobs:
            if order.epochs not in self._alone_trainers:
                self._alone_trainers[order.epochs] = self._alone(order.epochs)
            for job in order.jobs:
                (update,) = self._alone_trainers[order.epochs].train([(job, model)])
                model = update.snapshot
        value = self._evaluators.score(model, order.metric, order.client, order.part)
        return EvalReport(order.client, value)

    def releases(self) -> dict[str, dict[int, int]]:
        """Return each client's noisy messages (``sent``) and steps (``steps``) since the last call."""
        return {"sent": self._outbox.take_sent(), "steps": {} if self._private is None else self._private.take()}

    def settle(self, accepted: Collection[int]) -> None:
        """Drop what clients keep of updates that the server did not accept."""
        for client in self._before.keys() - set(accepted):
            self.memory.restore(client, self._before[client])
        self._before.clear()

    # ---------------------------------------------------------------- one chain

    def _one_after_another(self, order: TrainOrder) -> tuple[list[ClientUpdate], list[ClientFailure]]:
        """Return the updates of a chain's clients, the last one with its model, and its failures."""
        updates: list[ClientUpdate] = []
        failures: list[ClientFailure] = []
        passed_on: ClientUpdate | None = None
        for job in order.jobs:
            if updates and passed_on is not updates[-1]:
                passed_on = updates[-1]
                self._listener.passes_on(passed_on)
            result = self._attempt((job, updates[-1].snapshot if updates else order.start))
            if isinstance(result, ClientFailure):
                failures.append(result)
                continue
            updates[-1:] = [earlier.without_state() for earlier in updates[-1:]]
            updates.append(result)
        return updates, failures

    def _attempt(self, turn: Turn) -> ClientUpdate | ClientFailure:
        """Train one client, as often as it may try."""
        job, _ = turn
        begun: tuple[float | None] | None = None
        for attempt in range(1, self._faults.retries + 2):
            try:
                begun = begun or (self._start(job),)
                (update,) = self.trainer.train([turn])
                return self._accepted(update, job, *begun)
            except Exception as error:
                self._recover()
                if attempt > self._faults.retries or not is_clients_fault(error):
                    return self._failed(job, error, attempt)
        raise AssertionError("the last attempt returns or raises")

    def _report(
        self, order: TrainOrder, updates: list[ClientUpdate], failures: Sequence[ClientFailure]
    ) -> Iterator[ChainReport]:
        """Yield the report of a chain; none if its attackers wait."""
        if not updates or not order.delivers:
            yield ChainReport(tuple(updates), tuple(failures))
        elif self._outbox.waits(updates[-1]):
            self._held.append(updates)
        else:
            yield self._sent(updates, failures, self._outbox.send)

    def _sent(
        self,
        updates: list[ClientUpdate],
        failures: Sequence[ClientFailure],
        send: Callable[[ClientUpdate], ClientUpdate],
    ) -> ChainReport:
        """Return the report with what the server gets of a chain."""
        try:
            last = send(updates[-1])
        except ClientError as error:
            jobs = [ClientJob(update.client, update.round_idx) for update in updates]
            return ChainReport((), (*failures, *(self._failed(job, error, 1) for job in jobs)))
        if self._evaluators.measures("sent"):
            score = self._evaluators.score(last.snapshot, "sent", last.client, "validation")
            last = replace(last, local_score=score)
        return ChainReport((*updates[:-1], last), tuple(failures))

    # ---------------------------------------------------------------- side by side

    def _side_by_side(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """Train all first clients of the chains together, then all second ones, and so on."""
        done: dict[int, list[ClientUpdate]] = {number: [] for number in range(len(orders))}
        failures: dict[int, list[ClientFailure]] = {number: [] for number in range(len(orders))}
        passed_on: dict[int, ClientUpdate] = {}
        for position in range(max((len(order.jobs) for order in orders), default=0)):
            turns: dict[int, Turn] = {}
            for number, order in enumerate(orders):
                if position >= len(order.jobs):
                    continue
                earlier = done[number][-1:]
                if earlier and passed_on.get(number) is not earlier[0]:
                    passed_on[number] = earlier[0]
                    self._listener.passes_on(earlier[0])
                turns[number] = order.jobs[position], earlier[0].snapshot if earlier else order.start
            for number, result in self._together(turns):
                if isinstance(result, ClientFailure):
                    failures[number].append(result)
                else:
                    done[number][-1:] = [before.without_state() for before in done[number][-1:]]
                    done[number].append(result)
                if position + 1 == len(orders[number].jobs):  # at once: nobody holds the models of a whole round
                    yield from self._report(orders[number], done.pop(number), failures.pop(number))

    def _together(self, turns: Mapping[int, Turn]) -> Iterator[tuple[int, ClientUpdate | ClientFailure]]:
        """Train clients side by side; where an error stops them all, each one tries alone, so that it fails for itself.

        Args:
            turns: by the number of the chain.
        """
        waiting = dict(turns)
        begun: dict[int, float | None] = {}
        number_of = {job.client: number for number, (job, _) in turns.items()}
        for attempt in range(1, self._faults.retries + 2):
            try:
                for number, (job, _) in waiting.items():
                    if number not in begun:
                        begun[number] = self._start(job)
                for update in self.trainer.train(list(waiting.values())):
                    number = number_of[update.client]
                    job, _ = waiting.pop(number)
                    try:
                        result: ClientUpdate | ClientFailure = self._accepted(update, job, begun[number])
                    except ClientError as error:
                        result = self._failed(job, error, attempt)
                    yield number, result
                return
            except Exception as error:
                self._recover()
                last = attempt > self._faults.retries or not is_clients_fault(error)
                if last and (len(waiting) == 1 or not self._skips(error)):
                    for number, (job, _) in waiting.items():
                        yield number, self._failed(job, error, attempt)
                    return
        for number, turn in waiting.items():
            yield number, self._attempt(turn)

    # ---------------------------------------------------------------- one client

    def _start(self, job: ClientJob) -> float | None:
        """Announce a client, and score the global model on its examples if the strategy asks for it."""
        self._listener.starts(job)
        if not self._evaluators.measures("start"):
            return None
        return self._evaluators.score(None, "start", job.client, "training")

    def _accepted(self, update: ClientUpdate, job: ClientJob, before: float | None) -> ClientUpdate:
        """Return an update that can be aggregated, and store what its client keeps.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        assert self._check is not None
        update = self._check(update)
        if self._faults.skips:
            self._before[update.client] = self.memory.entry(update.client)
        self.trainer.keep(update, job, self._in_place)
        return replace(update, global_score=before)

    def _skips(self, error: Exception) -> bool:
        return self._faults.skips and is_clients_fault(error)

    def _failed(self, job: ClientJob, error: Exception, attempts: int) -> ClientFailure:
        """Return a client's failure, where the policy allows the round to go on; otherwise raise the error."""
        if not self._skips(error):
            if hasattr(error, "add_note"):  # not in Python 3.10
                error.add_note(f"In round {job.round_idx}, client {job.client}.")
            raise error
        if job.client in self._before:
            self.memory.restore(job.client, self._before.pop(job.client))
        return ClientFailure(job.client, job.round_idx, describe(error), attempts)

    def _recover(self) -> None:
        """Drop what a client's error may have left half done, and the memory that it took."""
        self.trainer.engine.recover()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
