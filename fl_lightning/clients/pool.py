"""Define the seam between the server's round and the clients' training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from fl_lightning.collectives import Collectives
from fl_lightning.messages import ChainReport, ClientInfo, EvalOrder, EvalReport, ServerModel, TrainOrder
from fl_lightning.types import Snapshot


class ClientPool(Protocol):
    """The clients of a federation, wherever they are. All ranks of the server call every method alike, with all orders.

    Attributes:
        comm: the ranks of the server; over a network there is one.
        simulated: whether the clients live in the processes of the server, so that it may see what each of them keeps.
    """

    comm: Collectives
    simulated: bool

    @property
    def engine(self) -> str:
        """Return the engine that trains the clients, which a resumed run keeps."""
        ...

    def clients(self) -> tuple[ClientInfo, ...]:
        """Return what each client tells of itself, in the order of their ids."""
        ...

    def publish(self, model: ServerModel) -> None:
        """Take a new global model, to which the orders that follow refer by its version.

        Raises:
            ConfigurationError: if clients keep tensors of another layout.
        """
        ...

    def train(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """Train chains of clients, and yield on each rank the reports that arrive there, in any order.

        Over the ranks each chain is reported once. No rank waits for another while the reports are read; every rank reads
        them all, also after an error, before the ranks exchange anything. Only the call itself may be an exchange.
        """
        ...

    def answer(self) -> Iterator[ChainReport]:
        """Yield the reports of attackers that act together, once the others' have been read; an exchange between ranks."""
        ...

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """Measure models on clients' examples, and return all reports on every rank, in the order of the orders."""
        ...

    def own_models(self) -> list[Snapshot | None]:
        """Return the models that clients have kept of their own training, by client; None for a client without one."""
        ...

    def releases(self) -> dict[str, dict[int, int]]:
        """Return each client's noisy messages (``sent``) and steps (``steps``) on this rank since the last call."""
        ...

    def figures(self, round_idx: int, drawn: int) -> dict[str, float]:
        """Return the figures of the clients' transforms after a round of ``drawn`` clients, to log as ``federation/<name>``."""
        ...

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """Let clients keep what belongs to updates that were accepted, and drop the rest; an exchange between ranks.

        Args:
            round_idx: the round that ends.
            accepted: the clients whose updates the server has used.
            saved_round: the last round that a checkpoint holds, -1 for none: no earlier one will be repeated.

        Returns:
            Figures of the exchange, to log as ``federation/<name>``.
        """
        ...

    def state_dict(self) -> dict[Any, Any]:
        """Return what clients keep, as far as the server stores it: tensors and plain values."""
        ...
