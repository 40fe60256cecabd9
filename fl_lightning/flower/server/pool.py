"""The clients of a federation at sites that a transport of bytes reaches."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_lightning.core.federation import Chain, PassesOn, RunningChains, Take, Tasks
from fl_lightning.errors import ClientError, FederationError
from fl_lightning.flower.server.exchange import Exchange, SiteError
from fl_lightning.flower.server.replies import Needs, UpdateReader, evaluations_in, reply_in
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, ServerModel
from fl_lightning.settings.server import Faults
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.utilities.collectives import Collectives

UNKNOWN = "the server does not know its data yet; it takes part after the next start of the fit"
"""The cause by which a site is left out that was never online when a fit started."""


@dataclass(kw_only=True, eq=False)
class RemotePool:
    """Send orders to sites; see :class:`~fl_lightning.core.federation.LastingPool`.

    Args:
        exchange: sends requests to the sites.
        infos: what the sites told about themselves, by client.
        comm: the ranks of the server, of which there is one.
        faults: how to handle clients that fail.
        view: returns a view of a copy of the module, to check updates against.
        prepares: whether the sites change an update before they send it.
        needs: what the strategy reads of every update.
    """

    exchange: Exchange
    infos: tuple[ClientInfo, ...]
    comm: Collectives
    faults: Faults
    view: Callable[[], ModelState]
    prepares: bool
    needs: Needs
    simulated = False

    def __post_init__(self) -> None:
        self._model: ServerModel | None = None
        self._between_rounds = False
        self._readers: dict[int, UpdateReader] = {}  # by the version of the model
        self._results: Iterator[tuple[int, Any]] | None = None  # until no request is under way
        self._absent: Mapping[int, str] = {}
        self._silent: dict[int, str] = {}  # the sites that did not answer an option's message in this round, with causes
        self._tasks: dict[int, ClientTask] = {}  # by client
        self._lost: deque[ClientFailure] = deque()

    @property
    def published(self) -> ServerModel:
        """See :attr:`ClientPool.published`."""
        assert self._model is not None
        return self._model

    def terms(self) -> dict[str, str]:
        """See :meth:`ClientPool.terms`."""
        return {**self.exchange.terms(), "session": self.published.session}

    def ask(self, notes: Sequence[Note]) -> dict[int, Note]:
        """See :meth:`ClientPool.ask`. A site that does not answer gets no task in this round.

        Raises:
            ClientError: if one does not, and the policy does not leave sites out.
        """
        away = self._away()
        for note in notes:
            if note.client not in away:
                self.exchange.send(note.client, [note])
        found = dict[int, Note]()
        for client, answer in self.exchange.answers(lambda k, reply: reply_in(reply, self.exchange.who(k), k, Note)):
            if isinstance(answer, SiteError):
                self._silent[client] = answer.cause
            else:
                found[client] = answer
        return found

    def tell(self, notes: Sequence[Note]) -> None:
        """See :meth:`ClientPool.tell`."""
        for note in notes:
            self.exchange.tell(note)

    def clients(self) -> tuple[ClientInfo, ...]:
        """See :meth:`ClientPool.clients`."""
        return self.infos

    def publish(self, model: ServerModel) -> None:
        """See :meth:`ClientPool.publish`. The model travels with the next order to each site."""
        needed = {task.version for task in self._tasks.values()}
        self._readers = {version: reader for version, reader in self._readers.items() if version in needed}
        self._model, self._silent = model, {}
        self.exchange.publish(model)

    # ---------------------------------------------------------------- training

    def train(self, chains: Sequence[Tasks], take: Take, passes_on: PassesOn, scored: int = 0) -> None:
        """See :meth:`ClientPool.train`: all chains at once."""
        self._tasks, self._lost = {}, deque()
        self.absent()
        running = RunningChains(chains, self.begin, passes_on)

        def taken(result: ClientUpdate | ClientFailure) -> bool:
            chain = running.add(result)
            if chain is not None:
                self._require_prepared(chain)
                take(chain)
            return True

        for tasks in chains:
            self.begin(tasks[0])
        self.follow(taken)

    def _require_prepared(self, chain: Chain) -> None:
        """Refuse a model that its site did not prepare for the server, because another site was to train after it."""
        if self.prepares and chain.trained is not None and chain.tasks[-1].delivers and not chain.trained.delivers:
            cause = "its model was lost with the site that was to train after it"
            if not self.faults.skips:
                raise ClientError(cause)
            chain.lose(cause)

    def absent(self) -> Collection[int]:
        """See :meth:`LastingPool.absent`."""
        self._absent = self._away()
        return self._absent.keys()

    def _away(self) -> Mapping[int, str]:
        """Return the sites that get no order in this round, with causes: absent ones, and those that did not answer."""
        return {**self._missing(), **self._silent} if self.faults.skips else {}

    def _missing(self) -> Mapping[int, str]:
        """Return the sites that cannot train now, with causes; the others need not wait for the transport to notice."""
        unknown = [client for client, info in enumerate(self.infos) if not info.num_examples]
        return dict(self.exchange.absent()) | dict.fromkeys(unknown, UNKNOWN)

    def begin(self, task: ClientTask) -> None:
        """See :meth:`LastingPool.begin`."""
        if self._begun(task, self.published):
            self.exchange.send(task.client, [task])

    def under_way(self) -> Mapping[int, bytes]:
        """See :meth:`ClientPool.under_way`."""
        return {client: self.exchange.request_of(client) for client in self._tasks}

    def take_up(self, task: ClientTask, model: ServerModel, asked: bytes) -> None:
        """See :meth:`LastingPool.take_up`. A site that is absent now may have done it before."""
        self.exchange.note(task)
        if self._begun(task, model):
            self.exchange.take_up(task.client, task, model, asked)

    def _begun(self, task: ClientTask, model: ServerModel) -> bool:
        """Note a task, and return whether its site is there to get it."""
        client, self._between_rounds = task.client, False
        if client in self._absent:
            self._lost.append(ClientFailure(client, task.round_idx, self._absent[client]))
            return False
        if model.version not in self._readers:
            self._readers[model.version] = UpdateReader(self.view(), model, self.needs)
        self._tasks[client] = task
        return True

    def follow(self, take: Callable[[ClientUpdate | ClientFailure], bool]) -> None:
        """See :meth:`LastingPool.follow`."""
        while self._followed(take):
            pass

    def _followed(self, take: Callable[[ClientUpdate | ClientFailure], bool]) -> bool:
        """Pass on one result, which may hold a model, and return whether to continue."""
        if self._lost:
            return take(self._lost.popleft())
        self._results = self._results or self.exchange.answers(self._update)
        client, result = next(self._results, (0, None))
        if result is None:
            self._results = None
            return False
        task = self._tasks.pop(client)
        if isinstance(result, SiteError):
            result = ClientFailure(client, task.round_idx, result.cause, result.attempts)
        return take(result)

    def _update(self, client: int, found: Mapping[str, Any]) -> ClientUpdate:
        task, info = self._tasks[client], self.infos[client]
        examples = None if info.streams else info.num_examples
        return self.exchange.sized(self._readers[task.version].update_in(found, self.exchange.who(client), task, examples))

    # ---------------------------------------------------------------- evaluation

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """See :meth:`ClientPool.evaluate`. With 'skip', a client that fails in the client evaluation has the value NaN.

        A client that does not answer questions has a report with the reason.

        Raises:
            ClientError: if a client fails and is not left out, or if no client has a value and one reports an error.
        """
        by_client: dict[int, list[int]] = defaultdict(list)
        for number, order in enumerate(orders):
            by_client[order.client].append(number)
        questions = all(order.question is not None for order in orders)
        skips = questions or (self.faults.skips and all(order.metric == "evaluation" for order in orders))
        lost = {client: cause for client, cause in self._missing().items() if client in by_client} if skips else {}
        for client in by_client.keys() - lost.keys():
            self.exchange.send(client, [orders[number] for number in by_client[client]])
        who, reports, refused = self.exchange.who, dict[int, EvalReport](), None

        def read(client: int, found: Mapping[str, Any]) -> list[EvalReport]:
            return evaluations_in(found, who(client), client, len(by_client[client]))

        for client, answer in self.exchange.answers(read, skips):
            if isinstance(answer, SiteError):
                lost[client], refused = answer.cause, refused if answer.silent else answer
            else:
                reports |= dict(zip(by_client[client], answer, strict=True))
        if refused is not None and not reports and not questions:  # more likely a wrong setting than a failure of all sites
            raise refused
        for client, cause in () if questions else sorted(lost.items()):
            warnings.warn(f"The evaluation continues without s{who(client)[1:]}: {cause}.", stacklevel=2)
        return [
            reports.get(number) or EvalReport(order.client, math.nan, reason=lost[order.client] if questions else "")
            for number, order in enumerate(orders)
        ]

    # ---------------------------------------------------------------- what clients keep

    def own_models(self) -> list[Snapshot | None]:
        """See :meth:`ClientPool.own_models`; sites keep their own models."""
        raise ClientError("The sites' own models stay at the sites. Use a route that does not mix them at the server.")

    def counts(self) -> dict[str, dict[int, int]]:
        """See :meth:`ClientPool.counts`."""
        return dict(self.exchange.take_counts())

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """See :meth:`ClientPool.settle`. The settlement travels with the next order to each site."""
        self.exchange.settle(round_idx, accepted, saved_round, self._tasks)
        self._between_rounds = True
        return {}

    def state_dict(self) -> dict[Any, Any]:
        """Return nothing: what clients keep stays at the sites."""
        return {}

    def close(self) -> None:
        """Tell the sites the end of the last round, and end the connection."""
        completed, said = self._between_rounds, ""
        try:
            said = ", ".join(self.exchange.conclude(self._tasks)) if completed else ""
        except FederationError as error:  # the fit itself is complete
            said = str(error)
        finally:
            self.exchange.close(completed)
        if said:
            warnings.warn(f"Some sites did not learn that the last round is complete: {said}", stacklevel=2)
