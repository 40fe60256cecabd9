"""Define the interface between the server's round and the clients' training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.utilities.collectives import Collectives


@dataclass
class Chain:
    """Hold the results of clients that train one after another, each from the model of the one before it.

    Attributes:
        tasks: the tasks of its clients, in order, all with the start of the first one.
        updates: the updates of the clients that have trained, in order; only the last one has its model.
        failures: the failures of the other clients, each with its own cause.
        trained: the task of the last update; None without one.
    """

    tasks: Sequence[ClientTask]
    updates: list[ClientUpdate] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)
    trained: ClientTask | None = None

    def lose(self, cause: str) -> None:
        """Turn all updates into failures, because the server cannot have the last one's model."""
        self.failures += [ClientFailure(update.client, update.round_idx, cause) for update in self.updates]
        self.updates = []


Tasks = Sequence[ClientTask]
"""The tasks of a chain."""
Take = Callable[[Chain], None]
"""What a pool calls with each chain at its end."""
PassesOn = Callable[[ClientUpdate], None]
"""What a pool calls with the update of a client whose model goes to the next client of its chain."""


class RunningChains:
    """Follow chains, of which one client trains at a time; its first task is begun by the pool.

    Args:
        chains: the tasks of each chain.
        begin: called with each further task, which starts from the last model of its chain.
        passes_on: called with the update of a client whose model goes to the next client of its chain.
    """

    def __init__(self, chains: Sequence[Tasks], begin: Callable[[ClientTask], None], passes_on: PassesOn) -> None:
        self._begin, self._passes_on = begin, passes_on
        self._running = {tasks[0].client: Chain(tasks) for tasks in chains}  # by the client that trains

    def add(self, result: ClientUpdate | ClientFailure) -> Chain | None:
        """Add the result of a task, and begin the next one of its chain; at its end return the chain instead."""
        chain = self._running.pop(result.client)
        done = len(chain.updates) + len(chain.failures)
        last = done + 1 == len(chain.tasks)
        if isinstance(result, ClientFailure):
            chain.failures.append(result)
        else:
            if not last:
                self._passes_on(result)
            chain.trained = chain.tasks[done]
            chain.updates = [*(earlier.without_state() for earlier in chain.updates), result]
        if last:
            return chain
        task = chain.tasks[done + 1]
        self._running[task.client] = chain
        self._begin(replace(task, start=chain.updates[-1].snapshot) if chain.updates else task)
        return None


class ClientPool(Protocol):
    """Train and evaluate the clients of a federation, wherever they are.

    All ranks of the server call every method with the same arguments, including all orders.

    Attributes:
        comm: the ranks of the server; a single one over a network.
        simulated: whether the clients run in the processes of the server, so that it can read their state.
    """

    comm: Collectives
    simulated: bool

    def clients(self) -> tuple[ClientInfo, ...]:
        """Return the information that clients give about themselves, in the order of their ids."""
        ...

    def publish(self, model: ServerModel) -> None:
        """Take a new global model, to which later orders refer by its version.

        Raises:
            ConfigurationError: if clients have stored tensors of another layout.
        """
        ...

    def train(self, chains: Sequence[Tasks], take: Take, passes_on: PassesOn, scored: int = 0) -> None:
        """Train the chains of this rank, and pass on each one as soon as it is done, in any order, without keeping it.

        The last update of a chain is as the server receives it. ``take`` and ``passes_on`` do not wait for other ranks. After
        an error on one rank, the others train all of their chains.

        Args:
            chains: the tasks of each chain of clients.
            take: called with each chain of this rank.
            passes_on: called with the update of a client whose model goes to the next client of its chain.
            scored: the number of examples on which the server will evaluate each chain's model, for balancing the ranks' work.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """
        ...

    @property
    def published(self) -> ServerModel:
        """Return the model that was published last."""
        ...

    def terms(self) -> dict[str, str]:
        """Return what a site knows of the fit as well: ``federation``, ``contract`` and ``session``; empty in a simulation.

        Every rank must return the same.
        """
        return {"federation": "", "contract": "", "session": ""}

    def ask(self, notes: Sequence[Note]) -> dict[int, Note]:
        """Return the answers of clients to messages of an option, by client; a client that fails has none."""
        ...

    def tell(self, notes: Sequence[Note]) -> None:
        """Have messages of an option reach clients before their next task."""
        self.ask(notes)

    def under_way(self) -> Mapping[int, bytes]:
        """Return what asks once more for each task under way, by client; only a ``LastingPool`` has some."""
        return {}

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """Evaluate models on clients' examples, and return all reports on every rank, in the order of the orders."""
        ...

    def own_models(self) -> list[Snapshot | None]:
        """Return the clients' own stored models, by client; None for a client without one."""
        ...

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the clients' hooks have counted here since the last call, and the transformed messages (``sent``)."""
        ...

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """Store client state from accepted updates, and discard the rest; ranks exchange data.

        Args:
            round_idx: the round that ends.
            accepted: the clients whose updates the server used.
            saved_round: the last round in a checkpoint, or -1. Earlier rounds will not be repeated.

        Returns:
            The metrics of the exchange, logged as ``federation/<name>``.
        """
        ...

    def state_dict(self) -> dict[Any, Any]:
        """Return the clients' state that the server stores, as tensors and plain values."""
        ...

    def close(self) -> None:
        """End the training at the end of a fit, also after an error. What the server stores can still be read."""
        ...


class LastingPool(ClientPool, Protocol):
    """Train clients whose tasks may outlast a round: :meth:`follow` returns when it has enough results.

    The tensors of a published model must not change while tasks refer to it. :meth:`ask` and :meth:`evaluate` are not for
    clients with a task under way.
    """

    def absent(self) -> Collection[int]:
        """Return the clients that could not begin a task now."""
        ...

    def begin(self, task: ClientTask) -> None:
        """Begin a task, also while :meth:`follow` runs; it may fail at once, if its client is absent."""
        ...

    def follow(self, take: Callable[[ClientUpdate | ClientFailure], bool]) -> None:
        """Pass on the results of tasks as they arrive, without keeping them, until no task is under way.

        Args:
            take: called with each result; returns whether to continue. The other tasks are still under way if it does not.

        Raises:
            ClientError: as :meth:`ClientPool.train` does.
        """
        ...

    def take_up(self, task: ClientTask, model: ServerModel, asked: bytes) -> None:
        """Ask once more for a task that was under way when the server stopped; a client that has done it answers at once.

        Args:
            task: the task.
            model: the model to which it refers, not always the newest one.
            asked: what :meth:`ClientPool.under_way` returned for it; empty to ask anew.
        """
        ...
