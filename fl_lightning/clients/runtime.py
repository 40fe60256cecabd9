"""Run the clients of one process: their data, their state, and their responses to the server's orders.

In a simulation these are all clients of a rank; at a site, its own client. Nothing here needs the server: no strategy, no
outer Trainer, and no other client's data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, starmap

from fl_lightning.clients.chains import ChainTrainer
from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.outbox import Outbox
from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.update_editor import UpdateEditor
from fl_lightning.core.option import ClientHooks
from fl_lightning.errors import ClientError, add_note
from fl_lightning.messages import ChainReport, ClientJob, EvalOrder, EvalReport, ServerModel, TrainOrder
from fl_lightning.types import ClientFailure, ClientUpdate
from fl_lightning.utilities.collectives import Collectives


class ClientRuntime:
    """Carry out the orders of a server for the clients of this process.

    Args:
        resident: the module that clients train.
        trainer: the trainer of single clients.
        chains: the trainer of chains of clients.
        memory: the state that clients keep between rounds.
        outbox: the outbox that transforms their updates.
        hooks: the hooks of the options in use, in order, which come before the outbox.
        evaluators: the evaluators of models on their examples.
        private: the callback that makes the clients' steps private, or None.
        alone: a function that returns a trainer for clients that train outside of the federation, given the number of local
            epochs, or None for the number in the settings.
        name_of: returns the name of a client.
    """

    def __init__(
        self,
        *,
        resident: ResidentModel,
        trainer: LocalTrainer,
        chains: ChainTrainer,
        memory: ClientMemory,
        outbox: Outbox,
        hooks: Sequence[ClientHooks],
        evaluators: ClientEvaluators,
        private: PrivateSteps | None,
        alone: Callable[[int | None], LocalTrainer],
        name_of: Callable[[int], str] = str,
    ) -> None:
        self._name_of = name_of
        self.resident, self.trainer, self.memory, self._outbox = resident, trainer, memory, outbox
        self.hooks = hooks
        self._chains, self._evaluators, self._private, self._alone = chains, evaluators, private, alone
        self._alone_trainers: dict[int | None, LocalTrainer] = {}
        self._check: UpdateCheck | None = None
        self._held: list[list[ClientUpdate]] = []

    # ---------------------------------------------------------------- orders

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""
        self.resident.publish(model)
        self._check = None

    def train(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """Train chains of clients, and yield the report of each one as soon as it is known.

        Chains whose update waits for those of all others report in :meth:`answer` instead.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """
        if self._check is None:
            self._check = UpdateCheck(self.resident.view(), self.resident.server, self._name_of)
            editor = UpdateEditor(self._check)
            for hook in self.hooks:
                hook.begin(self.resident.server.round_idx, editor)
            self._outbox.begin(self.resident.server.round_idx, editor)
            self._held = []
        # A loop's variables would hold the last client's model while the next one trains.
        yield from chain.from_iterable(starmap(self._report, self._chains.train(orders, self._check)))

    @property
    def waits(self) -> bool:
        """Return whether updates may wait for :meth:`answer`; the same on every rank."""
        return self._check is not None and any(hook.waits for hook in self.hooks)

    def answer(self, comm: Collectives) -> Iterator[ChainReport]:
        """Yield the reports of chains whose update waited for those of all others; ranks exchange data before the first."""
        for hook in self.hooks:
            hook.drained(comm, len(self._held))
        held, self._held = self._held, []
        return chain.from_iterable(self._sent(updates, ()) for updates in held)

    def evaluate(self, order: EvalOrder) -> EvalReport:
        """Evaluate a model on a client's examples, after any turns that the client should first train alone."""
        model, own = self.memory.last_model(order.client) if order.own else order.model, None
        if order.jobs:
            if order.epochs not in self._alone_trainers:
                self._alone_trainers[order.epochs] = self._alone(order.epochs)
            alone = self._alone_trainers[order.epochs]
            alone.forget()
            if order.model is None:  # fine-tuning continues from the client's personal part
                alone.memory.keep_personal(order.client, self.memory.personal(order.client))
            for job in order.jobs:
                (update,) = alone.train([(job, model)])
                alone.keep(update, job, in_place=False)
                model, own = update.snapshot, alone.memory.personal(order.client)
        try:
            value = self._evaluators.score(model, order.metric, order.client, order.part, own)
        except Exception as error:
            add_note(error, f"In the evaluation on the {order.part} examples of client {self._name_of(order.client)}.")
            raise
        return EvalReport(order.client, value)

    def releases(self) -> dict[str, dict[int, int]]:
        """Return the numbers of each client's noisy messages (``sent``) and steps (``steps``) since the last call."""
        return {"sent": self._outbox.take_sent(), "steps": {} if self._private is None else self._private.take()}

    def settle(self, accepted: Collection[int]) -> None:
        """Restore the state of clients whose updates the server did not accept."""
        self._chains.settle(accepted)

    def close(self) -> None:
        """Release the engines and the last client's data. What clients keep can still be read."""
        for trainer in (self.trainer, *self._alone_trainers.values()):
            trainer.engine.close()
        self.resident.module.trainer = None

    # ---------------------------------------------------------------- one chain

    def _report(
        self, order: TrainOrder, updates: list[ClientUpdate], failures: Sequence[ClientFailure]
    ) -> Iterator[ChainReport]:
        """Yield the report of a chain, unless its update waits."""
        if updates and order.delivers:
            yield from self._sent(updates, failures)
        else:
            yield ChainReport(tuple(updates), tuple(failures))

    def _sent(self, updates: list[ClientUpdate], failures: Sequence[ClientFailure]) -> Iterator[ChainReport]:
        """Yield the report of a chain, with the update that the server receives, unless a hook lets it wait."""
        last: ClientUpdate | None = updates[-1]
        try:
            for hook in self.hooks:
                last = None if last is None else hook.send(last)
            if last is None:
                self._held.append(updates)
                return
            last = self._outbox.send(last)
        except ClientError as error:
            jobs = [ClientJob(update.client, update.round_idx) for update in updates]
            yield ChainReport((), (*failures, *(self._chains.failed(job, error, 1) for job in jobs)))
            return
        if self._evaluators.measures("sent"):
            try:
                score = self._evaluators.score(last.snapshot, "sent", last.client, "validation")
            except Exception as error:
                add_note(error, f"In the evaluation on the validation examples of client {self._name_of(last.client)}.")
                raise
            last = replace(last, local_score=score)
        yield ChainReport((*updates[:-1], last), tuple(failures))
