"""Local training: one inner Trainer turns the global model and a client's data into a ``ClientUpdate``."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.clients.engines.choice import Trial, attempt
from fl_lightning.clients.engines.fabric.engine import FabricEngine
from fl_lightning.clients.engines.options import EngineOptions
from fl_lightning.clients.engines.stacked.engine import StackedEngine
from fl_lightning.clients.engines.stacked.fit import Assignment
from fl_lightning.clients.engines.trainer import TrainerEngine
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.session import ClientSession
from fl_lightning.clients.turn import Turn
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.local_steps import control_change, control_correction
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.seeding import derive_seed, isolated_rng
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.partial_work import PartialWork
from fl_lightning.types import ClientUpdate, Snapshot

_TRIAL_CLIENTS, _TRIAL_STEPS = 3, 10
"""What the engine ``auto`` tries."""


class LocalTrainer:
    """Trains the clients of one rank, one after another, on one resident copy of the module.

    Args:
        module: the clients' copy of the user's module; see :func:`~fl_lightning.clients.client_copy.client_copy`.
        local: the settings of the local training.
        precision: as Lightning's Trainer takes it.
        device: where the clients train.
        seed: of the federation; a client's random numbers depend on (seed, round, client) alone.
        fast_dev_run: let each client train on one batch only.
        logger: whether the module finds a (silent) logger.
        detect_anomaly: as ``local.detect_anomaly``, for whom the outer Trainer sets it.
        memory: what clients keep over rounds.
        drop_single: leave out a last batch of a single example, which BatchNorm cannot train on.
        deadline: seconds that a client's training may take; None for any.
        secret: of the noise and the coins where single examples are private.
        cohort: how many clients a round has at most.
    """

    def __init__(
        self,
        module: LightningModule,
        local: LocalTraining,
        precision: str,
        device: torch.device,
        seed: int,
        fast_dev_run: bool = False,
        logger: bool = False,
        detect_anomaly: bool = False,
        memory: ClientMemory | None = None,
        drop_single: bool = False,
        deadline: float | None = None,
        secret: SecretKey | None = None,
        cohort: int | None = None,
    ) -> None:
        self.module, self.local, self._drop_single = module, local, drop_single
        self.engine: str = local.engine
        if local.channels_last:
            module.to(memory_format=torch.channels_last)
        self.device = device
        self.seed = seed
        self.memory = memory or ClientMemory()
        self._options = EngineOptions(precision, device, fast_dev_run, logger, detect_anomaly, cohort)
        self.private = None if local.privacy is None else PrivateSteps(local.privacy, secret or SecretKey.draw())
        self._session = ClientSession(local.proximal_mu, local.lr_decay, deadline, self.private)
        self._engine: TrainerEngine | FabricEngine | None = None
        self._stacked: StackedEngine | None = None
        self._bytes = (0, 0)
        rebuilt = is_overridden("setup", module) or is_overridden("configure_model", module)
        self._state = None if rebuilt else ModelState(module)

    def train(
        self, turn: Turn, data: FederatedDataModule, server: ModelState, round_idx: int, control: Tensor | None = None
    ) -> ClientUpdate:
        """Train one client from the global model.

        Args:
            turn: who trains, and from what.
            data: holds the client's examples.
            server: the view of the global model, which is not changed.
            round_idx: from 0.
            control: SCAFFOLD's c, shape (p,): the client corrects its steps by it and updates its own c_k.

        Returns:
            The update, with its state.
        """
        client = turn.client
        begun = time.perf_counter()
        if self._bytes == (0, 0):  # the same for every client and round
            self._bytes = server.nbytes(upward=False), server.nbytes(upward=True)
        if self._state is not None:
            self._state.follow(server)
        start = self.memory.recall(client) or turn.start
        correction = None if control is None else self._correction(client, control)
        self._session.begin(server, self._state, round_idx, start, correction, turn.slowness, turn.pull)
        steps, metrics = self._fit(turn, data, round_idx)
        self._session.end()  # before the vectors that follow
        state = self._session.client
        update = ClientUpdate(
            client=client,
            round_idx=round_idx,
            num_examples=data.num_examples(client),
            num_steps=steps - self._session.skipped,
            train_loss=self._session.mean_loss,
            metrics=metrics,
            seconds=time.perf_counter() - begun,
            bytes_down=self._bytes[0],
            bytes_up=self._bytes[1],
            normalizer=self._session.normalizer,
            optimizer=self._session.optimizer,
            state=state.vector(),
            counters=state.counters(),
        )
        return update if control is None else self._with_control(update, control, server, start, self._session.rates)

    def accept(self, update: ClientUpdate, final: bool = True) -> None:
        """Let the client keep what it keeps of an update that was good.

        Args:
            update: with its state.
            final: whether what the client kept before is needed no more.
        """
        self.memory.remember(update.client, update.snapshot)
        if update.control is not None:
            self.memory.change_control(update.client, update.control, in_place=final)

    def rearrange(self) -> None:
        """Adapt to a change in what is trained: count bytes anew, and build new engines."""
        self._bytes = (0, 0)
        self._engine = self._stacked = None

    def recover(self) -> None:
        """After a client's error: let go of what it may have left half done, and of the memory that it took."""
        self._engine = None
        if self._stacked is not None:
            self._stacked.recover()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def stacks(self) -> bool:
        """Whether clients are trained side by side, by :meth:`train_together`."""
        return self.engine == "stacked"

    def trial(self, turns: Sequence[Turn], data: FederatedDataModule, server: ModelState, round_idx: int) -> dict[str, Trial]:
        """Time each engine on some of the clients, whose results are thrown away; nothing without clients."""
        if not turns:
            return {}
        few = turns[: self.local.stack_size]
        fewer = few[:_TRIAL_CLIENTS]
        limit = _TRIAL_STEPS if self.local.max_steps == -1 else min(_TRIAL_STEPS, self.local.max_steps)

        def measure(name: str) -> float:
            """Seconds per step of a client, the second time."""
            other = self.with_settings(engine=name, max_steps=limit, compile=self.local.compile and name == "stacked")
            for _ in range(2):
                begun = time.perf_counter()
                if other.stacks:
                    done = list(other.train_together(few, data, server, round_idx))
                else:
                    done = [other.train(turn, data, server, round_idx) for turn in fewer]
            return (time.perf_counter() - begun) / max(1, sum(update.num_steps for update in done))

        return attempt(measure)

    def train_together(
        self,
        turns: Sequence[Turn],
        data: FederatedDataModule,
        server: ModelState,
        round_idx: int,
        control: Tensor | None = None,
    ) -> Iterator[ClientUpdate]:
        """Train several clients side by side.

        Args:
            turns: who trains, from what.
            data, server, round_idx, control: as for :meth:`train`.

        Returns:
            The updates, each as soon as its stack is done: not in the order of the turns.
        """
        if self._state is None:
            raise ConfigurationError(
                f"{type(self.module).__name__} builds its networks in 'setup' or 'configure_model', which stacked clients "
                "cannot share. Build them in '__init__', or set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        if self._stacked is None:
            self._stacked = StackedEngine(self.module, self.local, self._options)
        if self._bytes == (0, 0):
            self._bytes = server.nbytes(upward=False), server.nbytes(upward=True)
        self._state.follow(server)
        jobs = [self._assignment(turn, data, round_idx, control) for turn in turns]
        for job, trained in self._stacked.fit(jobs, server, self._state, round_idx):
            update = ClientUpdate(
                client=job.client,
                round_idx=round_idx,
                num_examples=data.num_examples(job.client),
                num_steps=trained.num_steps,
                train_loss=trained.train_loss,
                metrics=trained.metrics,
                seconds=trained.seconds,
                bytes_down=self._bytes[0],
                bytes_up=self._bytes[1],
                normalizer=trained.normalizer,
                optimizer=trained.optimizer,
                state=trained.snapshot.vector,
                counters=trained.snapshot.counters,
            )
            yield update if control is None else self._with_control(update, control, server, job.start, trained.rates)

    def _assignment(self, turn: Turn, data: FederatedDataModule, round_idx: int, control: Tensor | None) -> Assignment:
        key = self._key(turn.client, round_idx, turn.period)
        return Assignment(
            turn.client,
            data.client(turn.client, derive_seed(*key, "shuffle"), self.local.full_batch, self._drop_single),
            derive_seed(*key, "training"),
            turn.epochs,
            self.memory.recall(turn.client) or turn.start,
            None if control is None else self._correction(turn.client, control),
        )

    def _key(self, client: int, round_idx: int, period: int) -> tuple[int, ...]:
        """Return the numbers that seed a client's random state."""
        return (self.seed, round_idx, client) if period == 0 else (self.seed, round_idx, client, period)

    def _fit(self, turn: Turn, data: FederatedDataModule, round_idx: int) -> tuple[int, dict[str, float]]:
        if self._engine is None:
            kind = FabricEngine if self.engine in ("fabric", "stacked") else TrainerEngine
            self._engine = kind(self.local, self._options, self._session)
        key = self._key(turn.client, round_idx, turn.period)
        with isolated_rng(derive_seed(*key, "training"), self.device):
            shuffle = derive_seed(*key, "shuffle")
            private, full_batch, poisson = self._session.private, self.local.full_batch, None
            if private is not None:
                poisson = private.begin(data.client_datasets, full_batch, round_idx, turn.client, turn.period)
            examples = data.client(turn.client, shuffle, full_batch, self._drop_single, poisson)
            return self._engine.fit(self.module, examples, turn.epochs)

    def _correction(self, client: int, control: Tensor) -> Tensor:
        return control_correction(control, self.memory.control(client)).to(self.device)

    def _with_control(
        self, update: ClientUpdate, control: Tensor, server: ModelState, start: Snapshot | None, rates: float
    ) -> ClientUpdate:
        """The update with the change of c_k; both travel like the parameters."""
        size = server.num_parameters
        before = [p.detach() for p in server.parameters()] if start is None else [start.vector[:size]]
        assert update.state is not None
        change = control_change(control, before, update.state[:size], rates)
        more = change.numel() * change.element_size()
        return replace(update, control=change, bytes_down=update.bytes_down + more, bytes_up=update.bytes_up + more)

    def load(self, server: ModelState, snapshot: Snapshot | None = None) -> LightningModule:
        """The clients' module with the global model, or another one, in it: to evaluate it."""
        state = self._state or ModelState(self.module)
        state.follow(server)
        state.copy_from(server)
        if snapshot is not None:
            state.load(snapshot)
        return self.module

    def with_settings(self, **changes: Any) -> LocalTrainer:
        """Another that trains the same module on its own: without proximal term, stragglers, privacy and memory.

        Args:
            changes: of :class:`LocalTraining`, such as ``max_epochs``.
        """
        other = copy.copy(self)
        other.local = replace(self.local, proximal_mu=0.0, partial_work=PartialWork(), privacy=None, **changes)
        other.engine, other.private = changes.get("engine", self.engine), None
        other.memory = ClientMemory()
        other._session = ClientSession(0.0, self.local.lr_decay)
        other._engine = None
        other._stacked = None
        return other
