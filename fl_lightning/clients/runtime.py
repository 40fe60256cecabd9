"""Run the clients of one process: their data, their state, and their responses to the server's orders.

In a simulation these are all clients of a rank; at a site, its own client. Nothing here needs the server: no strategy, no
outer Trainer, and no other client's data.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from fl_lightning.clients.answering import Questions, refuse_questions
from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.memory import HELD, ClientMemory
from fl_lightning.clients.outbox import Outbox
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.task_trainer import TaskTrainer
from fl_lightning.clients.update_editor import UpdateEditor
from fl_lightning.core.capabilities import Need
from fl_lightning.core.option import ClientHooks
from fl_lightning.errors import ClientError, add_note
from fl_lightning.messages import ClientTask, EvalOrder, EvalReport, Note, OwnModel, Question, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate
from fl_lightning.utilities.collectives import Collectives

NO_OWN = "this client has no model of its own yet"
"""The reason why there is no figure of a client's own model."""


class ClientRuntime:
    """Carry out the orders of a server for the clients of this process.

    Args:
        resident: the module that clients train.
        trainer: the trainer of single clients.
        tasks: carries out tasks with it.
        memory: the state that clients keep between rounds.
        outbox: the outbox that transforms their updates.
        hooks: the hooks of the options in use, by name, in order, which come before the outbox.
        evaluators: the evaluators of models on their examples.
        alone: a function that returns a trainer for clients that train outside of the federation, given the number of local
            epochs, or None for the number in the settings.
        name_of: returns the name of a client.
        fixed: the need of a part at the clients that training changes no tensor without a gradient; None without one.
    """

    def __init__(
        self,
        *,
        resident: ResidentModel,
        trainer: LocalTrainer,
        tasks: TaskTrainer,
        memory: ClientMemory,
        outbox: Outbox,
        hooks: Mapping[str, ClientHooks],
        evaluators: ClientEvaluators,
        alone: Callable[[int | None], LocalTrainer],
        name_of: Callable[[int], str] = str,
        fixed: Need | None = None,
    ) -> None:
        self._name_of, self._fixed = name_of, fixed
        self.resident, self.trainer, self.memory, self._outbox = resident, trainer, memory, outbox
        self.hooks, self._by_option = (*hooks.values(),), hooks
        self._trainer_of_tasks, self._evaluators, self._alone = tasks, evaluators, alone
        self._alone_trainers: dict[int | None, LocalTrainer] = {}
        self._check: UpdateCheck | None = None
        self.questions = Questions(refuse_questions)
        """Answers questions about models, which only those may ask who set it."""

    # ---------------------------------------------------------------- orders

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""
        self.resident.publish(model)
        self._check = None

    @property
    def side_by_side(self) -> bool:
        """Return whether several clients train at once."""
        return self._trainer_of_tasks.side_by_side

    def train(self, tasks: deque[ClientTask]) -> Iterator[ClientUpdate | ClientFailure]:
        """Take tasks from a queue, and yield the result of each as soon as it is known; meanwhile others may be put there.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """
        check, trainer = self._begun(), self._trainer_of_tasks
        while tasks:
            if trainer.side_by_side:
                wave = list(tasks)
                tasks.clear()
                yield from trainer.train_together(wave, check)
            else:
                yield trainer.train(tasks.popleft(), check)

    def _begun(self) -> UpdateCheck:
        """Return the check of updates against the published model, for which the hooks are prepared once."""
        if self._check is None:
            self._check = UpdateCheck(self.resident.view(), self.resident.server, self._name_of, self._fixed)
            editor = UpdateEditor(self._check)
            for hook in self.hooks:
                hook.begin(self.resident.server.round_idx, editor)
            self._outbox.begin(self.resident.server.round_idx, editor)
        return self._check

    def answer(self, note: Note) -> Note:
        """Return the answer of an option's hooks to those at the server.

        Raises:
            ClientError: if no such option is in use, or it does not answer.
        """
        if note.option not in self._by_option:
            raise ClientError("The server asks for an option that is not in use here.")
        return replace(note, content=self._by_option[note.option].answer(note.client, note.content))

    def deliver(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate | ClientFailure | None:
        """Return an update as the server receives it; None if it waits for the updates of other clients.

        Raises:
            ClientError: if it cannot be aggregated and the policy is ``fatal``.
        """
        try:
            return self._sent(task, update)
        except ClientError as error:
            return self._trainer_of_tasks.failed(task, error, 1)

    def _sent(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate | None:
        sent: ClientUpdate | None = update
        for hook in self.hooks:
            sent = None if sent is None else hook.send(sent)
        if sent is None:
            return None
        sent = self._outbox.send(sent)
        if self._evaluators.measures("sent"):
            sent = self._scored(sent)
        for hook in self.hooks:
            sent = hook.seal(task, sent)
        return sent

    def _scored(self, update: ClientUpdate) -> ClientUpdate:
        """Return an update with the score of the model that is sent."""
        try:
            score = self._evaluators.score(update.snapshot, "sent", update.client, "validation")
        except Exception as error:
            add_note(error, f"In the evaluation on the validation examples of client {self._name_of(update.client)}.")
            raise
        return replace(update, local_score=score)

    def drained(self, comm: Collectives, waiting: int) -> None:
        """Tell the hooks that all updates that do not wait are delivered, if some may wait, on any rank."""
        self._begun()  # this rank may have had no client
        for hook in self.hooks if any(hook.waits for hook in self.hooks) else ():
            hook.drained(comm, waiting)

    def evaluate(self, order: EvalOrder) -> EvalReport:
        """Evaluate a model on a client's examples, after any tasks that the client should first train alone."""
        if order.question is not None:
            return self._answered(order, order.question)
        model, own = self.memory.last_model(order.client) if order.own else order.model, None
        if order.tasks:
            if order.epochs not in self._alone_trainers:
                self._alone_trainers[order.epochs] = self._alone(order.epochs)
            alone = self._alone_trainers[order.epochs]
            alone.forget()
            if order.model is None:  # fine-tuning continues from what the client holds
                alone.memory.put(order.client, HELD, self.memory.held(order.client))
            for task in order.tasks:
                (result,) = alone.train([replace(task, start=model)])
                alone.keep(result)
                model, own = result.update.snapshot, alone.memory.held(order.client)
        try:
            value = self._evaluators.score(model, order.metric, order.client, order.part, own)
        except Exception as error:
            add_note(error, f"In the evaluation on the {order.part} examples of client {self._name_of(order.client)}.")
            raise
        return EvalReport(order.client, value)

    def own_model(self, client: int) -> OwnModel:
        """Return the complete model that a client has for itself; without tensors if it has none yet."""
        kept = self.memory.last_model(client)
        if kept is None and not self.resident.server.first:
            return OwnModel(client, {})
        self.resident.load(kept, self.memory.held(client))
        view = self.resident.view()
        return OwnModel(client, {k: t.detach().cpu().clone() for k, t in {**view.tensors(), **view.held_tensors()}.items()})

    def _answered(self, order: EvalOrder, question: Question) -> EvalReport:
        """Answer a question about a model."""
        kept = self.memory.last_model(order.client) if order.own else None
        if order.own and kept is None and not self.resident.server.first:
            return EvalReport(order.client, math.nan, reason=NO_OWN)
        try:
            found = self._evaluators.predictions(kept if order.own else order.model, order.client, order.part)
            return self.questions.answer(question, order.client, *found)
        except Exception as error:
            add_note(error, f"In the evaluation on the {order.part} examples of client {self._name_of(order.client)}.")
            raise

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the hooks have counted since the last call, and the number of each client's transformed messages."""
        found = {"sent": self._outbox.take_sent()}
        for hook in self.hooks:
            found |= hook.counts()
        return found

    def settle(self, accepted: Collection[int]) -> None:
        """Restore the state of clients whose updates the server did not accept."""
        self.memory.end_round(accepted)

    def close(self) -> None:
        """Release the engines and the last client's data. What clients keep can still be read."""
        for trainer in (self.trainer, *self._alone_trainers.values()):
            trainer.engine.close()
        self.resident.module.trainer = None
