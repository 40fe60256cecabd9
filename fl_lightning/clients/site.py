"""Answer a server's messages as a client, in bytes, over any transport."""

from __future__ import annotations

from typing import Any

from fl_lightning.clients.runtime import ClientRuntime
from fl_lightning.errors import WireError
from fl_lightning.messages import ChainReport, EvalOrder, ServerModel, Settlement, TrainOrder
from fl_lightning.wire import from_bytes, to_bytes


class Site:
    """Answer the messages of one server, and keep the client's state by round, so that a server can repeat rounds.

    After a crash, a server starts a new session from its last checkpoint and repeats the rounds since then. The client then
    restores the state that it had before the first of them.

    Args:
        runtime: the runtime of the client.
    """

    def __init__(self, runtime: ClientRuntime) -> None:
        self._runtime = runtime
        self._session = ""
        self._before: dict[int, dict[Any, Any]] = {}  # the client's state before each round since the last checkpoint
        self._next_round = 0

    def answer(self, content: bytes) -> bytes:
        """Return the reply to a message.

        Raises:
            WireError: if a server does not send such messages, or if it asks for a round that cannot be repeated.
            FederationError: if the client fails and the policy is ``fatal``.
        """
        message = from_bytes(content)
        if isinstance(message, ServerModel):
            self._publish(message)
            return b""
        if isinstance(message, TrainOrder):
            return to_bytes(self._train(message))
        if isinstance(message, EvalOrder):
            return to_bytes(self._runtime.evaluate(message))
        if isinstance(message, Settlement):
            self._runtime.settle(message.accepted)
            self._forget(message.saved_round)
            return b""
        raise WireError(f"A server does not send a {type(message).__name__}.")

    def _publish(self, model: ServerModel) -> None:
        if model.session != self._session:
            self._resume(model.round_idx)
            self._session = model.session
        self._runtime.publish(model)

    def _resume(self, round_idx: int) -> None:
        """Restore the state that the client had before a round."""
        memory = self._runtime.memory
        repeated = [k for k in self._before if k >= round_idx]
        if repeated:
            memory.load_state_dict(self._before[min(repeated)])
        elif round_idx == 0:
            memory.forget()
        elif round_idx < self._next_round:
            raise WireError(
                f"The server restarts at round {round_idx}, but this client only has the state for round {self._next_round}. "
                "Resume from the last checkpoint, or start again without one."
            )
        self._before = {k: kept for k, kept in self._before.items() if k < round_idx}
        self._next_round = round_idx

    def _forget(self, saved_round: int) -> None:
        """Drop states that no resumed server needs, which leaves at most one round's besides the current one."""
        needed = min((k for k in self._before if k > saved_round), default=None)
        self._before = {} if needed is None else {needed: self._before[needed]}

    def _train(self, order: TrainOrder) -> ChainReport:
        round_idx = order.jobs[0].round_idx
        if round_idx not in self._before:
            self._before[round_idx] = self._runtime.memory.state_dict()
            self._next_round = round_idx + 1
        (report,) = self._runtime.train([order])
        return report
