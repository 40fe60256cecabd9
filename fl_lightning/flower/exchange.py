"""Exchange requests with sites: what a site must know travels with the next order to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_lightning.errors import ClientError, WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.site_record import whole_digest
from fl_lightning.flower.transport import Answer, Content, Transport
from fl_lightning.flower.validation import conforms
from fl_lightning.functional.digest import Digest
from fl_lightning.messages import ClientTask, EvalOrder, Note, OwnModelOrder, RoundCommit, ServerModel
from fl_lightning.types import ClientUpdate
from fl_lightning.wire import to_bytes

_FAREWELL = 20.0
"""The seconds for which sites may confirm the end of the last round."""
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


@dataclass
class _Request:
    """Hold a request so that it can be sent again as it was."""

    order: Content
    model: bool
    base: int = 0
    size: int = 0


class Exchange:
    """Send requests to sites, and open their answers.

    Args:
        transport: exchanges bytes with the sites.
        names: the names of the sites, by client.
        contract: the settings that sites need, as values.
        federation: returns the id of the federation.
        limit: the seconds after which a silent site has failed; None for no limit.
    """

    def __init__(
        self,
        transport: Transport,
        names: Sequence[str],
        contract: Mapping[str, Any],
        federation: Callable[[], str],
        limit: float | None,
    ) -> None:
        self._transport, self._names = transport, tuple(names)
        self._contract, self._federation, self._limit = contract, federation, limit
        self._model: ServerModel | None = None
        self._encoded: dict[int, Content] = {}  # the model as bytes, by the version that the receiver has; 0 for none
        self._digests: dict[str, str] = {}
        self._changed: dict[str, int] = {}  # the version in which each tensor changed last
        self._has: dict[int, int] = {}  # the version of the model that each site has
        self._settlements: dict[int, list[RoundCommit]] = defaultdict(list)
        self._trained = set[int]()
        self._requests: dict[int, _Request] = {}
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

    def send(self, client: int, orders: Sequence[ClientTask | EvalOrder | Note | OwnModelOrder]) -> None:
        """Send orders with what the site must know first; without orders it does not need the model."""
        assert self._model is not None
        if any(isinstance(order, ClientTask) for order in orders):
            self._trained.add(client)  # it may train even if its reply is lost
        content = envelope.request(
            "work",
            federation=self._federation(),
            client=client,
            contract=self._contract,
            session=self._model.session,
            model_version=self._model.version,
            orders=list(orders),
            settlements=list(self._settlements[client]),
            notes=[self._notes.pop(client)] if client in self._notes else [],
        )
        known = self._has.get(client, 0)
        self._requests[client] = _Request(content, bool(orders) and known != self._model.version, known)
        self._dispatch(client)

    def repeat(self, client: int) -> None:
        """Send a site's request again, with the whole model; the site answers from its store if it has done the work."""
        request = self._requests[client]
        request.model, request.base = True, 0
        self._dispatch(client)

    def _dispatch(self, client: int) -> None:
        request = self._requests[client]
        parts: dict[str, Content] = {"order": request.order}
        if request.model:
            parts["model"] = self._published(request.base)
        request.size += sum(map(len, parts.values()))
        assert self._model is not None
        self._transport.send(client, parts, self._model.round_idx, self._limit)

    def _published(self, base: int) -> Content:
        """Return the model as bytes, for a site that has a version of it; 0 for none."""
        model = self._model
        assert model is not None
        new = {name: tensor for name, tensor in model.tensors.items() if self._changed[name] > base}
        base = base if len(new) < len(model.tensors) or model.first else 0
        if base not in self._encoded:
            first = {} if base else model.first  # it never changes
            self._encoded[base] = to_bytes(replace(model, tensors=new, first=first, base=base))
        return self._encoded[base]

    # ---------------------------------------------------------------- answers

    def answers(self) -> Iterator[Answer]:
        """Yield answers until no request is under way."""
        return self._transport.answers()

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
        request = self._requests[client]
        if found.get("needs") == "model" and (not request.model or request.base):
            self.repeat(client)
            return None
        if "error" in found or "needs" in found:
            raise SiteError(who, envelope.printable(found.get("error", "it lacks the model")))
        counts = found.get("releases", {})
        if not conforms(counts, Mapping[str, Mapping[str, int]]) or len(counts) > _MOST_COUNTS:
            raise SiteError(who, "its reply does not count what it has released.")
        assert self._model is not None
        if request.model:
            self._has[client] = self._model.version
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

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> None:
        """Note the end of a round, which travels with the next order to each site."""
        settlement = RoundCommit(round_idx, tuple(sorted(accepted)), saved_round)
        for client in range(len(self._names)):
            waiting = self._settlements[client]
            if waiting and client not in self._trained:
                waiting[-1] = replace(waiting[-1], saved_round=saved_round)
            else:
                waiting.append(settlement)
        self._trained.clear()

    def conclude(self) -> list[str]:
        """Tell the end of the last round, and return the names of the sites that did not confirm it."""
        clients = [client for client, waiting in self._settlements.items() if waiting and client in self._has]
        self._limit = _FAREWELL
        for client in clients:
            self.send(client, [])
        return [self._names[answer.client] for answer in self.answers() if answer.content is None]

    def close(self, completed: bool) -> None:
        """End the connection."""
        self._transport.close(completed)
