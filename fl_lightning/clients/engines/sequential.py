"""Train clients one after another: the common base of the engines ``trainer`` and ``fabric``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from lightning.pytorch import LightningDataModule

from fl_lightning.clients.engines.base import EngineJob, EngineSettings, Trained
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import ClientSession
from fl_lightning.functional.seeding import isolated_rng


class SequentialEngine(ABC):
    """Train clients one after another; see :class:`~fl_lightning.clients.engines.base.Engine`.

    Args:
        resident: the module that clients train.
        settings: the settings of the engine.
    """

    side_by_side: ClassVar[bool] = False
    checks_between_steps: ClassVar[bool] = True
    pulls: ClassVar[bool] = True
    equals_trainer: ClassVar[bool] = True

    def __init__(self, resident: ResidentModel, settings: EngineSettings) -> None:
        self.resident, self.settings = resident, settings
        self.session = ClientSession(
            resident,
            rules=settings.rules,
            lr_decay=settings.local.lr_decay,
            deadline=settings.deadline,
            private=settings.private,
        )

    def fit(self, jobs: Sequence[EngineJob]) -> Iterator[Trained]:
        """Train clients in the order of the jobs; see :meth:`Engine.fit`."""
        for job in jobs:
            yield self._train(job)

    def _train(self, job: EngineJob) -> Trained:
        begun = time.perf_counter()
        self.session.begin(job)
        with isolated_rng(job.seed, self.settings.device):
            steps, metrics = self._fit(job.open_data(), self._epochs(job))
        return self.session.end(steps, metrics, begun)

    def _epochs(self, job: EngineJob) -> int:
        most = 1 if self.settings.fast_dev_run else self.settings.local.max_epochs
        return most if job.job.epochs is None else min(job.job.epochs, most)

    @abstractmethod
    def _fit(self, data: LightningDataModule, max_epochs: int) -> tuple[int, dict[str, float]]:
        """Train one client, with :attr:`session` among the callbacks.

        Args:
            data: the client's examples.
            max_epochs: the number of local epochs; -1 for no limit.

        Returns:
            The number of optimizer steps and the metrics that the module logged.
        """

    @abstractmethod
    def recover(self) -> None:
        """Clean up after a client's error."""
