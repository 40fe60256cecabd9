"""Train single clients, with retries and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch

from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.failures import UpdateCheck, describe, is_clients_fault
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.session import LocalResult
from fl_lightning.errors import add_note
from fl_lightning.messages import ClientTask
from fl_lightning.settings.faults import Faults
from fl_lightning.types import ClientFailure, ClientUpdate

Result = ClientUpdate | ClientFailure


class TaskTrainer:
    """Carry out tasks with one trainer.

    Args:
        trainer: the trainer of the clients.
        memory: the state that clients keep between rounds.
        evaluators: the evaluators of the global model on the clients' examples, if the strategy needs its scores.
        faults: how often to retry a failed client, and whether to continue the round without it.
        starts: called with each turn that begins.
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
        starts: Callable[[ClientTask], None],
        name_of: Callable[[int], str] = str,
        tell: Callable[[Exception], str] = describe,
    ) -> None:
        self._name_of, self._tell = name_of, tell
        self._trainer, self._memory, self._evaluators, self._faults = trainer, memory, evaluators, faults
        self._starts = starts

    @property
    def side_by_side(self) -> bool:
        """Return whether several clients train at once."""
        return self._trainer.engine.side_by_side

    def train(self, task: ClientTask, check: UpdateCheck) -> Result:
        """Train one client, with as many attempts as the policy allows.

        Raises:
            ClientError: if the client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """
        begun: tuple[float | None] | None = None
        for attempt in range(1, self._faults.retries + 2):
            try:
                begun = begun or (self._start(task),)
                (result,) = self._trainer.train([task])
                return self._accepted(result, check, *begun)
            except Exception as error:
                self._recover()
                if attempt > self._faults.retries or not is_clients_fault(error):
                    return self.failed(task, error, attempt)
        raise AssertionError("the last attempt returns or raises")

    def train_together(self, tasks: Sequence[ClientTask], check: UpdateCheck) -> Iterator[Result]:
        """Train clients side by side; if an error stops all of them, train each one alone, so that only the faulty one fails.

        Raises:
            ClientError: as :meth:`train` does.
        """
        waiting = {task.client: task for task in tasks}
        begun: dict[int, float | None] = {}
        for attempt in range(1, self._faults.retries + 2):
            training = self._trainer.train(list(waiting.values()))
            while True:
                try:
                    for client, task in waiting.items():
                        if client not in begun:
                            begun[client] = self._start(task)
                    found = [*islice(training, 1)]
                except Exception as error:
                    self._recover()
                    if not is_clients_fault(error):
                        raise
                    if attempt > self._faults.retries and len(waiting) == 1:
                        yield from (self.failed(task, error, attempt) for task in waiting.values())
                        return
                    break
                if not found:
                    return
                client = waiting.pop(found[0].update.client).client
                yield self._judged(found.pop(), check, begun[client], attempt)
        yield from (self.train(task, check) for task in waiting.values())

    def _judged(self, result: LocalResult, check: UpdateCheck, before: float | None, attempt: int) -> Result:
        """Return an update that can be aggregated, or the client's failure."""
        try:
            return self._accepted(result, check, before)
        except Exception as error:
            return self.failed(result.prepared.task, error, attempt)

    def _start(self, task: ClientTask) -> float | None:
        """Announce a client, and score the global model on its examples if the strategy needs the score."""
        self._starts(task)
        if not self._evaluators.measures("start"):
            return None
        return self._evaluators.score(None, "start", task.client, "training")

    def _accepted(self, result: LocalResult, check: UpdateCheck, before: float | None) -> ClientUpdate:
        """Return an update that can be aggregated, and store its client's state.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        result = replace(result, update=check(result.update))
        self._trainer.keep(result)
        return replace(result.update, global_score=before)

    def failed(self, task: ClientTask, error: Exception, attempts: int) -> ClientFailure:
        """Return a client's failure if the policy allows the round to continue; otherwise raise the error."""
        if not (self._faults.skips and is_clients_fault(error)):
            add_note(error, f"In round {task.round_idx}, client {self._name_of(task.client)}.")
            raise error
        self._memory.undo(task.client)
        return ClientFailure(task.client, task.round_idx, self._tell(error), attempts)

    def _recover(self) -> None:
        """Discard unfinished work after a client's error, and free its memory."""
        self._trainer.engine.recover()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
