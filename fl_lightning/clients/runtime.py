"""The clients of one process: their data, what they keep, and all that they do with the server's orders.

A simulation has all clients of a rank here, a site has its own. Nothing of the server is needed: no strategy, no outer
Trainer, no other client's data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from fl_lightning.attacks.models import Crowd
from fl_lightning.clients.chains import ChainTrainer
from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.outbox import Outbox
from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.errors import ClientError
from fl_lightning.messages import ChainReport, ClientJob, EvalOrder, EvalReport, ServerModel, TrainOrder
from fl_lightning.types import ClientFailure, ClientUpdate


class ClientRuntime:
    """Carry out the orders of a server for the clients whose data lie here.

    Args:
        resident: the module in which they train.
        trainer: trains them.
        chains: trains chains of them.
        memory: what they keep over rounds.
        outbox: prepares their updates for the server.
        evaluators: measure models on their examples.
        private: makes the clients' steps private, or None.
        alone: returns a trainer for clients that train by themselves, given local epochs or None for the settings'.
    """

    def __init__(
        self,
        *,
        resident: ResidentModel,
        trainer: LocalTrainer,
        chains: ChainTrainer,
        memory: ClientMemory,
        outbox: Outbox,
        evaluators: ClientEvaluators,
        private: PrivateSteps | None,
        alone: Callable[[int | None], LocalTrainer],
    ) -> None:
        self.resident, self.trainer, self.memory, self.outbox = resident, trainer, memory, outbox
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
        """Train chains of clients, and yield what became of each as soon as it is known.

        Attackers that act together have no report here, but in :meth:`answer`.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``; any other error that is not a client's.
        """
        if self._check is None:
            self._check = UpdateCheck(self.resident.view(), self.resident.server)
            self.outbox.begin(self.resident.server.round_idx, self._check)
            self._held = []
        for order, updates, failures in self._chains.train(orders, self._check):
            yield from self._report(order, updates, failures)

    @property
    def acts_together(self) -> bool:
        """Return whether attackers wait for :meth:`answer`."""
        return self._check is not None and self.outbox.acts_together

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
            yield self._sent(updates, (), lambda update: self.outbox.forged(update, crowd))

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
        return {"sent": self.outbox.take_sent(), "steps": {} if self._private is None else self._private.take()}

    def settle(self, accepted: Collection[int]) -> None:
        """Drop what clients keep of updates that the server did not accept."""
        self._chains.settle(accepted)

    # ---------------------------------------------------------------- one chain

    def _report(
        self, order: TrainOrder, updates: list[ClientUpdate], failures: Sequence[ClientFailure]
    ) -> Iterator[ChainReport]:
        """Yield the report of a chain; none if its attackers wait."""
        if not updates or not order.delivers:
            yield ChainReport(tuple(updates), tuple(failures))
        elif self.outbox.waits(updates[-1]):
            self._held.append(updates)
        else:
            yield self._sent(updates, failures, self.outbox.send)

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
            return ChainReport((), (*failures, *(self._chains.failed(job, error, 1) for job in jobs)))
        if self._evaluators.measures("sent"):
            score = self._evaluators.score(last.snapshot, "sent", last.client, "validation")
            last = replace(last, local_score=score)
        return ChainReport((*updates[:-1], last), tuple(failures))
