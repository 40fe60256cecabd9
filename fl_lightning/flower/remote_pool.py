"""The clients of a federation at sites that a transport of bytes reaches."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.collectives import Collectives
from fl_lightning.errors import ClientError, FederationError, WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.transport import Answer, Transport
from fl_lightning.flower.validation import require_message
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import (
    ChainReport,
    ClientInfo,
    ClientJob,
    EvalOrder,
    EvalReport,
    ServerModel,
    Settlement,
    TrainOrder,
)
from fl_lightning.settings.faults import Faults
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.wire import to_bytes


@dataclass
class _Chain:
    """Follow a chain of clients, of which one trains at a time."""

    order: TrainOrder
    position: int = 0
    attempt: int = 1
    updates: list[ClientUpdate] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)
    start: Snapshot | None = None

    @property
    def job(self) -> ClientJob:
        return self.order.jobs[self.position]

    @property
    def done(self) -> bool:
        return self.position == len(self.order.jobs)

    def next_order(self) -> TrainOrder:
        last = self.position == len(self.order.jobs) - 1
        return TrainOrder(self.order.version, (self.job,), self.start, self.order.delivers and last)


@dataclass
class _Request:
    """Hold a request so that it can be sent again as it was."""

    order: bytes
    model: bool
    size: int = 0


class RemotePool:
    """Send orders to sites; see :class:`~fl_lightning.clients.pool.ClientPool`.

    Args:
        transport: exchanges bytes with the sites.
        infos: what the sites told about themselves, by client.
        comm: the ranks of the server, of which there is one.
        contract: the settings that sites need, as values.
        federation: returns the id of the federation.
        faults: how to handle clients that fail.
        view: returns a view of a copy of the module, to check updates against.
        engine: the engine that trains the clients.
        grace: the seconds beyond ``faults.deadline`` after which a silent site has failed.
        prepares: whether the sites change an update before they send it.
    """

    simulated = False

    def __init__(
        self,
        *,
        transport: Transport,
        infos: Sequence[ClientInfo],
        comm: Collectives,
        contract: Mapping[str, Any],
        federation: Callable[[], str],
        faults: Faults,
        view: Callable[[], ModelState],
        engine: str,
        grace: float,
        prepares: bool,
    ) -> None:
        self._transport, self._infos, self.comm = transport, tuple(infos), comm
        self._contract, self._federation, self._faults = contract, federation, faults
        self._view, self._engine, self._prepares = view, engine, prepares
        self._limit = None if faults.deadline is None else faults.deadline + grace
        self._model: ServerModel | None = None
        self._encoded: bytes | None = None
        self._has: dict[int, int] = {}  # the version of the model that each site has
        self._settlements: dict[int, list[Settlement]] = defaultdict(list)
        self._trained = set[int]()
        self._between_rounds = False
        self._requests: dict[int, _Request] = {}
        self._releases: dict[str, dict[int, int]] = {"sent": {}, "steps": {}}
        self._check: UpdateCheck | None = None

    @property
    def engine(self) -> str:
        """Return the engine that trains the clients."""
        return self._engine

    def clients(self) -> tuple[ClientInfo, ...]:
        """See :meth:`ClientPool.clients`."""
        return self._infos

    def publish(self, model: ServerModel) -> None:
        """See :meth:`ClientPool.publish`. The model travels with the next order to each site."""
        self._model, self._encoded, self._check = model, None, None

    # ---------------------------------------------------------------- requests

    def _send(self, client: int, orders: Sequence[TrainOrder | EvalOrder]) -> None:
        """Send orders with what the site must know first; without orders it does not need the model."""
        assert self._model is not None
        if any(isinstance(order, TrainOrder) for order in orders):
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
        )
        self._requests[client] = _Request(content, bool(orders) and self._has.get(client) != self._model.version)
        self._dispatch(client)

    def _dispatch(self, client: int) -> None:
        """Send a client's request, again if necessary; a site answers a repeated one from its store."""
        request = self._requests[client]
        parts = {"order": request.order}
        if request.model:
            parts["model"] = self._published()
        request.size += sum(map(len, parts.values()))
        assert self._model is not None
        self._transport.send(client, parts, self._model.round_idx, self._limit)

    def _published(self) -> bytes:
        assert self._model is not None
        if self._encoded is None:
            self._encoded = to_bytes(self._model)
        return self._encoded

    def _opened(self, answer: Answer) -> Mapping[str, Any] | None:
        """Return the contents of an answer; None if the site needs the model first, which is then on its way.

        Raises:
            ClientError: if the site failed; it names the site.
        """
        client, who = answer.client, self._who(answer.client)
        if answer.content is None:
            self._has.pop(client, None)
            raise ClientError(f"{who}: {answer.cause}")
        try:
            found = envelope.opened(answer.content, ("reply",))
        except WireError as error:
            raise ClientError(f"{who}: {error}") from error
        if found.get("needs") == "model" and not self._requests[client].model:
            self._requests[client].model = True
            self._dispatch(client)
            return None
        if "error" in found or "needs" in found:
            raise ClientError(f"{who}: {envelope.printable(found.get('error', 'it lacks the model'))}")
        assert self._model is not None
        if self._requests[client].model:
            self._has[client] = self._model.version
        self._settlements.pop(client, None)
        self._count(client, found.get("releases"))
        return found

    def _who(self, client: int) -> str:
        return f"Site {self._infos[client].name} (client {client})"

    def _count(self, client: int, releases: Any) -> None:
        for kind, counts in self._releases.items():
            told = releases.get(kind, {}).get(str(client), 0) if isinstance(releases, Mapping) else 0
            if type(told) is int and told > 0:
                counts[client] = counts.get(client, 0) + told

    # ---------------------------------------------------------------- training

    def train(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """See :meth:`ClientPool.train`."""
        assert self._model is not None
        self._check = self._check or UpdateCheck(self._view(), self._model)
        self._between_rounds = False
        chains = {}
        for order in orders:
            chain = _Chain(order, start=order.start)
            chains[chain.job.client] = chain
            self._send(chain.job.client, [chain.next_order()])
        return self._reports(chains)

    def _reports(self, chains: dict[int, _Chain]) -> Iterator[ChainReport]:
        try:
            for answer in self._transport.answers():
                chain = chains[answer.client]
                if not self._advance(chain, answer):
                    continue
                del chains[answer.client]
                if chain.done:
                    yield self._report(chain)
                else:
                    chains[chain.job.client] = chain
                    self._send(chain.job.client, [chain.next_order()])
        except BaseException:
            self._transport.forget()
            raise

    def _advance(self, chain: _Chain, answer: Answer) -> bool:
        """Take an answer, and return whether the chain's client is done; otherwise its request has been sent again."""
        try:
            found = self._opened(answer)
            if found is None:
                return False
            update, failures = self._update(chain, found, answer)
        except ClientError as error:
            if answer.content is None and chain.attempt <= self._faults.retries:
                chain.attempt += 1
                self._requests[answer.client].model = True
                self._dispatch(answer.client)
                return False
            if not self._faults.skips:
                raise
            update, failures = None, [ClientFailure(answer.client, chain.job.round_idx, str(error), chain.attempt)]
        chain.failures += failures
        if update is not None:
            chain.updates = [*(earlier.without_state() for earlier in chain.updates), update]
            chain.start = update.snapshot
        chain.position, chain.attempt = chain.position + 1, 1
        return True

    def _update(
        self, chain: _Chain, found: Mapping[str, Any], answer: Answer
    ) -> tuple[ClientUpdate | None, list[ClientFailure]]:
        """Return the update in a reply, checked as if a stranger had sent it.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        client, replies = answer.client, found.get("replies")
        who = self._who(client)
        try:
            (report,) = replies if isinstance(replies, tuple) else ()
            require_message(report, ChainReport)
        except (ValueError, WireError) as error:
            raise ClientError(f"{who}: its reply is not a report ({error}).") from error
        if report.failures or not report.updates:
            told = report.failures[0] if report.failures else ClientFailure(client, chain.job.round_idx, "no update")
            if not self._faults.skips:
                raise ClientError(f"{who}: {envelope.printable(told.cause)}")
            return None, [
                ClientFailure(client, chain.job.round_idx, f"{who}: {envelope.printable(told.cause)}", max(1, told.attempts))
            ]
        (update,) = report.updates[-1:]
        expected = (client, chain.job.round_idx, self._infos[client].num_examples)
        if update.model is None or (update.client, update.round_idx, update.num_examples) != expected:
            raise ClientError(f"{who}: its update is for another client, round or number of examples.")
        _require_numbers(who, update)
        self._require_extras(who, update)
        request = self._requests[client]
        sized = replace(update, bytes_down=request.size, bytes_up=len(answer.content or b""))
        assert self._check is not None
        return self._check(sized), []

    def _require_extras(self, who: str, update: ClientUpdate) -> None:
        size = self._check.num_parameters if self._check is not None else 0
        for name, tensor in update.extras.items():
            fits = tensor.numel() == size and tensor.is_floating_point() and bool(torch.isfinite(tensor).all())
            if not fits:
                raise ClientError(f"{who}: '{name[:40]}' must be {size} finite numbers.")
        if update.snapshot.counters.dtype != torch.int64:
            raise ClientError(f"{who}: its counters are not int64.")

    def _report(self, chain: _Chain) -> ChainReport:
        """Return the report of a chain.

        If the last client failed, the model of the one before it was not prepared for the server; then the chain is lost.
        """
        failed_last = bool(chain.failures) and chain.failures[-1].client == chain.order.jobs[-1].client
        if failed_last and chain.updates and self._prepares and chain.order.delivers:
            cause = f"its model was lost with site {self._infos[chain.failures[-1].client].name}"
            lost = [ClientFailure(update.client, update.round_idx, cause) for update in chain.updates]
            return ChainReport((), (*lost, *chain.failures))
        return ChainReport(tuple(chain.updates), tuple(chain.failures))

    def answer(self) -> Iterator[ChainReport]:
        """See :meth:`ClientPool.answer`."""
        return iter(())

    # ---------------------------------------------------------------- evaluation

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """See :meth:`ClientPool.evaluate`."""
        by_client: dict[int, list[int]] = defaultdict(list)
        for number, order in enumerate(orders):
            by_client[order.client].append(number)
        for client, numbers in by_client.items():
            self._send(client, [orders[number] for number in numbers])
        reports: dict[int, EvalReport] = {}
        try:
            for answer in self._transport.answers():
                found = self._opened(answer)
                if found is None:
                    continue
                numbers, replies = by_client[answer.client], found.get("replies")
                fits = isinstance(replies, tuple) and len(replies) == len(numbers)
                if not fits or not all(type(r) is EvalReport and r.client == answer.client for r in replies):  # type: ignore[union-attr]
                    raise ClientError(f"{self._who(answer.client)}: its reply is not a report of an evaluation.")
                reports |= {n: EvalReport(r.client, float(r.value)) for n, r in zip(numbers, replies, strict=True)}  # type: ignore[arg-type]
        except BaseException:
            self._transport.forget()
            raise
        return [reports[number] for number in range(len(orders))]

    # ---------------------------------------------------------------- what clients keep

    def own_models(self) -> list[Snapshot | None]:
        """See :meth:`ClientPool.own_models`; sites keep their own models."""
        raise ClientError("The sites' own models stay at the sites. Use a route that does not mix them at the server.")

    def releases(self) -> dict[str, dict[int, int]]:
        """See :meth:`ClientPool.releases`."""
        found, self._releases = self._releases, {"sent": {}, "steps": {}}
        return found

    def figures(self, round_idx: int, drawn: int) -> dict[str, float]:
        """See :meth:`ClientPool.figures`; what transforms keep stays at the sites."""
        return {}

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """See :meth:`ClientPool.settle`. The settlement travels with the next order to each site."""
        settlement = Settlement(round_idx, tuple(sorted(accepted)), saved_round)
        for client in range(len(self._infos)):
            waiting = self._settlements[client]
            if waiting and client not in self._trained:
                waiting[-1] = replace(waiting[-1], saved_round=saved_round)
            else:
                waiting.append(settlement)
        self._trained.clear()
        self._between_rounds = True
        return {}

    def state_dict(self) -> dict[Any, Any]:
        """Return nothing: what clients keep stays at the sites."""
        return {}

    def close(self) -> None:
        """Tell the sites the end of the last round, and end the connection."""
        completed = self._between_rounds
        try:
            if completed:
                self._conclude()
        except FederationError as error:  # the fit itself is complete
            warnings.warn(f"The sites did not learn that the last round is complete. {error}", stacklevel=2)
        finally:
            self._transport.close(completed)

    def _conclude(self) -> None:
        clients = [client for client, waiting in self._settlements.items() if waiting and client in self._has]
        self._limit = 20.0
        for client in clients:
            self._send(client, [])
        silent = [self._infos[answer.client].name for answer in self._transport.answers() if answer.content is None]
        if silent:
            warnings.warn(f"These sites did not learn that the last round is complete: {', '.join(silent)}.", stacklevel=2)


def _require_numbers(who: str, update: ClientUpdate) -> None:
    """Refuse numbers by which a site could gain weight or end the run.

    Raises:
        ClientError: naming the number.
    """
    finite = {"local_score": update.local_score, "global_score": update.global_score, "seconds": update.seconds}
    broken = [name for name, value in finite.items() if value is not None and not math.isfinite(value)]
    broken += ["num_steps"] if update.num_steps < 0 else []
    broken += ["normalizer"] if update.normalizer is not None and not 0 < update.normalizer < math.inf else []
    if broken:
        raise ClientError(f"{who}: '{broken[0]}' is outside its range.")
