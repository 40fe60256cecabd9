"""Answer a server's messages as a client, in bytes, over any transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor

from fl_lightning.clients.client import Client
from fl_lightning.errors import WireError
from fl_lightning.messages import ClientTask, EvalOrder, EvalReport, Note, RoundCommit, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate
from fl_lightning.wire import from_bytes, to_bytes


class Site:
    """Answer the messages of one server, and keep the client's state by round, so that a server can repeat rounds.

    After a crash, a server starts a new session from its last checkpoint and repeats the rounds since then. The client then
    restores the state that it had before the first of them.

    Args:
        client: the client.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._session = ""
        self._before: dict[int, dict[Any, Any]] = {}  # the client's state before each round since the last checkpoint
        self._next_round = 0
        self._forgotten = -1  # the last round whose earlier state was dropped
        self._unsettled: tuple[int, int] | None = None  # the round and client of an update that the server may not use

    def answer(self, content: bytes | bytearray) -> bytes | bytearray:
        """Return the reply to a message.

        Raises:
            WireError: if a server does not send such messages, or if it asks for a round that cannot be repeated.
            FederationError: if the client fails and the policy is ``fatal``.
        """
        reply = self.handle(from_bytes(content))
        return b"" if reply is None else to_bytes(reply)

    def handle(self, message: Any) -> ClientUpdate | ClientFailure | EvalReport | Note | None:
        """Return the reply to a decoded message, or None; see :meth:`answer`."""
        handlers: dict[type, Callable[[Any], Any]] = {
            ServerModel: self._publish,
            ClientTask: self._train,
            EvalOrder: self._evaluate,
            RoundCommit: self._settle,
            Note: self._client.answer,
        }
        if type(message) not in handlers:
            raise WireError(f"A server does not send a {type(message).__name__}.")
        reply: ClientUpdate | ClientFailure | EvalReport | Note | None = handlers[type(message)](message)
        return reply

    def state_dict(self) -> dict[str, Any]:
        """Return what must outlive this process, as plain values and tensors with keys of text."""
        return {
            "session": self._session,
            "next_round": self._next_round,
            "unsettled": self._unsettled,
            "forgotten": self._forgotten,
            "before": {str(k): _with_text(kept) for k, kept in self._before.items()},
            "memory": _with_text(self._client.memory.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of an earlier process."""
        self._session, self._next_round = state["session"], state["next_round"]
        self._unsettled, self._forgotten = state["unsettled"], state["forgotten"]
        self._before = {int(k): _with_numbers(kept) for k, kept in state["before"].items()}
        self._client.memory.load_state_dict(_with_numbers(state["memory"]))

    def _settle(self, settlement: RoundCommit) -> None:
        """Restore the client's state if the server did not use its update, also after a restart of this process."""
        self._client.memory.end_round(settlement.accepted)
        trained = self._unsettled
        if trained is not None and trained[0] == settlement.round_idx:
            if trained[1] not in settlement.accepted:
                self._client.memory.load_state_dict(self._before[trained[0]])
            self._unsettled = None
        self._forget(settlement.saved_round)

    def _evaluate(self, order: EvalOrder) -> EvalReport:
        """Evaluate a model; a question about the client's own is about what it kept after the round of the checkpoint."""
        with self._memory_of_the_checkpoint() if order.question is not None and order.own else nullcontext():
            return self._client.evaluate(order)

    def own_model(self, client: int) -> Mapping[str, Tensor]:
        """Return the model that a client kept after the round of the published one; see ``Client.own_model``."""
        with self._memory_of_the_checkpoint():
            return self._client.own_model(client)

    @contextmanager
    def _memory_of_the_checkpoint(self) -> Iterator[None]:
        """Let the client have what it kept after the round of the published model.

        Raises:
            WireError: if the client no longer has that.
        """
        memory = self._client.memory
        now, round_idx = memory.state_dict(), self._client.resident.server.round_idx
        kept = kept_after(self.state_dict(), round_idx)
        if kept is None:
            raise WireError(no_longer_kept(round_idx))
        memory.load_state_dict(_with_numbers(kept))
        try:
            yield
        finally:
            memory.load_state_dict(now)

    def dropped_by(self, model: ServerModel) -> list[int]:
        """Return the rounds whose training is undone by a model, because its server has started again before them."""
        return [] if model.session in ("", self._session) else sorted(k for k in self._before if k >= model.round_idx)

    def _publish(self, model: ServerModel) -> None:
        if model.session and model.session != self._session:  # a model to evaluate belongs to no session
            self._resume(model.round_idx)
            self._session = model.session
        self._client.resident.publish(model)

    def _resume(self, round_idx: int) -> None:
        """Restore the state that the client had before a round."""
        memory = self._client.memory
        repeated = [k for k in self._before if k >= round_idx]
        if round_idx == 0:
            memory.forget()
        elif repeated and round_idx > self._forgotten:
            memory.load_state_dict(self._before[min(repeated)])
        elif round_idx < self._next_round:
            raise WireError(
                f"The server restarts at round {round_idx}, but this client only has the state for round {self._next_round}. "
                "Resume from the last checkpoint, or start again without one."
            )
        self._before = {k: kept for k, kept in self._before.items() if k < round_idx}
        self._unsettled = None
        self._next_round = round_idx
        self._forgotten = min(self._forgotten, round_idx - 1)

    def _forget(self, saved_round: int) -> None:
        """Drop states that no resumed server needs, which leaves at most one round's besides the current one."""
        self._forgotten = max([self._forgotten, *(k for k in self._before if k <= saved_round)])
        needed = min((k for k in self._before if k > saved_round), default=None)
        unsettled = -1 if self._unsettled is None else self._unsettled[0]  # a repeated settlement may be of an earlier round
        self._before = {k: kept for k, kept in self._before.items() if k in (needed, unsettled)}

    def _train(self, task: ClientTask) -> ClientUpdate | ClientFailure:
        round_idx = task.round_idx
        if round_idx not in self._before:
            self._before[round_idx] = self._client.memory.state_dict()
            self._next_round = round_idx + 1
        self._unsettled = round_idx, task.client
        (result,) = self._client.train(deque([task]))
        if isinstance(result, ClientFailure) or not task.delivers:
            return result
        sent = self._client.deliver(task, result)
        assert sent is not None  # options that let updates wait are simulated only
        return sent


def kept_after(state: Mapping[str, Any], round_idx: int) -> dict[str, Any] | None:
    """Return what a client kept at the end of a round, by the text of its number; None if it no longer has that.

    Args:
        state: the state of its site; see :meth:`Site.state_dict`.
        round_idx: the round.
    """
    later = sorted(int(k) for k in state["before"] if int(k) > round_idx)
    if state["next_round"] <= round_idx + 1:
        return dict(state["memory"])
    return dict(state["before"][str(later[0])]) if later and state["forgotten"] <= round_idx else None


def no_longer_kept(round_idx: int) -> str:
    """Return the message for a client that no longer has what it kept after a round."""
    return (
        f"The checkpoint is of round {round_idx}, but the site no longer has what it kept in that round. Use the last "
        "checkpoint of the federation, such as last.ckpt."
    )


def _with_text(state: dict[int, Any]) -> dict[str, Any]:
    return {str(client): kept for client, kept in state.items()}


def _with_numbers(state: dict[str, Any]) -> dict[int, Any]:
    return {int(client): dict(kept) for client, kept in state.items()}
