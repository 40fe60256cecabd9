"""Train clients, judge their updates, keep what they keep, and send: all clients of a process, or the one of a site.

Nothing here needs the server: no strategy beyond its client half, no outer Trainer, and no other client's data.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.answering import NO_OWN, SETTING, Questions, StoredPredictions, numbers_to_add, refuse_questions
from fl_lightning.clients.evaluate import STRATEGY_METRIC, ModelEvaluation
from fl_lightning.clients.judging import UpdateEditor, describe, is_clients_fault
from fl_lightning.clients.memory import HELD, MODEL, MOVED, RULES, TRAINING, ClientMemory
from fl_lightning.clients.progress import NAME, OWN
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import LocalResult, PreparedTask
from fl_lightning.clients.trainer import TrainerEngine
from fl_lightning.core.capabilities import Capability, need_of
from fl_lightning.core.option import ClientContext, ClientData, ClientHooks, by_name
from fl_lightning.errors import ClientError, DataError, add_note
from fl_lightning.functional.blocks import blocks
from fl_lightning.functional.compression import compress
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.seeding import derive_seed, generator
from fl_lightning.messages import ClientTask, EvalOrder, EvalReport, MetricRole, ModelLayout, Note, Part
from fl_lightning.rules import ClientRule, ProximalRule, PullRule
from fl_lightning.rules.base import LocalEnd
from fl_lightning.settings.local_training import FederationSettings, Place
from fl_lightning.transforms.base import Message, Sender, require_message
from fl_lightning.types import ClientFailure, ClientUpdate, Pull, Snapshot
from fl_lightning.utilities.collectives import Collectives

if TYPE_CHECKING:
    from fl_lightning.clients.stacked.engine import StackedEngine

_OF_THE_END = ("finish", "remember", "keep")
"""The methods of rules that need a client's trained model, or what it keeps."""


class Client:
    """Carry out the orders of a server for the clients of this process.

    Args:
        module: the clients' copy of the user's module, which all clients of this process share.
        data: the examples of the clients in this process.
        settings: the settings of the federation.
        num_clients: the number of clients in the federation.
        place: where and how they train, without rules, hooks and deadline, which follow from the settings.
        memory: the state that clients keep between rounds.
        secret: the key of random numbers that must hide something.
        drop_single: whether to drop a last batch of a single example, on which BatchNorm cannot train.
        undoable: whether a round may be undone, so that no stored tensor may be changed in place.
        starts: called with each turn that begins.
        tell: returns the description of a client's error that the server receives.
    """

    def __init__(
        self,
        *,
        module: LightningModule,
        data: ClientData,
        settings: FederationSettings,
        num_clients: int,
        place: Place,
        memory: ClientMemory,
        secret: SecretKey,
        drop_single: bool = False,
        undoable: bool = False,
        starts: Callable[[ClientTask], None] = lambda _: None,
        tell: Callable[[Exception], str] = describe,
    ) -> None:
        self.resident, self.memory = ResidentModel(module, settings.local.channels_last), memory
        self._data, self._settings, self._num_clients, self._secret = data, settings, num_clients, secret
        self._drop_single, self._starts, self._tell = drop_single, starts, tell
        self._name_of: Callable[[int], str] = getattr(data, "client_name", str)  # a site does not know its name
        self._options: Mapping[str, ClientHooks] = {
            name: option.at_clients(self._context(name, place)) for name, option in by_name(settings.active_options).items()
        }
        self.hooks = (*self._options.values(),)
        mu, own = settings.local.proximal_mu, settings.strategy.client_rule()
        self._rules = (*([ProximalRule(mu)] if mu else ()), PullRule(), *(() if own is None else (own,)))
        self._ending = [r for r in self._rules if any(getattr(type(r), n) is not getattr(ClientRule, n) for n in _OF_THE_END)]
        self._place = replace(place, rules=self._rules, hooks=self.hooks, deadline=settings.faults.deadline)
        self.engine = engine_of(self.resident, self._place)
        if self.engine.reason:
            rank_zero_info(f"Local training uses the engine '{self.engine.name}': {self.engine.reason}")
        self._alone: dict[int | None, Client] = {}
        self._metrics, self._evaluation = _metrics(settings), ModelEvaluation(place)
        self._fixed = need_of([*settings.transforms, *settings.active_options], Capability.FIXED_TENSORS)
        self._editor: UpdateEditor | None = None
        self._sent: Counter[int] = Counter()  # the transformed messages of each client
        self._sizes_of: ModelLayout | None = None
        self._sizes = 0, 0  # the bytes of a model sent down and up, the same for all clients
        memory.undoable = undoable or settings.faults.skips
        memory.like_parameters = {
            MODEL: ["vector"],
            RULES: [name for rule in self._rules for name in rule.kept_like_parameters],
            **{f"transform {k}": transform.kept_like_parameters for k, transform in enumerate(settings.transforms)},
        }
        self.questions = Questions(refuse_questions)
        """Answers questions about models, which only those may ask who set it."""

    def _context(self, option: str, place: Place) -> ClientContext:
        return ClientContext(
            num_clients=self._num_clients,
            seed=self._settings.seed,
            device=place.device,
            kept=lambda client: self.memory.drawer(client, f"option {option}"),
            secret=self._secret,
            strategy=self._settings.strategy,
            place=place.site,
            numbers=lambda client, what: numbers_to_add(what, client, self.resident.module, self._data, place.site),
        )

    # ---------------------------------------------------------------- orders

    def train(self, tasks: deque[ClientTask]) -> Iterator[ClientUpdate | ClientFailure]:
        """Take tasks from a queue, and yield the result of each as soon as it is known; meanwhile others may be put there.

        After an error of clients that train side by side, each of those without a result trains alone, so that only the faulty
        one fails.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """
        self._begun()
        while tasks:
            started: dict[int, float | None] = {}
            if not (self.engine.side_by_side and len(tasks) > 1):
                yield self._trained_alone(tasks.popleft(), started)
                continue
            waiting = {task.client: task for task in tasks}
            tasks.clear()
            for _ in range(self._settings.faults.retries + 1):  # together first, which gives the same bits
                if waiting:
                    yield from self._trained_together(waiting, started)
            for task in waiting.values():
                yield self._trained_alone(task, started)

    def answer(self, note: Note) -> Note:
        """Return the answer of an option's hooks to those at the server.

        Raises:
            ClientError: if no such option is in use, or it does not answer.
        """
        if note.option not in self._options:
            raise ClientError("The server asks for an option that is not in use here.")
        return replace(note, content=self._options[note.option].answer(note.client, note.content))

    def deliver(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate | ClientFailure | None:
        """Return an update as the server receives it; None if it waits for the updates of other clients.

        Raises:
            ClientError: if it cannot be aggregated and the policy is ``fatal``.
        """
        try:
            for hook in self.hooks:
                changed = hook.send(update)
                if changed is None:
                    return None
                update = changed
            if self._settings.transforms:
                update = self._transformed(update)
            if "sent" in self._metrics:
                with self._in_evaluation(update.client, "validation"):
                    score = self._score(update.snapshot, "sent", update.client, "validation")
                update = replace(update, local_score=score)
            for hook in self.hooks:
                update = hook.seal(task, update)
            return update
        except ClientError as error:
            return self._failed(task, error, 1)

    def drained(self, comm: Collectives, waiting: int) -> None:
        """Tell the hooks that all updates that do not wait are delivered, if some may wait, on any rank."""
        self._begun()  # this rank may have had no client
        if any(hook.waits for hook in self.hooks):
            for hook in self.hooks:
                hook.drained(comm, waiting)

    def evaluate(self, order: EvalOrder) -> EvalReport:
        """Evaluate a model on a client's examples, after any tasks that the client should first train alone."""
        client, question = order.client, order.question
        model, own = self.memory.last_model(client) if order.own else order.model, None
        if question is None and order.tasks:
            model, own = self._fine_tuned(order, model)
        if question is not None and order.own and model is None and not self.resident.server.first:
            return EvalReport(client, math.nan, reason=NO_OWN)
        with self._in_evaluation(client, order.part):
            if question is None:
                return EvalReport(client, self._score(model, order.metric, client, order.part, own))
            stored = StoredPredictions()
            module = self.resident.load(model, self.memory.held(client))
            self._evaluation.score(stored, SETTING, module, self._data.client_evaluation_view(client, order.part))
            persons = self._data.evaluated_persons(client, order.part)
            return self.questions.answer(question, client, *stored.take(), persons, module)

    def own_model(self, client: int) -> dict[str, Tensor]:
        """Return the tensors of the complete model that a client has for itself by name; empty if it has none yet."""
        kept = self.memory.last_model(client)
        if kept is None and not self.resident.server.first:
            return {}
        self.resident.load(kept, self.memory.held(client))
        view = self.resident.view()
        return {k: t.detach().cpu().clone() for k, t in {**view.tensors(), **view.held_tensors()}.items()}

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the hooks have counted since the last call, and the number of each client's transformed messages."""
        found = {"sent": dict(self._sent)}
        self._sent.clear()
        for hook in self.hooks:
            found |= hook.counts()
        return found

    def close(self) -> None:
        """Release the engines and the last client's data. What clients keep can still be read."""
        for one in (self, *self._alone.values()):
            one.engine.close()
        self.resident.module.trainer = None

    # ---------------------------------------------------------------- training

    def _begun(self) -> UpdateEditor:
        """Return what judges the updates of the published model, for which the hooks are prepared once."""
        server = self.resident.server
        if self._editor is None or self._editor.model is not server:
            self._editor = UpdateEditor(self.resident.view(), server, self._name_of, self._fixed)
            for hook in self.hooks:
                hook.begin(server.round_idx, self._editor)
        return self._editor

    def _trained_together(
        self, waiting: dict[int, ClientTask], started: dict[int, float | None]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Train clients side by side until an error stops all of them; those that have no result by then keep waiting.

        Args:
            waiting: the tasks, by client.
            started: the score of the global model of each client that has begun, if the strategy needs it.
        """
        training = self._trained([*waiting.values()], started)
        while True:
            try:
                found = [*islice(training, 1)]
            except Exception as error:
                self._recover()
                if not is_clients_fault(error):
                    raise
                return
            if not found:
                return
            task = waiting.pop(found[0].update.client)
            yield self._judged(task, found.pop(), started)

    def _judged(
        self, task: ClientTask, result: LocalResult, started: Mapping[int, float | None]
    ) -> ClientUpdate | ClientFailure:
        try:
            return self._accepted(result, started)
        except Exception as error:
            return self._failed(task, error, 1)

    def _trained_alone(self, task: ClientTask, started: dict[int, float | None]) -> ClientUpdate | ClientFailure:
        """Train one client, with as many attempts as the policy allows."""
        attempt = 0
        while True:
            attempt += 1
            try:
                (result,) = self._trained([task], started)
                return self._accepted(result, started)
            except Exception as error:
                self._recover()
                if attempt > self._settings.faults.retries or not is_clients_fault(error):
                    return self._failed(task, error, attempt)

    def _trained(self, tasks: Sequence[ClientTask], started: dict[int, float | None]) -> Iterator[LocalResult]:
        """Train clients, and yield each result as soon as it is known, in any order if they train side by side."""
        for task in tasks:
            if task.client not in started:
                self._starts(task)
                scored = "start" in self._metrics
                started[task.client] = self._score(None, "start", task.client, "training") if scored else None
        yield from map(self._completed, self.engine.fit([self._prepared(task) for task in tasks]))  # 'map' keeps no result

    def _prepared(self, task: ClientTask, purpose: str = "") -> PreparedTask:
        client, kept = task.client, self.memory.kept(task.client)
        key = (self._settings.seed, task.round_idx, client, *([task.period] if task.period else []))

        def open_data() -> LightningDataModule:
            full = self._settings.local.full_batch
            drawn = (hook.batches(task, self._data, full) for hook in self.hooks)
            batches = next((found for found in drawn if found is not None), None)
            return self._data.client(client, derive_seed(*key, purpose + "shuffle"), full, self._drop_single, batches)

        own = self.memory.last_model(client) if task.own_model else None
        return PreparedTask(
            task if own is None else replace(task, start=own),
            derive_seed(*key, purpose + "training"),
            open_data,
            self._data.num_examples(client),
            {} if purpose else kept.get(MODEL, {}) | kept.get(RULES, {}),
            kept.get(HELD, {}),
            kept.get(TRAINING, {}).get(OWN if purpose else NAME),
        )

    def _completed(self, result: LocalResult) -> LocalResult:
        """Return a result with the client's own model and the tensors of its rules, if any, and the sizes of its messages."""
        own = next((rule for rule in self._rules if rule.own_model), None)
        if own is not None and result.own_model is None:
            result = self._with_own_model(result, own.pull_strength)
        server, model = self.resident.server, result.update.snapshot
        if self._sizes_of is not server.layout:
            state = self.resident.view()
            self._sizes, self._sizes_of = (state.nbytes(upward=False), state.nbytes(upward=True)), server.layout
        extras, kept = self._of_the_end(result) if self._ending else ({}, {})
        along = self.resident.server.broadcast.values() if extras else ()
        update = replace(
            result.update,
            num_examples=result.prepared.num_examples if result.streamed is None else self._counted(result),
            bytes_down=self._sizes[0] + model.vector.element_size() * sum(tensor.numel() for tensor in along),
            bytes_up=self._sizes[1] + sum(tensor.nbytes for tensor in (*model.moved.values(), *extras.values())),
            extras=extras,
        )
        return replace(result, update=update, kept=kept)

    def _with_own_model(self, result: LocalResult, strength: float) -> LocalResult:
        """Train the client's own model after its task, pulled towards the model that it received."""
        task, size = result.prepared.task, self.resident.view().num_parameters
        anchor = self._begun().state[:size] if task.start is None else task.start.vector[:size]
        pulled = replace(task, pull=Pull(anchor, strength), own_model=True)
        (own,) = self.engine.fit([self._prepared(pulled, "own ")])
        seconds = result.update.seconds + own.update.seconds
        return replace(
            result, update=replace(result.update, seconds=seconds), own_training=own.training, own_model=own.update.snapshot
        )

    def _of_the_end(self, result: LocalResult) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors that the client's rules send with the model, and those that they store."""
        server, state = self.resident.server, self.resident.view()
        size, given = state.num_parameters, result.prepared.task.start
        start = [given.vector[:size]] if given is not None else [server.tensors[name] for name in state.names()[0]]
        vector = result.update.snapshot.vector
        end = LocalEnd(start, vector[:size], vector[size:], result.rates, server.broadcast, result.prepared.kept)
        sent = {name: tensor for rule in self._ending for name, tensor in rule.finish(end).items()}
        return sent, {name: tensor for rule in self._ending for name, tensor in rule.remember(end).items()}

    def _counted(self, result: LocalResult) -> int:
        """Return the number of examples in the first epoch of a stream, whose length is unknown or may be wrong.

        Raises:
            DataError: if it has none.
        """
        found, planned, name = result.streamed or 0, result.prepared.num_examples, self._name_of(result.update.client)
        if not found:
            raise DataError(
                f"The stream of client {name} has no examples. Let it yield some in every epoch, also when it is read again."
            )
        if planned > found:
            rank_zero_warn(
                f"The stream of client {name} has a length of {planned}, but yielded {found} "
                "examples in an epoch, so it counts with these. Let '__len__' return their number."
            )
        return found

    def _accepted(self, result: LocalResult, started: Mapping[int, float | None]) -> ClientUpdate:
        """Return an update that can be aggregated, and store what its client keeps.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        update = self._begun().check(result.update)
        self._keep(result, update)
        return replace(update, global_score=started[update.client])

    def _keep(self, result: LocalResult, update: ClientUpdate) -> None:
        memory, client = self.memory, update.client
        packed = {NAME: result.training, OWN: result.own_training}
        training = {name: state for name, state in packed.items() if state is not None}
        kept: dict[str, Mapping[str, Tensor]] = {HELD: result.held, TRAINING: training, RULES: result.kept}
        own = update.snapshot if result.prepared.task.own_model else result.own_model
        if own is not None:
            # Of the frozen tensors that any client has changed, this one has the global model's unless it changed them.
            moving = {name: self.resident.server.tensors[name] for name in self.resident.server.layout.moving}
            kept |= {MODEL: {"vector": own.vector, "counters": own.counters}, MOVED: moving | dict(own.moved)}
        for owner, tensors in kept.items():
            if tensors:
                memory.put(client, owner, tensors)
        for rule in self._ending:
            rule.keep(memory.drawer(client, RULES), update.extras, in_place=not memory.undoable)

    def _failed(self, task: ClientTask, error: Exception, attempts: int) -> ClientFailure:
        """Return a client's failure if the policy allows the round to continue; otherwise raise the error."""
        if not (self._settings.faults.skips and is_clients_fault(error)):
            add_note(error, f"In round {task.round_idx}, client {self._name_of(task.client)}.")
            raise error
        self.memory.undo(task.client)
        return ClientFailure(task.client, task.round_idx, self._tell(error), attempts)

    def _recover(self) -> None:
        """Discard unfinished work after a client's error, and free its memory."""
        self.engine.recover()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # ---------------------------------------------------------------- sending and scoring

    def _transformed(self, update: ClientUpdate) -> ClientUpdate:
        """Return an update after the transforms.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        editor, client, round_idx = self._begun(), update.client, self.resident.server.round_idx
        width = update.snapshot.vector.element_size()
        message = Message(editor.change(update), 8 * width)
        attempt = self._sent[client]
        self._sent[client] += 1
        for number, transform in enumerate(self._settings.transforms):
            owner = f"transform {number}"
            draw = generator(self._settings.seed, round_idx, client, "transform", number)
            secret = self._secret.stream(owner, round_idx, client, attempt=attempt)
            kept = self.memory.drawer(client, owner)
            message = transform.apply(message, Sender(client, round_idx, draw, kept, secret))
            require_message(transform, message, editor.size)
            kind = message.dtype
            if kind is not None and not all(torch.equal(part.to(kind).to(part), part) for part in blocks(message.change)):
                message = replace(message, dtype=None, bits=8 * width)  # this transform has changed numbers of the type
        bytes_up = update.bytes_up - editor.size * width + message.nbytes
        changed = editor.replaced(replace(update, bytes_up=bytes_up), message.change)
        if not self._place.compresses:
            return changed
        form = compress(changed.snapshot, editor.start, message.positions, message.levels, message.numbers())
        return replace(changed, compressed=form)

    def _score(self, model: Snapshot | None, role: MetricRole, client: int, part: Part, own: Any = None) -> float:
        """Return the score of a model on a part of a client's examples, with the tensors that the client holds.

        Args:
            model: the model; None for the global one.
            role: the role of the metric.
            client: the client.
            part: the part of its examples.
            own: other held tensors than those that the client has stored.

        Raises:
            ConfigurationError: if the module does not log the metric in validation.
        """
        module = self.resident.load(model, self.memory.held(client) if own is None else own)
        return self._evaluation.score(*self._metrics[role], module, self._data.client_evaluation_view(client, part))

    @contextmanager
    def _in_evaluation(self, client: int, part: Part) -> Iterator[None]:
        """Name the client in the errors of an evaluation."""
        try:
            yield
        except Exception as error:
            add_note(error, f"In the evaluation on the {part} examples of client {self._name_of(client)}.")
            raise

    def _fine_tuned(self, order: EvalOrder, model: Snapshot | None) -> tuple[Snapshot | None, dict[str, Tensor]]:
        """Train outside of the federation, where nothing is kept or sent; return the last model and what the client holds."""
        client, epochs = order.client, order.epochs
        if epochs not in self._alone:
            place = replace(self._place, local=self._place.local.alone(epochs), rules=(), hooks=(), deadline=None)
            self._alone[epochs] = alone = copy(self)
            alone.engine, alone._rules, alone._ending, alone.hooks = engine_of(self.resident, place), (), [], ()
        alone = self._alone[epochs]
        alone.memory = ClientMemory()
        if order.model is None:  # fine-tuning continues from what the client holds
            alone.memory.put(client, HELD, self.memory.held(client))
        for task in order.tasks:
            (result,) = alone._trained([replace(task, start=model)], {client: None})
            alone._keep(result, result.update)
            model = result.update.snapshot
        return model, alone.memory.held(client)


def engine_of(resident: ResidentModel, place: Place) -> TrainerEngine | StackedEngine:
    """Return the engine in the settings, which is imported only if it is in use.

    Args:
        resident: the module that clients train.
        place: where and how they train.
    """
    if place.local.side_by_side:
        from fl_lightning.clients.stacked.engine import StackedEngine

        return StackedEngine(resident, place)
    if place.local.engine == "trainer":
        return TrainerEngine(resident, place)
    from fl_lightning.clients.fabric.engine import FabricEngine

    return FabricEngine(resident, place)


def _metrics(settings: FederationSettings) -> dict[MetricRole, tuple[str | Metric, str]]:
    """Return the metric of each role that is computed on clients' examples, and the setting that names it."""
    strategy = settings.strategy
    found: dict[str, tuple[Any, str]] = {
        "start": (strategy.global_metric, STRATEGY_METRIC),
        "sent": (strategy.local_metric, STRATEGY_METRIC),
        "route": (settings.route.client_metric, "federation.route.metric"),
    }
    for option in settings.active_options:
        found |= {one.role: (one.metric, f"federation.{option.setting}.metric") for one in option.measures()}
    return {role: pair for role, pair in found.items() if pair[0] is not None}
