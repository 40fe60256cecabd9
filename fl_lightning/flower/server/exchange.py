"""Exchange requests with sites: what a site must know travels with the next order to it."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fl_lightning.errors import ClientError, WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.server.request import Request
from fl_lightning.flower.site.store import whole_digest
from fl_lightning.flower.validation import conforms
from fl_lightning.flower.wire.transport import Answer, Content, LateParts, Transport
from fl_lightning.functional.digest import Digest
from fl_lightning.messages import ClientTask, EvalOrder, Note, OwnModelOrder, RoundCommit, ServerModel
from fl_lightning.types import ClientUpdate
from fl_lightning.wire import to_bytes

_FAREWELL = 20.0
"""The seconds for which sites may confirm the end of the last round."""
_MOST_LOST = 20
"""How often a request that the transport loses is sent again before its site counts as failed."""
_MOST_COUNTS = 20
"""The largest number of counts, each of an option, in a site's reply."""


class SiteError(ClientError):
    """A site failed.

    Args:
        who: the site, for messages that do not name it themselves.
        cause: what happened.
        attempts: how often the site has tried.
    """

    def __init__(self, who: str, cause: str, attempts: int = 1) -> None:
        super().__init__(f"{who}: {cause}")
        self.cause, self.attempts = cause, attempts


def keep_witness(found: Mapping[str, Any], name: str, keep: Callable[[str, str], None]) -> None:
    """Keep the digest of the last line of a site's log: a log that is written anew at the site does not have it."""
    digest = found.get("log")
    if isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest):
        keep(name, digest)


class Exchange:
    """Send requests to sites, and open their answers.

    Args:
        transport: exchanges bytes with the sites.
        names: the names of the sites, by client.
        contract: the settings that sites need, as values.
        federation: returns the id of the federation.
        limit: the seconds after which a silent site has failed; None for no limit.
        witness: keeps the digest of a site's log that a reply brought; see :func:`keep_witness`.
    """

    def __init__(
        self,
        transport: Transport,
        names: Sequence[str],
        contract: Mapping[str, Any],
        federation: Callable[[], str],
        limit: float | None,
        witness: Callable[[str, str], None] = lambda name, digest: None,
    ) -> None:
        self._transport, self._names, self._witness = transport, tuple(names), witness
        self._contract, self._federation, self._limit = contract, federation, limit
        self._model: ServerModel | None = None
        self._encoded: dict[int, Content] = {}  # the newest model as bytes, by the version that the receiver has; 0 for none
        self._digests: dict[str, str] = {}
        self._changed: dict[str, int] = {}  # the version in which each tensor changed last
        self._has: dict[int, int] = {}  # the version of the model that each site has
        self._settlements: dict[int, list[RoundCommit]] = defaultdict(list)
        self._trained: dict[int, int] = {}  # the rounds of the tasks that no settlement covers yet, by client
        self._open: dict[int, Mapping[int, int]] = {}  # the tasks that outlast a round, as _trained, by that round
        self._requests: dict[int, Request] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._notes: dict[int, Note] = {}

    def who(self, client: int) -> str:
        """Return a site's name and number, for messages."""
        return f"Site {self._names[client]} (client {client})"

    def terms(self) -> dict[str, str]:
        """Return the id of the federation, and the digest of the settings that all sites got."""
        return {"federation": self._federation(), "contract": whole_digest(self._contract)}

    def tell(self, note: Note) -> None:
        """Send an option's message with the next order to its site."""
        self._notes[note.client] = note

    def absent(self) -> Mapping[int, str]:
        """Return the sites that cannot be reached now, each with the cause in words."""
        return self._transport.absent()

    def publish(self, model: ServerModel) -> None:
        """Send this model with the next order to each site, without tensors that the site has: frozen ones, and constants."""
        known = self._model
        if known is not None and (known.tensors.keys(), known.first.keys()) != (model.tensors.keys(), model.first.keys()):
            self._has.clear()  # a model with other parts at its clients, which shares no tensors by name
        self._model, self._encoded, self._notes = model, {}, {}
        for name, tensor in model.tensors.items():
            digest = Digest()
            digest.add(tensor)
            if self._digests.get(name) != digest.text():
                self._digests[name], self._changed[name] = digest.text(), model.version

    def send(
        self, client: int, orders: Sequence[ClientTask | EvalOrder | Note | OwnModelOrder], model: ServerModel | None = None
    ) -> None:
        """Send orders with what the site must know first; without orders it does not need the model.

        Args:
            client: the client.
            orders: the orders.
            model: the model to which they refer; None for the newest.
        """
        model = model or self._model
        assert model is not None
        for order in orders:
            if isinstance(order, ClientTask):
                self.note(order)
        content = envelope.request(
            "work",
            federation=self._federation(),
            client=client,
            contract=self._contract,
            session=model.session,
            model_version=model.version,
            orders=list(orders),
            settlements=list(self._settlements[client]),
            notes=[self._notes.pop(client)] if client in self._notes else [],
        )
        known = self._has.get(client, 0)
        self._requests[client] = Request(content, model, bool(orders) and known != model.version, known)
        self._dispatch(client)

    def note(self, task: ClientTask) -> None:
        """Note that a site may train, even if its reply is lost, so that the next settlement tells it whether that counts."""
        self._trained[task.client] = task.round_idx

    def repeat(self, client: int) -> None:
        """Send a site's request again, with the whole model; the site answers from its store if it has done the work."""
        request = self._requests[client]
        request.sends, request.base = True, 0
        self._dispatch(client)

    def request_of(self, client: int) -> bytes:
        """Return the last request to a site, without the model, for :meth:`take_up`."""
        return bytes(self._requests[client].order)

    def take_up(self, client: int, task: ClientTask, model: ServerModel, asked: bytes) -> None:
        """Repeat the request for a task that an earlier process of the server has sent, unless its settings have changed."""
        try:
            before = envelope.opened(asked, ("work",)) if asked else {}
        except WireError:  # another version wrote it
            before = {}
        version = before.get("model_version")
        if not isinstance(version, int) or whole_digest(before.get("contract", {})) != whole_digest(self._contract):
            self.send(client, [task], model)
            self._requests[client].numbered = False  # the model is older than others with smaller numbers
            return
        self._requests[client] = Request(asked, replace(model, version=version), True, numbered=False)
        self._dispatch(client)

    def _dispatch(self, client: int) -> None:
        request = self._requests[client]
        makers: dict[str, Callable[[], Content]] = {"order": lambda: request.order}
        if request.sends:
            makers["model"] = functools.partial(self._published, request.model, request.base)
        parts = LateParts(makers)
        request.size += sum(map(len, parts.values()))
        self._transport.send(client, parts, request.model.round_idx, self._limit)

    def _published(self, model: ServerModel, base: int) -> Content:
        """Return a model as bytes, for a site that has a version of it; 0 for none."""
        new = {name: tensor for name, tensor in model.tensors.items() if self._changed[name] > base}
        base = base if len(new) < len(model.tensors) or model.first else 0
        first = {} if base else model.first  # it never changes
        if model is not self._model:
            return to_bytes(replace(model, tensors=new, first=first, base=base))
        if base not in self._encoded:
            self._encoded[base] = to_bytes(replace(model, tensors=new, first=first, base=base))
        return self._encoded[base]

    # ---------------------------------------------------------------- answers

    def answers(self) -> Iterator[Answer]:
        """Return the answers until no request is under way; what the transport has lost is asked for again.

        The model as bytes is dropped, and made again if it is sent again.
        """
        self._encoded = {}
        return filter(self._is_final, self._transport.answers())  # 'filter' keeps no answer, which may hold a model

    def _is_final(self, answer: Answer) -> bool:
        """Return whether to yield an answer, or send a lost request again without the model.

        A site that has done the work does not need it; another asks for it.
        """
        self._encoded, request = {}, self._requests[answer.client]
        again = answer.lost and request.lost < _MOST_LOST
        if again:
            request.lost, request.sends = request.lost + 1, False
            self._dispatch(answer.client)
        return not again

    def forget(self) -> None:
        """Ignore the answers to requests that are under way."""
        self._transport.forget()

    def opened(self, answer: Answer) -> Mapping[str, Any] | None:
        """Return the contents of an answer; None if the site needs the model first, which is then on its way.

        Raises:
            ClientError: if the site failed; it names the site.
        """
        client, who = answer.client, self.who(answer.client)
        if answer.content is None:
            self._has.pop(client, None)
            raise SiteError(who, answer.cause)
        try:
            found = envelope.opened(answer.content, ("reply",))
        except WireError as error:
            raise SiteError(who, envelope.printable(error)) from error
        keep_witness(found, self._names[client], self._witness)
        request = self._requests[client]
        if found.get("needs") == "model" and (not request.sends or request.base):
            self.repeat(client)
            return None
        if "error" in found or "needs" in found:
            raise SiteError(who, envelope.printable(found.get("error", "it lacks the model")))
        counts = found.get("releases", {})
        if not conforms(counts, Mapping[str, Mapping[str, int]]) or len(counts) > _MOST_COUNTS:
            raise SiteError(who, "its reply does not count what it has released.")
        if request.sends and request.numbered:
            self._has[client] = request.model.version
        self._settlements.pop(client, None)
        self._count(client, counts)
        return found

    def sized(self, update: ClientUpdate, answer: Answer) -> ClientUpdate:
        """Return an update with the bytes that were sent for it in both directions."""
        return replace(update, bytes_down=self._requests[answer.client].size, bytes_up=len(answer.content or b""))

    def _count(self, client: int, counts: Mapping[str, Mapping[str, int]]) -> None:
        for name, numbers in counts.items():
            told = numbers.get(str(client), 0)
            if told > 0:
                known = self._counts.setdefault(name, {})
                known[client] = known.get(client, 0) + told

    def take_counts(self) -> dict[str, dict[int, int]]:
        """Return what each site has counted since the last call; see :meth:`ClientPool.counts`."""
        found, self._counts = self._counts, {}
        return found

    # ---------------------------------------------------------------- the end of rounds

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int, under_way: Collection[int] = ()) -> None:
        """Note the end of a round, which travels with the next order to each site.

        Args:
            round_idx: the round.
            accepted: the clients whose updates the server used.
            saved_round: the last round in a checkpoint, or -1.
            under_way: the clients whose tasks outlast the round. A server that resumes repeats those that were under way at its
                checkpoint, so their sites keep the state from before.
        """
        self._open[round_idx] = {client: self._trained[client] for client in under_way}
        self._open = {number: tasks for number, tasks in self._open.items() if number >= saved_round}
        repeated = self._open.get(saved_round, {})
        for client in set(range(len(self._names))) - set(under_way):
            saved = min(saved_round, repeated.get(client, saved_round + 1) - 1)
            waiting = self._settlements[client]
            if waiting and client not in self._trained:
                waiting[-1] = replace(waiting[-1], saved_round=saved)
            else:
                trained = self._trained.pop(client, round_idx)
                waiting.append(RoundCommit(trained, tuple(sorted(accepted)), saved))

    def conclude(self, under_way: Collection[int] = ()) -> list[str]:
        """Tell the end of the last round, and return the names of the sites that did not confirm it.

        Args:
            under_way: the clients whose tasks have outlasted it; nothing waits for them.
        """
        if under_way:
            self.forget()
        clients = [client for client, waiting in self._settlements.items() if waiting and client in self._has]
        self._limit = _FAREWELL
        for client in clients:
            if client not in under_way:
                self.send(client, [])
        return [self._names[answer.client] for answer in self.answers() if answer.content is None]

    def close(self, completed: bool) -> None:
        """End the connection."""
        self._transport.close(completed)
