"""Train clients one after another: the common base of the engines ``trainer`` and ``fabric``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from lightning.pytorch import LightningDataModule

from fl_lightning.clients.engines.base import LocalResult, PreparedTask
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.training.session import ClientSession
from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.clients.training.turn_progress import TurnProgress
from fl_lightning.compat.torch import without_process_group
from fl_lightning.functional.seeding import isolated_rng


class SequentialEngine(ABC):
    """Train clients one after another; see :class:`~fl_lightning.clients.engines.base.Engine`.

    Args:
        resident: the module that clients train.
        place: where and how the clients train.
    """

    side_by_side: ClassVar[bool] = False
    checks_between_steps: ClassVar[bool] = True
    pulls: ClassVar[bool] = True
    equals_trainer: ClassVar[bool] = True

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        self.resident, self.place = resident, place
        progress = TurnProgress(
            lr_decay=place.local.lr_decay,
            keeps_optimizer=place.local.optimizer_state == "kept",
            place=self._place,
            limit=self._limit,
        )
        self.session = ClientSession(resident, rules=place.rules, progress=progress, deadline=place.deadline, hooks=place.hooks)

    def fit(self, tasks: Sequence[PreparedTask]) -> Iterator[LocalResult]:
        """Train clients in the order of the tasks; see :meth:`Engine.fit`."""
        for task in tasks:
            yield self._train(task)

    def _train(self, prepared: PreparedTask) -> LocalResult:
        begun = time.perf_counter()
        plan = TurnPlan.of(prepared.task, self.place.local, self.place.fast_dev_run)
        self.session.begin(prepared, plan)
        # A module's own collectives would mix clients that train at the same time, or wait for ever.
        with isolated_rng(prepared.seed, self.place.device), without_process_group():
            try:
                steps, metrics = self._fit(prepared.open_data(), plan)
            finally:
                self.session.stop_listening()
        return self.session.end(steps, metrics, begun)

    @abstractmethod
    def _fit(self, data: LightningDataModule, plan: TurnPlan) -> tuple[int, dict[str, float]]:
        """Train one client, with :attr:`session` among the callbacks.

        Args:
            data: the client's examples.
            plan: the epochs and steps of its turn.

        Returns:
            The last ``global_step`` and the metrics that the module logged.
        """

    @staticmethod
    @abstractmethod
    def _place(trainer: Any, epoch: int, step: int) -> None:
        """Set the epoch and the optimizer step of a fit that is about to begin."""

    @staticmethod
    @abstractmethod
    def _limit(trainer: Any, epoch: float, step: float) -> None:
        """Set the epoch and the step before which a fit ends, whatever the module sets ``should_stop`` to; inf for no limit."""

    @abstractmethod
    def recover(self) -> None:
        """Clean up after a client's error."""
