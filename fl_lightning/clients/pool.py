"""Define the interface between the server's round and the clients' training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from fl_lightning.messages import ChainReport, ClientInfo, EvalOrder, EvalReport, ServerModel, TrainOrder
from fl_lightning.types import Snapshot
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

    def train(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """Train chains of clients, and yield on each rank the reports that arrive there, in any order.

        Exactly one rank reports each chain. No rank waits for another while it reads the reports. Every rank reads all its
        reports, even after an error, before the ranks exchange anything. Only the call itself may be an exchange.
        """
        ...

    def answer(self) -> Iterator[ChainReport]:
        """Yield the reports of updates that waited until all other reports have been read; ranks exchange data."""
        ...

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """Evaluate models on clients' examples, and return all reports on every rank, in the order of the orders."""
        ...

    def own_models(self) -> list[Snapshot | None]:
        """Return the clients' own stored models, by client; None for a client without one."""
        ...

    def releases(self) -> dict[str, dict[int, int]]:
        """Return the numbers of each client's noisy messages (``sent``) and steps (``steps``) here since the last call."""
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
