"""Exchange requests with sites: what a site must know travels with the next order to it."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_lightning.errors import ClientError, WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.site.store import whole_digest
from fl_lightning.flower.validation import conforms
from fl_lightning.flower.wire.transport import Answer, Content, Transport
from fl_lightning.functional.digest import digest
from fl_lightning.messages import ClientTask, EvalOrder, Note, RoundCommit, ServerModel
from fl_lightning.settings.server import Faults
from fl_lightning.types import ClientUpdate
from fl_lightning.wire import to_bytes

_WAIT = 300.0
"""The seconds for which a site may load its data or build the model."""
_FAREWELL = 20.0
"""The seconds for which sites may confirm the end of the last round."""
_MOST_LOST = 20
"""How often a request that the transport loses is sent again before its site counts as failed."""
_MOST_COUNTS = 20
"""The largest number of counts, each of an option, in a site's reply."""
_REMEDY = (
    "When the site can answer again, resume with --ckpt_path last; or set 'federation.faults.policy' to 'skip', which "
    "continues without such a site."
)


class SiteError(ClientError):
    """A site failed.

    Args:
        who: the site, for messages that do not name it themselves.
        cause: what happened.
        attempts: how often the site has tried.
        silent: whether no reply came.
    """

    def __init__(self, who: str, cause: str, attempts: int = 1, silent: bool = False) -> None:
        super().__init__(f"{who}: {cause}")
        self.cause, self.attempts, self.silent = cause, attempts, silent


@dataclass
class Request:
    """Hold a request, so that it can be sent again as it was until it is answered.

    Attributes:
        order: the envelope.
        model: the model to which its orders refer; None before the fit has one.
        base: the version of the model with which the sent one shares tensors, 0 for none; None if no model goes with them.
        numbered: whether the model's version is a number of this process, and not of one before it.
        size: the bytes that were sent.
        received: the bytes of the reply.
        lost: how often the transport has lost it.
        attempts: how often it was sent because nothing came back, and the first time.
    """

    order: Content
    model: ServerModel | None = None
    base: int | None = None
    numbered: bool = True
    size: int = 0
    received: int = 0
    lost: int = 0
    attempts: int = 1


class Exchange:
    """Send requests to sites, and open their answers.

    Args:
        transport: exchanges bytes with the sites by the numbers of their registration.
        names: the names of the sites, by client.
        numbers: their numbers, by client: held-out sites are the last clients.
        witness: keeps the digest of the last line of a site's log, by name: a log that is written anew does not have it.
    """

    def __init__(
        self, transport: Transport, names: Sequence[str], numbers: Sequence[int], witness: Callable[[str, str], None]
    ) -> None:
        self._transport, self._names, self._numbers, self._witness = transport, tuple(names), tuple(numbers), witness
        self._contract: Mapping[str, Any] = {}
        self._federation: Callable[[], str] = str
        self._limit: float | None = _WAIT
        self._faults = Faults("skip", retries=1)  # a site may have died a moment ago, and be on its way back
        self._model: ServerModel | None = None
        self._encoded: dict[int, Content] = {}  # the newest model as bytes, by the version that the receiver has; 0 for none
        self._digests: dict[str, str] = {}
        self._changed: dict[str, int] = {}  # the version in which each tensor changed last
        self._has: dict[int, int] = {}  # the version of the model that each site has
        self._settlements: dict[int, list[RoundCommit]] = defaultdict(list)
        self._trained: dict[int, int] = {}  # the rounds of the tasks that no settlement covers yet, by client
        self._open: dict[int, Mapping[int, int]] = {}  # the tasks that outlast a round, as _trained, by that round
        self._requests: dict[int, Request] = {}
        self._counts: dict[str, Counter[int]] = defaultdict(Counter)
        self._notes: dict[int, Note] = {}

    def start(self, contract: Mapping[str, Any], federation: Callable[[], str], faults: Faults, grace: float) -> None:
        """Begin a federation, for which the sites are prepared.

        Args:
            contract: the settings that sites need, as values.
            federation: returns the id of the federation.
            faults: how to handle sites that fail.
            grace: the seconds beyond the deadline after which a silent site has failed.
        """
        self._contract, self._federation, self._faults = contract, federation, faults
        self._limit = None if faults.deadline is None else faults.deadline + grace

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
        return {self._numbers.index(number): cause for number, cause in self._transport.absent().items()}

    def publish(self, model: ServerModel) -> None:
        """Send this model with the next order to each site, without tensors that the site has: frozen ones, and constants."""
        known = self._model
        if known is not None and (known.tensors.keys(), known.first.keys()) != (model.tensors.keys(), model.first.keys()):
            self._has.clear()  # a model with other parts at its clients, which shares no tensors by name
        self._model, self._encoded, self._notes = model, {}, {}
        for name, tensor in model.tensors.items():
            if self._digests.get(name) != (now := digest(tensor)):
                self._digests[name], self._changed[name] = now, model.version

    def post(self, client: int, order: Content) -> None:
        """Send a request without a model."""
        self._requests[client] = Request(order)
        self._dispatch(client)

    def send(self, client: int, orders: Sequence[ClientTask | EvalOrder | Note], earlier: ServerModel | None = None) -> None:
        """Send orders with what the site must know first; without orders it does not need the model.

        Args:
            client: the client.
            orders: the orders.
            earlier: the model to which they refer, if another process has published it; None for the newest one.
        """
        model = earlier or self._model
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
        base = known if orders and known != model.version else None
        # an earlier model is older than some with smaller versions, so its version does not tell what else a site has
        self._requests[client] = Request(content, model, base, numbered=earlier is None)
        self._dispatch(client)

    def note(self, task: ClientTask) -> None:
        """Note that a site may train, even if its reply is lost, so that the next settlement tells it whether that counts."""
        self._trained[task.client] = task.round_idx

    def repeat(self, client: int) -> None:
        """Send a site's request again, with the whole model; the site answers from its store if it has done the work."""
        self._requests[client].base = 0
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
            return
        self._requests[client] = Request(asked, replace(model, version=version), 0, numbered=False)
        self._dispatch(client)

    def _dispatch(self, client: int) -> None:
        request = self._requests[client]
        parts: dict[str, Content] = {"order": request.order}
        if request.base is not None and request.model is not None:
            parts["model"] = self._published(request.model, request.base)
        request.size += sum(map(len, parts.values()))
        self._transport.send(self._numbers[client], parts, self._limit)

    def _published(self, model: ServerModel, base: int) -> Content:
        """Return a model as bytes, for a site that has a version of it; 0 for none."""
        new = {name: tensor for name, tensor in model.tensors.items() if self._changed[name] > base}
        base = base if len(new) < len(model.tensors) or model.first else 0
        encoded = self._encoded if model is self._model else {}
        if base not in encoded:
            encoded[base] = to_bytes(replace(model, tensors=new, first={} if base else model.first, base=base))
        return encoded[base]

    # ---------------------------------------------------------------- answers

    def answers(self, read: Callable[[int, Mapping[str, Any]], Any], skips: bool | None = None) -> Iterator[tuple[int, Any]]:
        """Return each client, until no request is under way, with what ``read`` makes of its reply.

        What the transport has lost is asked for again. Nothing here keeps a reply, which may hold a model; the model as bytes
        is dropped, and made again if it is sent again.

        Args:
            read: returns what is wanted of a client's reply, or raises a ClientError.
            skips: whether to return a SiteError for a site that fails; None if the policy says so.

        Raises:
            ClientError: if a site fails, and is not left out.
        """
        self._encoded = {}
        read_one = functools.partial(self._read, read, self._faults.skips if skips is None else skips)
        return filter(None, map(read_one, self._transport.answers()))

    def _read(self, read: Callable[[int, Mapping[str, Any]], Any], skips: bool, answer: Answer) -> tuple[int, Any] | None:
        """Return a client with what its answer holds, or its error; None if its request was sent again."""
        client = self._numbers.index(answer.client)
        self._encoded, request = {}, self._requests[client]
        if answer.lost and request.lost < _MOST_LOST:
            # A site that has done the work does not need the model; another asks for it.
            request.lost, request.base = request.lost + 1, None
            self._dispatch(client)
            return None
        if answer.content is None and request.attempts <= self._faults.retries:
            request.attempts += 1
            self.repeat(client)
            return None
        try:
            found = self._opened(client, answer)
            return None if found is None else (client, read(client, found))
        except ClientError as error:
            if skips:
                told = error if isinstance(error, SiteError) else SiteError("", str(error))
                told.attempts = max(told.attempts, request.attempts)
                return client, told
            if answer.content is None and not self._faults.skips:
                raise ClientError(f"{error}. {_REMEDY}") from error
            raise

    def _opened(self, client: int, answer: Answer) -> Mapping[str, Any] | None:
        """Return the contents of an answer; None if the site needs the model first, which is then on its way.

        Raises:
            ClientError: if the site failed; it names the site.
        """
        who, request = self.who(client), self._requests[client]
        if answer.content is None:
            self._has.pop(client, None)
            raise SiteError(who, answer.cause, silent=True)
        request.received = len(answer.content)
        try:
            found = envelope.opened(answer.content, ("reply",))
        except WireError as error:
            raise SiteError(who, envelope.printable(error)) from error
        log = found.get("log")
        if isinstance(log, str) and re.fullmatch(r"[0-9a-f]{64}", log):
            self._witness(self._names[client], log)
        if found.get("needs") == "model" and request.model is not None and request.base != 0:
            self.repeat(client)
            return None
        if "error" in found or "needs" in found:
            raise SiteError(who, envelope.printable(found.get("error", "it lacks the model")))
        counts = found.get("releases", {})
        if not conforms(counts, Mapping[str, Mapping[str, int]]) or len(counts) > _MOST_COUNTS:
            raise SiteError(who, "its reply does not count what it has released.")
        if request.base is not None and request.numbered and request.model is not None:
            self._has[client] = request.model.version
        self._settlements.pop(client, None)
        for name, numbers in counts.items():
            if (told := numbers.get(str(client), 0)) > 0:
                self._counts[name][client] += told
        return found

    def sized(self, update: ClientUpdate) -> ClientUpdate:
        """Return an update with the bytes that were sent for it in both directions."""
        request = self._requests[update.client]
        return replace(update, bytes_down=request.size, bytes_up=request.received)

    def take_counts(self) -> dict[str, Counter[int]]:
        """Return what each site has counted since the last call; see :meth:`ClientPool.counts`."""
        found, self._counts = self._counts, defaultdict(Counter)
        return dict(found)

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
            under_way: the clients whose tasks have outlasted it; nothing waits for them, nor for what an error left.
        """
        self._transport.forget()
        self._limit, self._faults = _FAREWELL, Faults("skip")
        for client, waiting in list(self._settlements.items()):
            if waiting and client in self._has and client not in under_way:
                self.send(client, [])
        told = self.answers(lambda client, found: None)
        return [self._names[client] for client, error in told if error is not None and error.silent]

    def close(self, completed: bool) -> None:
        """End the connection."""
        self._transport.close(completed)
