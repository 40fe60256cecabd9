"""Train chains of clients, each from the model of the previous one, with retries and failures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.failures import UpdateCheck, describe, is_clients_fault
from fl_lightning.clients.local_trainer import LocalTrainer, Turn
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.stored_state import Kept, StoredState
from fl_lightning.errors import add_note
from fl_lightning.messages import ClientJob, TrainOrder
from fl_lightning.settings.faults import Faults
from fl_lightning.types import ClientFailure, ClientUpdate

Chain = tuple[TrainOrder, list[ClientUpdate], list[ClientFailure]]
"""An order, the updates of its clients (the last one with its model), and the failures of the others."""


def _ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Listener:
    """Hold functions to call while clients train.

    Attributes:
        starts: called with each turn that begins.
        passes_on: called with the update of a client whose model goes to the next client of its chain.
    """

    starts: Callable[[ClientJob], None] = _ignore
    passes_on: Callable[[ClientUpdate], None] = _ignore


class ChainTrainer:
    """Train chains of clients with one trainer.

    Args:
        trainer: the trainer of the clients.
        memory: the state that clients keep between rounds.
        evaluators: the evaluators of the global model on the clients' examples, if the strategy needs its scores.
        faults: how often to retry a failed client, and whether to continue the round without it.
        in_place: whether to change the clients' stored tensors in place, which is safe if no update or round is ever undone.
        listener: the functions to call while clients train.
        name_of: returns the name of a client.
        tell: returns the description of an error that the server receives.
    """

    def __init__(
        self,
        *,
        trainer: LocalTrainer,
        memory: ClientMemory,
        evaluators: ClientEvaluators,
        faults: Faults,
        in_place: bool,
        listener: Listener,
        name_of: Callable[[int], str] = str,
        tell: Callable[[Exception], str] = describe,
    ) -> None:
        self._name_of, self._tell = name_of, tell
        self._trainer, self._memory, self._evaluators, self._faults = trainer, memory, evaluators, faults
        self._in_place, self._listener = in_place, listener
        self._before: dict[int, Kept | StoredState] = {}  # client state before updates that may still be rejected

    def train(self, orders: Sequence[TrainOrder], check: UpdateCheck) -> Iterator[Chain]:
        """Train chains, and yield each one as soon as it is done.

        Args:
            orders: the chains.
            check: the check that refuses updates that cannot be aggregated.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """
        self._check = check
        if self._trainer.engine.kind.side_by_side:
            yield from self._side_by_side(orders)
        else:
            yield from map(self._one_after_another, orders)

    def settle(self, accepted: Collection[int]) -> None:
        """Restore the state of clients whose updates the server did not accept."""
        for client in self._before.keys() - set(accepted):
            self._memory.restore(client, self._before[client])
        self._before.clear()

    def _one_after_another(self, order: TrainOrder) -> Chain:
        """Train the clients of one chain."""
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
        return order, updates, failures

    def _attempt(self, turn: Turn) -> ClientUpdate | ClientFailure:
        """Train one client, with as many attempts as the policy allows."""
        job, _ = turn
        begun: tuple[float | None] | None = None
        for attempt in range(1, self._faults.retries + 2):
            try:
                begun = begun or (self._start(job),)
                (update,) = self._trainer.train([turn])
                return self._accepted(update, job, *begun)
            except Exception as error:
                self._recover()
                if attempt > self._faults.retries or not is_clients_fault(error):
                    return self.failed(job, error, attempt)
        raise AssertionError("the last attempt returns or raises")

    def _side_by_side(self, orders: Sequence[TrainOrder]) -> Iterator[Chain]:
        """Train the first clients of all chains together, then the second ones, and so on."""
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
                if position + 1 == len(orders[number].jobs):  # immediately, so that the models of a whole round are never held
                    yield orders[number], done.pop(number), failures.pop(number)

    def _together(self, turns: Mapping[int, Turn]) -> Iterator[tuple[int, ClientUpdate | ClientFailure]]:
        """Train clients side by side; if an error stops all of them, train each one alone, so that only the faulty one fails.

        Args:
            turns: the turns, by the number of the chain.
        """
        waiting = dict(turns)
        begun: dict[int, float | None] = {}
        number_of = {job.client: number for number, (job, _) in turns.items()}
        for attempt in range(1, self._faults.retries + 2):
            training = self._trainer.train(list(waiting.values()))
            while True:
                try:
                    for number, (job, _) in waiting.items():
                        if number not in begun:
                            begun[number] = self._start(job)
                    update = next(training, None)
                except Exception as error:
                    self._recover()
                    if not is_clients_fault(error):
                        raise
                    if attempt > self._faults.retries and len(waiting) == 1:
                        yield from ((number, self.failed(job, error, attempt)) for number, (job, _) in waiting.items())
                        return
                    break
                if update is None:
                    return
                number = number_of[update.client]
                job, _ = waiting.pop(number)
                yield number, self._judged(update, job, begun[number], attempt)
        for number, turn in waiting.items():
            yield number, self._attempt(turn)

    def _judged(self, update: ClientUpdate, job: ClientJob, before: float | None, attempt: int) -> ClientUpdate | ClientFailure:
        """Return an update that can be aggregated, or the client's failure.

        Raises:
            ClientError: if it cannot be aggregated, and the policy is ``fatal``.
        """
        try:
            return self._accepted(update, job, before)
        except Exception as error:
            return self.failed(job, error, attempt)

    # ---------------------------------------------------------------- one client

    def _start(self, job: ClientJob) -> float | None:
        """Announce a client, and score the global model on its examples if the strategy needs the score."""
        self._listener.starts(job)
        if not self._evaluators.measures("start"):
            return None
        return self._evaluators.score(None, "start", job.client, "training")

    def _accepted(self, update: ClientUpdate, job: ClientJob, before: float | None) -> ClientUpdate:
        """Return an update that can be aggregated, and store its client's state.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        update = self._check(update)
        if self._faults.skips and update.client not in self._before:  # on some routes a client trains several times a round
            self._before[update.client] = self._memory.entry(update.client)
        self._trainer.keep(update, job, self._in_place)
        return replace(update, global_score=before)

    def _skips(self, error: Exception) -> bool:
        return self._faults.skips and is_clients_fault(error)

    def failed(self, job: ClientJob, error: Exception, attempts: int) -> ClientFailure:
        """Return a client's failure if the policy allows the round to continue; otherwise raise the error."""
        if not self._skips(error):
            add_note(error, f"In round {job.round_idx}, client {self._name_of(job.client)}.")
            raise error
        if job.client in self._before:
            self._memory.restore(job.client, self._before.pop(job.client))
        return ClientFailure(job.client, job.round_idx, self._tell(error), attempts)

    def _recover(self) -> None:
        """Discard unfinished work after a client's error, and free its memory."""
        self._trainer.engine.recover()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
