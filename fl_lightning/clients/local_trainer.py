"""Train clients locally: turn tasks and data into updates, and into what the clients keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.clients.client_data import ClientData
from fl_lightning.clients.engines.base import LocalResult, PreparedTask
from fl_lightning.clients.engines.selection import LocalEngine
from fl_lightning.clients.memory import HELD, MODEL, RULES, TRAINING, ClientMemory
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.training.kept_training import NAME, OWN
from fl_lightning.core.option import ClientHooks
from fl_lightning.errors import DataError
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.messages import ClientTask, ModelLayout
from fl_lightning.rules.base import ClientRule, LocalEnd
from fl_lightning.types import Pull


class LocalTrainer:
    """Train the clients of this process, on one resident copy of the module.

    Args:
        resident: the module that clients train.
        engine: the engine that trains them.
        data: the clients' examples.
        memory: the state that clients keep between rounds.
        rules: the rules that change their training, the same as the engine's.
        seed: the seed of the federation; a client's random numbers depend only on (seed, round, client).
        full_batch: whether a client trains on all its examples in one batch.
        drop_single: whether to drop a last batch of a single example, on which BatchNorm cannot train.
        hooks: the clients' hooks of the options in use, in order.
    """

    def __init__(
        self,
        *,
        resident: ResidentModel,
        engine: LocalEngine,
        data: ClientData,
        memory: ClientMemory,
        rules: Sequence[ClientRule] = (),
        seed: int = 0,
        full_batch: bool = False,
        drop_single: bool = False,
        hooks: Sequence[ClientHooks] = (),
    ) -> None:
        self._resident, self.engine, self._data, self._memory = resident, engine, data, memory
        self._rules, self._seed, self._hooks = rules, seed, hooks
        self._full_batch, self._drop_single = full_batch, drop_single
        self._bytes = (0, 0)
        self._counted: ModelLayout | None = None

    @property
    def memory(self) -> ClientMemory:
        """Return the state that clients keep between rounds."""
        return self._memory

    def train(self, tasks: Sequence[ClientTask]) -> Iterator[LocalResult]:
        """Train clients, and yield each result as soon as it is known.

        The order may differ from that of the tasks if the engine trains clients side by side.
        """
        results = self.engine.fit([self._prepared(task) for task in tasks])
        yield from map(self._complete, map(self._with_own_model, results))  # 'map' keeps no result

    def _prepared(self, task: ClientTask, purpose: str = "") -> PreparedTask:
        client, kept = task.client, self._memory.kept(task.client)
        key = (self._seed, task.round_idx, client, *([task.period] if task.period else []))

        def open_data() -> LightningDataModule:
            drawn = (hook.batches(task, self._data, self._full_batch) for hook in self._hooks)
            batches = next((found for found in drawn if found is not None), None)
            shuffle = derive_seed(*key, purpose + "shuffle")
            return self._data.client(client, shuffle, self._full_batch, self._drop_single, batches)

        own = self._memory.last_model(client) if task.own_model else None
        return PreparedTask(
            task if own is None else replace(task, start=own),
            derive_seed(*key, purpose + "training"),
            open_data,
            self._data.num_examples(client),
            kept.get(MODEL, {}) | kept.get(RULES, {}),
            kept.get(HELD, {}),
            kept.get(TRAINING, {}).get(OWN if purpose else NAME),
        )

    def _with_own_model(self, result: LocalResult) -> LocalResult:
        """Train the client's own model after its task, if a rule asks for one, and return the result with it."""
        rule = next((rule for rule in self._rules if rule.own_model), None)
        if rule is None or result.own_model is not None:
            return result
        task = result.prepared.task
        server, state = self._resident.server, self._resident.view()
        received = state.names()[0]
        anchor = (
            torch.cat([server.tensors[name].detach().reshape(-1) for name in received])
            if task.start is None
            else task.start.vector[: state.num_parameters]
        )
        pulled = replace(task, pull=Pull(anchor, rule.pull_strength), own_model=True)
        prepared = self._prepared(pulled, "own ")
        (own,) = self.engine.fit([replace(prepared, kept={})])
        return replace(
            result,
            update=replace(result.update, seconds=result.update.seconds + own.update.seconds),
            own_training=own.training,
            own_model=own.update.snapshot,
        )

    def _complete(self, result: LocalResult) -> LocalResult:
        """Return a result with the tensors that the client's rules send and store, and with the sizes of its messages."""
        model = result.update.snapshot
        down, up = self._message_sizes()
        extras, remembered = self._extras(result)
        sent_along = self._resident.server.broadcast.values() if extras else ()
        update = replace(
            result.update,
            num_examples=_counted(result, getattr(self._data, "client_name", str)(result.update.client)),
            bytes_down=down + model.vector.element_size() * sum(tensor.numel() for tensor in sent_along),
            bytes_up=up + sum(tensor.nbytes for tensor in (*model.moved.values(), *extras.values())),
            extras=extras,
        )
        return replace(result, update=update, kept=remembered)

    def _extras(self, result: LocalResult) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors that the client's rules send with the model, and those that they store."""
        default = (ClientRule.finish, ClientRule.remember)
        rules = [rule for rule in self._rules if (type(rule).finish, type(rule).remember) != default]
        if not rules:
            return {}, {}
        server, state = self._resident.server, self._resident.view()
        size, given = state.num_parameters, result.prepared.task.start
        start = [given.vector[:size]] if given is not None else [server.tensors[name] for name in state.names()[0]]
        vector = result.update.snapshot.vector
        end = LocalEnd(start, vector[:size], vector[size:], result.rates, server.broadcast, result.prepared.kept)
        sent = {name: tensor for rule in rules for name, tensor in rule.finish(end).items()}
        return sent, {name: tensor for rule in rules for name, tensor in rule.remember(end).items()}

    def _message_sizes(self) -> tuple[int, int]:
        """Return the bytes of a model sent down and up, which are the same for every client and round."""
        if self._counted is not self._resident.server.layout:
            state = self._resident.view()
            self._bytes = state.nbytes(upward=False), state.nbytes(upward=True)
            self._counted = self._resident.server.layout
        return self._bytes

    def keep(self, result: LocalResult) -> None:
        """Store what a client keeps of its training, whose update can be aggregated."""
        memory, update = self._memory, result.update
        training = {NAME: result.training, OWN: result.own_training}
        memory.put(update.client, HELD, result.held)
        memory.put(update.client, TRAINING, {name: packed for name, packed in training.items() if packed is not None})
        memory.put(update.client, RULES, result.kept)
        if result.own_model is not None:
            memory.keep_model(update.client, result.own_model)
        if result.prepared.task.own_model:
            memory.keep_model(update.client, update.snapshot)
        for rule in self._rules:
            rule.keep(memory.drawer(update.client, RULES), update.extras, in_place=not memory.undoable)

    def forget(self) -> None:
        """Discard the state of all clients."""
        self._memory.forget()


def _counted(result: LocalResult, name: str) -> int:
    """Return the number of the client's examples, which is that of its first epoch if its data have no length.

    Raises:
        DataError: if a stream has no examples.
    """
    found, planned = result.streamed, result.prepared.num_examples
    if found is None:
        return planned
    if found == 0:
        raise DataError(
            f"The stream of client {name} has no examples. Let it yield some in every epoch, also when it is read again."
        )
    if planned > found:
        rank_zero_warn(
            f"The stream of client {name} has a length of {planned}, but yielded {found} "
            "examples in an epoch, so it counts with these. Let '__len__' return their number."
        )
    return found
