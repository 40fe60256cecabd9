"""Train clients locally: turn jobs and data into updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.clients.client_data import ClientData
from fl_lightning.clients.engines.base import EngineJob, Trained
from fl_lightning.clients.engines.selection import LocalEngine
from fl_lightning.clients.kept_training import NAME, OWN
from fl_lightning.clients.memory import ClientMemory, held_part
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.core.hooks import ClientHooks
from fl_lightning.errors import DataError
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.messages import ClientJob, ModelLayout
from fl_lightning.rules.base import ClientRule, LocalEnd
from fl_lightning.types import ClientUpdate, Pull, Snapshot

Turn = tuple[ClientJob, Snapshot | None]
"""A client's job, and the model that it starts from (None for the global one)."""


@dataclass(frozen=True)
class Remains:
    """Hold what a client keeps of a training, beside what its rules derive from the update.

    Attributes:
        own: the parameters and buffers that it holds, by name.
        model: the model that it keeps, if it is another one than it sends.
        tensors: the state of its training and of its rules, by name.
    """

    own: Mapping[str, Tensor]
    model: Snapshot | None
    tensors: Mapping[str, Tensor]


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

    @property
    def kept_like_parameters(self) -> tuple[str, ...]:
        """Return the names of stored tensors that have the length of the trained parameters."""
        return tuple(name for rule in self._rules for name in rule.kept_like_parameters)

    def train(self, turns: Sequence[Turn]) -> Iterator[tuple[ClientUpdate, Remains]]:
        """Train clients, and yield each update with its model, and what the client keeps, as soon as both are known.

        The order may differ from that of the turns if the engine trains clients side by side.
        """
        for trained in self.engine.fit([self._prepared(job, start) for job, start in turns]):
            yield self._update(self._with_own_model(trained))

    def _with_own_model(self, trained: Trained) -> Trained:
        """Train the client's own model after its turn, if a rule asks for one, and return the result of the turn with it."""
        rule = next((rule for rule in self._rules if rule.own_model), None)
        if rule is None or trained.kept_model is not None:
            return trained
        job, given = trained.job.job, trained.job.start
        server, state = self._resident.server, self._resident.view()
        received = state.names()[0]
        anchor = (
            torch.cat([server.tensors[name].detach().reshape(-1) for name in received])
            if given is None
            else given.vector[: state.num_parameters]
        )
        pulled = replace(job, pull=Pull(anchor, rule.pull_strength), own_model=True)
        prepared = self._prepared(pulled, given, "own ")
        (own,) = self.engine.fit([replace(prepared, kept={NAME: prepared.kept[OWN]} if OWN in prepared.kept else {})])
        return replace(trained, kept_model=own.model, own_kept=own.kept, seconds=trained.seconds + own.seconds)

    def _prepared(self, job: ClientJob, start: Snapshot | None, purpose: str = "") -> EngineJob:
        own = self._memory.last_model(job.client) if job.own_model else None
        key = (self._seed, job.round_idx, job.client, *([job.period] if job.period else []))

        def open_data() -> LightningDataModule:
            drawn = (hook.batches(job, self._data, self._full_batch) for hook in self._hooks)
            batches = next((found for found in drawn if found is not None), None)
            shuffle = derive_seed(*key, purpose + "shuffle")
            return self._data.client(job.client, shuffle, self._full_batch, self._drop_single, batches)

        kept = self._memory.kept(job.client)
        return EngineJob(job, derive_seed(*key, purpose + "training"), open_data, own or start, kept, held_part(kept))

    def _update(self, trained: Trained) -> tuple[ClientUpdate, Remains]:
        job = trained.job.job
        down, up = self._message_sizes()
        moved = trained.model.moved
        up += sum(tensor.numel() * tensor.element_size() for tensor in moved.values())
        extras, remembered = self._extras(trained)
        sent_along = self._resident.server.broadcast.values() if extras else ()
        width = trained.model.vector.element_size()
        update = ClientUpdate(
            client=job.client,
            round_idx=job.round_idx,
            num_examples=_counted(
                trained, self._data.num_examples(job.client), getattr(self._data, "client_name", str)(job.client)
            ),
            num_steps=trained.num_steps,
            train_loss=trained.train_loss,
            metrics=trained.metrics,
            seconds=trained.seconds,
            bytes_down=down + width * sum(tensor.numel() for tensor in sent_along),
            bytes_up=up + sum(tensor.numel() * tensor.element_size() for tensor in extras.values()),
            normalizer=trained.normalizer,
            optimizer=trained.optimizer,
            model=trained.model,
            extras=extras,
        )
        packed = {NAME: trained.kept, OWN: trained.own_kept}
        tensors = remembered | {name: tensor for name, tensor in packed.items() if tensor is not None}
        return update, Remains(trained.own, trained.kept_model, tensors)

    def _extras(self, trained: Trained) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors that the client's rules send with the model, and those that they store."""
        if not self._rules:
            return {}, {}
        server, state = self._resident.server, self._resident.view()
        size, given = state.num_parameters, trained.job.start
        start = [given.vector[:size]] if given is not None else [server.tensors[name] for name in state.names()[0]]
        vector = trained.model.vector
        end = LocalEnd(start, vector[:size], vector[size:], trained.rates, server.broadcast, trained.job.kept)
        sent = {name: tensor for rule in self._rules for name, tensor in rule.finish(end).items()}
        return sent, {name: tensor for rule in self._rules for name, tensor in rule.remember(end).items()}

    def _message_sizes(self) -> tuple[int, int]:
        """Return the bytes of a model sent down and up, which are the same for every client and round."""
        if self._counted is not self._resident.server.layout:
            state = self._resident.view()
            self._bytes = state.nbytes(upward=False), state.nbytes(upward=True)
            self._counted = self._resident.server.layout
        return self._bytes

    def keep(self, update: ClientUpdate, remains: Remains, job: ClientJob) -> None:
        """Store the client's state after its training; the memory takes it back if the server does not use the update.

        Args:
            update: the client's update, with its model.
            remains: what the client keeps of its training.
            job: the client's turn.
        """
        memory, client = self._memory, update.client
        memory.keep_held(client, remains.own)
        if remains.model is not None:
            memory.keep_model(client, remains.model)
        if remains.tensors:
            memory.put(client, **remains.tensors)
        if job.own_model:
            memory.keep_model(client, update.snapshot)
        for rule in self._rules:
            rule.keep(memory.drawer(client, ""), update.extras, in_place=not memory.undoable)

    def forget(self) -> None:
        """Discard the state of all clients."""
        self._memory.forget()


def _counted(trained: Trained, planned: int, name: str) -> int:
    """Return the number of the client's examples, which is that of its first epoch if its data have no length.

    Raises:
        DataError: if a stream has no examples.
    """
    if trained.num_examples == 0:
        raise DataError(
            f"The stream of client {name} has no examples. Let it yield some in every epoch, also when it is read again."
        )
    if trained.num_examples is None:
        return planned
    if planned > trained.num_examples:
        rank_zero_warn(
            f"The stream of client {name} has a length of {planned}, but yielded {trained.num_examples} "
            "examples in an epoch, so it counts with these. Let '__len__' return their number."
        )
    return trained.num_examples
