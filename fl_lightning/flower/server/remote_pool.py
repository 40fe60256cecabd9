"""The clients of a federation at sites that a transport of bytes reaches."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from fl_lightning.clients.answering import NO_OWN
from fl_lightning.clients.judging import UpdateEditor
from fl_lightning.core.federation import Chain, PassesOn, RunningChains, Take, Tasks
from fl_lightning.errors import ClientError, FederationError
from fl_lightning.flower.server.exchange import Exchange, SiteError
from fl_lightning.flower.server.replies import Needs, TensorCheck, evaluations_in, note_in, own_model_in, update_in
from fl_lightning.flower.wire.transport import Answer
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, OwnModelOrder, ServerModel
from fl_lightning.settings.server import Faults
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.utilities.collectives import Collectives

UNKNOWN = "the server does not know its data yet; it takes part after the next start of the fit"
"""The cause by which a site is left out that was never online when a fit started."""
_REMEDY = (
    "When the site can answer again, resume with --ckpt_path last; or set 'federation.faults.policy' to 'skip', which "
    "continues without such a site."
)


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

    simulated = False

    def __init__(
        self,
        *,
        exchange: Exchange,
        infos: Sequence[ClientInfo],
        comm: Collectives,
        faults: Faults,
        view: Callable[[], ModelState],
        prepares: bool,
        needs: Needs,
    ) -> None:
        self._exchange, self._infos, self.comm, self._faults = exchange, tuple(infos), comm, faults
        self._view, self._prepares, self._needs = view, prepares, needs
        self._model: ServerModel | None = None
        self._between_rounds = False
        self._checks: dict[int, tuple[TensorCheck, UpdateEditor]] = {}  # by the version of the model
        self._results: Iterator[ClientUpdate | ClientFailure] | None = None  # until no request is under way
        self._absent: Mapping[int, str] = {}
        self._silent: dict[int, str] = {}  # the sites that did not answer an option's message in this round, with causes
        self._tasks: dict[int, tuple[ClientTask, int]] = {}  # by client, with the number of the attempt
        self._lost: deque[ClientFailure] = deque()

    @property
    def published(self) -> ServerModel:
        """See :attr:`ClientPool.published`."""
        assert self._model is not None
        return self._model

    def terms(self) -> dict[str, str]:
        """See :meth:`ClientPool.terms`."""
        return {**self._exchange.terms(), "session": self.published.session}

    def ask(self, notes: Sequence[Note]) -> dict[int, Note]:
        """See :meth:`ClientPool.ask`. A site that does not answer gets no task in this round.

        Raises:
            ClientError: if one does not, and the policy does not leave sites out.
        """
        away = self._away()
        for note in notes:
            if note.client not in away:
                self._exchange.send(note.client, [note])
        found, attempts = dict[int, Note](), dict.fromkeys((note.client for note in notes), 1)
        try:
            for answer in self._exchange.answers():
                if answer.content is None and attempts[answer.client] <= self._faults.retries:
                    attempts[answer.client] += 1
                    self._exchange.repeat(answer.client)
                    continue
                try:
                    opened = self._exchange.opened(answer)
                    if opened is not None:
                        found[answer.client] = note_in(opened, self._exchange.who(answer.client), answer.client)
                except ClientError as error:
                    self._silent[answer.client] = self._skipped(error, answer).cause
        except BaseException:
            self._exchange.forget()
            raise
        return found

    def tell(self, notes: Sequence[Note]) -> None:
        """See :meth:`ClientPool.tell`."""
        for note in notes:
            self._exchange.tell(note)

    def clients(self) -> tuple[ClientInfo, ...]:
        """See :meth:`ClientPool.clients`."""
        return self._infos

    def publish(self, model: ServerModel) -> None:
        """See :meth:`ClientPool.publish`. The model travels with the next order to each site."""
        needed = {task.version for task, _ in self._tasks.values()}
        self._checks = {version: checks for version, checks in self._checks.items() if version in needed}
        self._model, self._silent = model, {}
        self._exchange.publish(model)

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
        if self._prepares and chain.trained is not None and chain.tasks[-1].delivers and not chain.trained.delivers:
            cause = "its model was lost with the site that was to train after it"
            if not self._faults.skips:
                raise ClientError(cause)
            chain.lose(cause)

    def absent(self) -> Collection[int]:
        """See :meth:`LastingPool.absent`."""
        self._absent = self._away()
        return self._absent.keys()

    def _away(self) -> Mapping[int, str]:
        """Return the sites that get no order in this round, with causes: absent ones, and those that did not answer."""
        return {**self._missing(), **self._silent} if self._faults.skips else {}

    def _missing(self) -> Mapping[int, str]:
        """Return the sites that cannot train now, with causes; the others need not wait for the transport to notice."""
        unknown = [client for client, info in enumerate(self._infos) if not info.num_examples]
        return dict(self._exchange.absent()) | dict.fromkeys(unknown, UNKNOWN)

    def begin(self, task: ClientTask) -> None:
        """See :meth:`LastingPool.begin`."""
        if self._begun(task, self.published):
            self._exchange.send(task.client, [task])

    def under_way(self) -> Mapping[int, bytes]:
        """See :meth:`ClientPool.under_way`."""
        return {client: self._exchange.request_of(client) for client in self._tasks}

    def take_up(self, task: ClientTask, model: ServerModel, asked: bytes) -> None:
        """See :meth:`LastingPool.take_up`. A site that is absent now may have done it before."""
        self._exchange.note(task)
        if self._begun(task, model):
            self._exchange.take_up(task.client, task, model, asked)

    def _begun(self, task: ClientTask, model: ServerModel) -> bool:
        """Note a task, and return whether its site is there to get it."""
        client, self._between_rounds = task.client, False
        if client in self._absent:
            self._lost.append(ClientFailure(client, task.round_idx, self._absent[client]))
            return False
        if model.version not in self._checks:
            view = self._view()
            self._checks[model.version] = TensorCheck(view, model, self._needs), UpdateEditor(view, model)
        self._tasks[client] = task, 1
        return True

    def follow(self, take: Callable[[ClientUpdate | ClientFailure], bool]) -> None:
        """See :meth:`LastingPool.follow`."""
        try:
            while self._followed(take):
                pass
        except BaseException:
            self._exchange.forget()
            self._results = None
            raise

    def _followed(self, take: Callable[[ClientUpdate | ClientFailure], bool]) -> bool:
        """Pass on one result, which may hold a model, and return whether to continue."""
        if self._lost:
            return take(self._lost.popleft())
        self._results = self._results or filter(None, map(self._result, self._exchange.answers()))
        result = next(self._results, None)
        if result is None:
            self._results = None
            return False
        return take(result)

    def _result(self, answer: Answer) -> ClientUpdate | ClientFailure | None:
        """Return the result in an answer; None if the request has been sent again."""
        exchange, client = self._exchange, answer.client
        task, attempt = self._tasks[client]
        try:
            found = exchange.opened(answer)
            if found is None:
                return None
            info = self._infos[client]
            examples = None if info.streams else info.num_examples
            checks = self._checks[task.version]
            update = exchange.sized(update_in(found, exchange.who(client), task, examples, checks), answer)
        except ClientError as error:
            if answer.content is None and attempt <= self._faults.retries:
                self._tasks[client] = task, attempt + 1
                exchange.repeat(client)
                return None
            told = self._skipped(error, answer)
            del self._tasks[client]
            return ClientFailure(client, task.round_idx, told.cause, max(told.attempts, attempt))
        del self._tasks[client]
        return update

    def _skipped(self, error: ClientError, answer: Answer) -> SiteError:
        """Return the error of a site that is left out, or raise it if the policy does not leave sites out."""
        if not self._faults.skips:
            raise ClientError(f"{error}. {_REMEDY}") if answer.content is None else error
        return error if isinstance(error, SiteError) else SiteError("", str(error))

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
        skips = questions or (self._faults.skips and all(order.metric == "evaluation" for order in orders))
        lost = {client: cause for client, cause in self._missing().items() if client in by_client} if skips else {}
        for client in by_client.keys() - lost.keys():
            self._exchange.send(client, [orders[number] for number in by_client[client]])
        reports: dict[int, EvalReport] = {}
        try:
            counts = {k: len(numbers) for k, numbers in by_client.items() if k not in lost}
            for client, values in self._evaluations(counts, skips, lost, questions):
                reports |= dict(zip(by_client[client], values, strict=True))
        except BaseException:
            self._exchange.forget()
            raise
        if questions:
            reports |= {
                number: EvalReport(client, math.nan, reason=cause)
                for client, cause in lost.items()
                for number in by_client[client]
            }
            lost = {}
        for client, cause in sorted(lost.items()):
            who = self._exchange.who(client)
            warnings.warn(f"The evaluation continues without {who[0].lower()}{who[1:]}: {cause}.", stacklevel=2)
        return [reports.get(number) or EvalReport(order.client, math.nan) for number, order in enumerate(orders)]

    def _evaluations(
        self, counts: Mapping[int, int], skips: bool, lost: dict[int, str], questions: bool = False
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
                told = SiteError("", _cause(error)) if questions else self._skipped(error, answer)
                if not skips:
                    raise
                lost[client], refused = told.cause, refused if answer.content is None else told
        if refused is not None and not found_any and not questions:  # more likely a wrong setting than a failure of all sites
            raise refused

    def complete_models(self, like: Mapping[str, Any]) -> list[dict[str, Any] | str]:
        """Return the own complete model of each site by names of tensors, or why there is none.

        Args:
            like: tensors of the same names, shapes and types.
        """
        found: list[dict[str, Any] | str] = [self._missing().get(client, "") for client in range(len(self._infos))]
        for client, cause in enumerate(found):
            if not cause:
                self._exchange.send(client, [OwnModelOrder(self.published.version, client)])
        for answer in self._exchange.answers():
            try:
                opened = self._exchange.opened(answer)
                if opened is not None:
                    who = self._exchange.who(answer.client)
                    found[answer.client] = own_model_in(opened, who, answer.client, like) or NO_OWN
            except ClientError as error:
                found[answer.client] = _cause(error)
        return found

    # ---------------------------------------------------------------- what clients keep

    def own_models(self) -> list[Snapshot | None]:
        """See :meth:`ClientPool.own_models`; sites keep their own models."""
        raise ClientError("The sites' own models stay at the sites. Use a route that does not mix them at the server.")

    def counts(self) -> dict[str, dict[int, int]]:
        """See :meth:`ClientPool.counts`."""
        return self._exchange.take_counts()

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """See :meth:`ClientPool.settle`. The settlement travels with the next order to each site."""
        self._exchange.settle(round_idx, accepted, saved_round, self._tasks)
        self._between_rounds = True
        return {}

    def state_dict(self) -> dict[Any, Any]:
        """Return nothing: what clients keep stays at the sites."""
        return {}

    def close(self) -> None:
        """Tell the sites the end of the last round, and end the connection."""
        completed = self._between_rounds
        try:
            silent = self._exchange.conclude(self._tasks) if completed else []
            if silent:
                warnings.warn(f"These sites did not learn that the last round is complete: {', '.join(silent)}.", stacklevel=2)
        except FederationError as error:  # the fit itself is complete
            warnings.warn(f"The sites did not learn that the last round is complete. {error}", stacklevel=2)
        finally:
            self._exchange.close(completed)


def _cause(error: ClientError) -> str:
    return error.cause if isinstance(error, SiteError) else str(error)
