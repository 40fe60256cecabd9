"""Train simulated clients in this process, or divided among the ranks of a process group."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from fl_lightning.clients.client import Client
from fl_lightning.clients.memory import MODEL
from fl_lightning.core.federation import Chain, ClientPool, PassesOn, RunningChains, Take, Tasks
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.scheduling import balanced_shares
from fl_lightning.messages import ClientInfo, EvalOrder, EvalReport, Note, ServerModel
from fl_lightning.types import ClientFailure, Snapshot
from fl_lightning.utilities.collectives import Collectives


class LocalPool(ClientPool):
    """Divide the clients' work among the ranks, each with a client object of its own; see :class:`ClientPool`.

    Args:
        comm: the ranks.
        client: trains any client on this rank.
        data: the examples of all clients.
        max_epochs: the number of local epochs of a turn, for balancing; 1 if unlimited.
    """

    simulated = True

    def __init__(self, *, comm: Collectives, client: Client, data: FederatedDataModule, max_epochs: int = 1) -> None:
        self.comm, self.client, self._data = comm, client, data
        self._max_epochs = max_epochs
        client.memory.join(comm)

    def clients(self) -> tuple[ClientInfo, ...]:
        """Return the name and size of each client, and its label counts if the labels are known."""
        counts = None if self._data.client_datasets.labels is None else self._data.label_counts().tolist()
        return tuple(
            ClientInfo(self._data.client_name(k), self._data.num_examples(k), None if counts is None else tuple(counts[k]))
            for k in range(self._data.num_clients)
        )

    # ---------------------------------------------------------------- the round

    def publish(self, model: ServerModel) -> None:
        """See :meth:`ClientPool.publish`."""
        self.client.resident.publish(model)
        state = self.client.resident.view()
        for owner, length in self.client.memory.lengths():
            if length != (state.size if owner == MODEL else state.num_parameters):
                raise ConfigurationError(
                    f"The trained parameters changed in round {model.round_idx}, but clients keep control variates, error "
                    "feedback or models of their own that belong to the previous parameters. Freeze the same parts in all "
                    "rounds ('thaw_after' null), or use a strategy, transforms and a route that keep no client state, such as "
                    "FedAvg."
                )

    def train(self, chains: Sequence[Tasks], take: Take, passes_on: PassesOn, scored: int = 0) -> None:
        """See :meth:`ClientPool.train`: chain after chain, or the next clients of all chains side by side.

        Each rank has chains of about the same work, by their examples and by the evaluation of their models, longest first.
        """
        cost = dict.fromkeys(range(len(chains)), scored)
        for number, tasks in enumerate(chains):
            for task in tasks:  # a step costs three times as much as evaluating its examples: forward, and twice that backward
                epochs = self._max_epochs if task.epochs is None else task.epochs
                cost[number] += 3 * epochs * self._data.num_examples(task.client)
        shares = balanced_shares(range(len(chains)), cost, self.comm.size)
        mine = [chains[number] for number in shares[self.comm.rank]]
        waiting, failure = list[Chain](), None
        queue = deque(tasks[0] for tasks in mine)
        running = RunningChains(mine, queue.append if self.client.engine.side_by_side else queue.appendleft, passes_on)

        def end(chain: Chain) -> None:
            if self._delivered(chain):
                take(chain)
            else:
                waiting.append(chain)

        try:
            for _ in map(end, filter(None, map(running.add, self.client.train(queue)))):
                pass  # and 'map' keeps no model while the next client trains
        except Exception as error:
            failure = error
        if self.client.hooks and any(tasks[-1].delivers for tasks in chains):  # also after an error: ranks may exchange data
            self.client.drained(self.comm, len(waiting))
        if failure is not None:
            raise failure
        for chain in waiting:
            self._delivered(chain)
            take(chain)

    def _delivered(self, chain: Chain) -> bool:
        """Replace the last update of a chain by what the server receives; return False if it waits for other chains."""
        if chain.trained is None or not chain.tasks[-1].delivers:
            return True
        sent = self.client.deliver(chain.trained, chain.updates[-1])
        if isinstance(sent, ClientFailure):
            chain.lose(sent.cause)
        elif sent is not None:
            chain.updates[-1] = sent
        return sent is not None

    @property
    def published(self) -> ServerModel:
        """See :attr:`ClientPool.published`."""
        return self.client.resident.server

    def ask(self, notes: Sequence[Note]) -> dict[int, Note]:
        """See :meth:`ClientPool.ask`. Every rank asks all clients, whose answers do not depend on the rank."""
        return {note.client: self.client.answer(note) for note in notes}

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """See :meth:`ClientPool.evaluate`."""
        return self.comm.spread(len(orders), lambda number: self.client.evaluate(orders[number]))

    # ---------------------------------------------------------------- what clients keep

    def own_models(self) -> list[Snapshot | None]:
        """See :meth:`ClientPool.own_models`."""
        return [self.client.memory.last_model(client) for client in range(self._data.num_clients)]

    def counts(self) -> dict[str, dict[int, int]]:
        """See :meth:`ClientPool.counts`."""
        return self.client.counts()

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """Settle, and share all clients' state between ranks: any rank may train them next, and rank 0 saves it."""
        memory, comm = self.client.memory, self.comm
        memory.end_round(accepted)
        waited = comm.gather(comm.waited)
        comm.waited = 0.0
        memory.settle(comm)
        return {"waiting_seconds": sum(waited) / comm.size} if comm.size > 1 else {}

    def state_dict(self) -> dict[Any, Any]:
        """Return the state of all clients."""
        return self.client.memory.state_dict()

    def close(self) -> None:
        """Release the clients' data, at once on a GPU, where a training set may fill half of the memory."""
        self.client.close()
        if self.client.resident.module.device.type == "cuda":
            gc.collect()  # Lightning's Trainers and datamodules refer to each other
