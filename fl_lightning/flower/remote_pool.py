"""The clients of a federation at sites that a transport of bytes reaches."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.errors import ClientError, FederationError
from fl_lightning.flower.exchange import Exchange, SiteError
from fl_lightning.flower.replies import Needs, TensorCheck, evaluations_in, update_in
from fl_lightning.flower.transport import Answer
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ChainReport, ClientInfo, ClientJob, EvalOrder, EvalReport, ServerModel, TrainOrder
from fl_lightning.settings.faults import Faults
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.utilities.collectives import Collectives

UNKNOWN = "the server does not know its data yet; it takes part after the next start of the fit"
"""The cause by which a site is left out that was never online when a fit started."""


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

    def take(self, update: ClientUpdate) -> None:
        """Add the update of the client whose turn it is."""
        self.updates = [*(earlier.without_state() for earlier in self.updates), update]
        self.start = update.snapshot
        self.position, self.attempt = self.position + 1, 1

    def lose(self, cause: str, attempts: int) -> None:
        """Add the failure of the client whose turn it is."""
        self.failures.append(ClientFailure(self.job.client, self.job.round_idx, cause, attempts))
        self.position, self.attempt = self.position + 1, 1


_REMEDY = (
    "When the site is back, resume with --ckpt_path last; or set 'federation.faults.policy' to 'skip', which continues without "
    "such a site."
)


class RemotePool:
    """Send orders to sites; see :class:`~fl_lightning.clients.pool.ClientPool`.

    Args:
        exchange: sends requests to the sites.
        infos: what the sites told about themselves, by client.
        comm: the ranks of the server, of which there is one.
        faults: how to handle clients that fail.
        view: returns a view of a copy of the module, to check updates against.
        engine: the engine that trains the clients.
        prepares: whether the sites change an update before they send it.
        needs: what the strategy reads of every update.
    """

    simulated = False

    def __init__(
        self,
        *,
        exchange: Exchange,
        infos: Sequence[ClientInfo],
        comm: Collectives,
        faults: Faults,
        view: Callable[[], ModelState],
        engine: str,
        prepares: bool,
        needs: Needs,
    ) -> None:
        self._exchange, self._infos, self.comm, self._faults = exchange, tuple(infos), comm, faults
        self._view, self._engine, self._prepares = view, engine, prepares
        self._needs = needs
        self._model: ServerModel | None = None
        self._between_rounds = False
        self._checks: tuple[TensorCheck, UpdateCheck] | None = None
        self._absent: Mapping[int, str] = {}

    @property
    def engine(self) -> str:
        """Return the engine that trains the clients."""
        return self._engine

    def clients(self) -> tuple[ClientInfo, ...]:
        """See :meth:`ClientPool.clients`."""
        return self._infos

    def publish(self, model: ServerModel) -> None:
        """See :meth:`ClientPool.publish`. The model travels with the next order to each site."""
        self._model, self._checks = model, None
        self._exchange.publish(model)

    # ---------------------------------------------------------------- training

    def train(self, orders: Sequence[TrainOrder]) -> Iterator[ChainReport]:
        """See :meth:`ClientPool.train`."""
        assert self._model is not None
        if self._checks is None:
            view = self._view()
            self._checks = TensorCheck(view, self._model, self._needs), UpdateCheck(view, self._model)
        self._between_rounds = False
        self._absent = self._missing() if self._faults.skips else {}
        chains, lost = {}, []
        for order in orders:
            chain = _Chain(order, start=order.start)
            if self._send(chain):
                chains[chain.job.client] = chain
            else:
                lost.append(self._report(chain))
        return self._reports(chains, lost)

    def _missing(self) -> Mapping[int, str]:
        """Return the sites that cannot train now, with causes; the others need not wait for the transport to notice."""
        unknown = [client for client, info in enumerate(self._infos) if not info.num_examples]
        return dict(self._exchange.absent()) | dict.fromkeys(unknown, UNKNOWN)

    def _send(self, chain: _Chain) -> bool:
        """Send the next order of a chain, past absent sites; return False if none is left."""
        while not chain.done and chain.job.client in self._absent:
            chain.lose(self._absent[chain.job.client], 1)
        if not chain.done:
            self._exchange.send(chain.job.client, [chain.next_order()])
        return not chain.done

    def _reports(self, chains: dict[int, _Chain], lost: Sequence[ChainReport]) -> Iterator[ChainReport]:
        yield from lost
        try:
            for answer in self._exchange.answers():
                chain = chains[answer.client]
                if not self._advance(chain, answer):
                    continue
                del chains[answer.client]
                if self._send(chain):
                    chains[chain.job.client] = chain
                else:
                    yield self._report(chain)
        except BaseException:
            self._exchange.forget()
            raise

    def _advance(self, chain: _Chain, answer: Answer) -> bool:
        """Take an answer, and return whether the chain's client is done; otherwise its request has been sent again."""
        exchange, client = self._exchange, answer.client
        try:
            found = exchange.opened(answer)
            if found is None:
                return False
            assert self._checks is not None
            info = self._infos[client]
            examples = None if info.streams else info.num_examples
            update = update_in(found, exchange.who(client), chain.job, examples, *self._checks)
            chain.take(exchange.sized(update, answer))
        except ClientError as error:
            if answer.content is None and chain.attempt <= self._faults.retries:
                chain.attempt += 1
                exchange.repeat(client)
                return False
            told = self._skipped(error, answer)
            chain.lose(told.cause, max(told.attempts, chain.attempt))
        return True

    def _skipped(self, error: ClientError, answer: Answer) -> SiteError:
        """Return the error of a site that is left out, or raise it if the policy does not leave sites out."""
        if not self._faults.skips:
            raise ClientError(f"{error}. {_REMEDY}") if answer.content is None else error
        return error if isinstance(error, SiteError) else SiteError("", str(error))

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
        """See :meth:`ClientPool.evaluate`. With 'skip', a client that fails in the client evaluation has the value NaN.

        Raises:
            ClientError: if a client fails and is not left out, or if no client has a value and one reports an error.
        """
        by_client: dict[int, list[int]] = defaultdict(list)
        for number, order in enumerate(orders):
            by_client[order.client].append(number)
        skips = self._faults.skips and all(order.metric == "evaluation" for order in orders)
        lost = {client: cause for client, cause in self._missing().items() if client in by_client} if skips else {}
        for client in by_client.keys() - lost.keys():
            self._exchange.send(client, [orders[number] for number in by_client[client]])
        reports: dict[int, EvalReport] = {}
        try:
            for client, values in self._evaluations({k: len(numbers) for k, numbers in by_client.items()}, skips, lost):
                reports |= dict(zip(by_client[client], values, strict=True))
        except BaseException:
            self._exchange.forget()
            raise
        for client, cause in sorted(lost.items()):
            who = self._exchange.who(client)
            warnings.warn(f"The evaluation continues without {who[0].lower()}{who[1:]}: {cause}.", stacklevel=2)
        return [reports.get(number) or EvalReport(order.client, math.nan) for number, order in enumerate(orders)]

    def _evaluations(
        self, counts: Mapping[int, int], skips: bool, lost: dict[int, str]
    ) -> Iterator[tuple[int, list[EvalReport]]]:
        """Yield the results of each client, and add the cause to ``lost`` for a client that is left out."""
        attempts, refused, found_any = dict.fromkeys(counts, 1), None, False
        for answer in self._exchange.answers():
            client = answer.client
            try:
                found = self._exchange.opened(answer)
                if found is not None:
                    yield client, evaluations_in(found, self._exchange.who(client), client, counts[client])
                    found_any = True
            except ClientError as error:
                if answer.content is None and attempts[client] <= self._faults.retries:
                    attempts[client] += 1
                    self._exchange.repeat(client)
                    continue
                told = self._skipped(error, answer)
                if not skips:
                    raise
                lost[client], refused = told.cause, refused if answer.content is None else told
        if refused is not None and not found_any:  # more likely a wrong setting than a failure of all sites
            raise refused

    # ---------------------------------------------------------------- what clients keep

    def own_models(self) -> list[Snapshot | None]:
        """See :meth:`ClientPool.own_models`; sites keep their own models."""
        raise ClientError("The sites' own models stay at the sites. Use a route that does not mix them at the server.")

    def releases(self) -> dict[str, dict[int, int]]:
        """See :meth:`ClientPool.releases`."""
        return self._exchange.take_releases()

    def figures(self, round_idx: int, drawn: int) -> dict[str, float]:
        """See :meth:`ClientPool.figures`; what transforms keep stays at the sites."""
        return {}

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """See :meth:`ClientPool.settle`. The settlement travels with the next order to each site."""
        self._exchange.settle(round_idx, accepted, saved_round)
        self._between_rounds = True
        return {}

    def state_dict(self) -> dict[Any, Any]:
        """Return nothing: what clients keep stays at the sites."""
        return {}

    def close(self) -> None:
        """Tell the sites the end of the last round, and end the connection."""
        completed = self._between_rounds
        try:
            silent = self._exchange.conclude() if completed else []
            if silent:
                warnings.warn(f"These sites did not learn that the last round is complete: {', '.join(silent)}.", stacklevel=2)
        except FederationError as error:  # the fit itself is complete
            warnings.warn(f"The sites did not learn that the last round is complete. {error}", stacklevel=2)
        finally:
            self._exchange.close(completed)
