"""Define the interface between the server's round and the clients' training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.utilities.collectives import Collectives


class ClientPool(Protocol):
    """Train and evaluate the clients of a federation, wherever they are.

    All ranks of the server call every method with the same arguments, including all orders.

    Attributes:
        comm: the ranks of the server; a single one over a network.
        simulated: whether the clients run in the processes of the server, so that it can read their state.
    """

    comm: Collectives
    simulated: bool

    @property
    def engine(self) -> str:
        """Return the engine that trains the clients, which a resumed run keeps."""
        ...

    def clients(self) -> tuple[ClientInfo, ...]:
        """Return the information that clients give about themselves, in the order of their ids."""
        ...

    def publish(self, model: ServerModel) -> None:
        """Take a new global model, to which later orders refer by its version.

        Raises:
            ConfigurationError: if clients have stored tensors of another layout.
        """
        ...

    def mine(self, chains: Sequence[Sequence[ClientTask]], scored: int) -> Sequence[Sequence[ClientTask]]:
        """Return the chains of this rank, in the order in which to begin them; ranks may exchange data.

        Args:
            chains: the tasks of each chain of clients.
            scored: the number of examples on which the server will evaluate each chain's model, for balancing the ranks' work.
        """
        ...

    @property
    def published(self) -> ServerModel:
        """Return the model that was published last."""
        ...

    def terms(self) -> dict[str, str]:
        """Return what a site knows of the fit as well: ``federation``, ``contract`` and ``session``; empty in a simulation."""
        ...

    def ask(self, notes: Sequence[Note]) -> dict[int, Note]:
        """Return the answers of clients to messages of an option, by client; a client that fails has none."""
        ...

    def tell(self, notes: Sequence[Note]) -> None:
        """Have messages of an option reach clients before their next task."""
        ...

    def submit(self, task: ClientTask) -> None:
        """Take a task, also while :meth:`results` is read."""
        ...

    def results(self) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield the result of each submitted task, until none is left; no rank waits for another meanwhile."""
        ...

    def under_way(self) -> Mapping[int, bytes]:
        """Return what asks once more for each task under way, by client; only a ``LastingPool`` has some."""
        ...

    def deliver(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate | None:
        """Return the update of a chain as the server receives it; None if it waits until :meth:`drained`.

        Args:
            task: the task whose result it is, not always the last of its chain.
            update: the update.

        Raises:
            ClientError: if the server cannot have it.
        """
        ...

    def drained(self, waiting: int) -> bool:
        """Learn that all updates that do not wait are delivered, and how many wait; return whether any rank's may wait."""
        ...

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """Evaluate models on clients' examples, and return all reports on every rank, in the order of the orders."""
        ...

    def own_models(self) -> list[Snapshot | None]:
        """Return the clients' own stored models, by client; None for a client without one."""
        ...

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the clients' hooks have counted here since the last call, and the transformed messages (``sent``)."""
        ...

    def figures(self, round_idx: int, drawn: int) -> dict[str, float]:
        """Return the metrics of the clients' transforms after a round of ``drawn`` clients, logged as ``federation/<name>``."""
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
    """Train clients whose tasks may outlast a round: whoever stops to read :meth:`results` gets the rest later.

    The tensors of a published model must not change while tasks refer to it. :meth:`ask` and :meth:`evaluate` are not for
    clients with a task under way.
    """

    def absent(self) -> Collection[int]:
        """Return the clients that could not begin a task now."""
        ...

    def take_up(self, task: ClientTask, model: ServerModel, asked: bytes) -> None:
        """Ask once more for a task that was under way when the server stopped; a client that has done it answers at once.

        Args:
            task: the task.
            model: the model to which it refers, not always the newest one.
            asked: what :meth:`ClientPool.under_way` returned for it; empty to ask anew.
        """
        ...
