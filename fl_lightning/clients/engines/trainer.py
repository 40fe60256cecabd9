"""The engine ``trainer``: one Lightning Trainer, reused for each client."""

from __future__ import annotations

import copy
import math
from typing import Any

from lightning.pytorch import LightningDataModule

from fl_lightning.clients.engines.sequential import SequentialEngine
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.training.inner_trainer import ClientTrainer, inner_trainer, quiet, restart
from fl_lightning.clients.training.metrics import scalar_metrics
from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.compat.lightning import continue_from
from fl_lightning.compat.lightning_hooks import lean_hooks

_CHANGEABLE = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "limit_train_batches")
"""The flags that a module may set in training, for this client."""


class TrainerEngine(SequentialEngine):
    """Train clients one after another with one inner Trainer.

    Args:
        resident: the module that clients train.
        place: where and how the clients train.
    """

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        super().__init__(resident, place)
        local = place.local
        self._callbacks = local.callbacks or []
        self._flags: dict[str, Any] = {
            "logger": place.logger,
            "outer": place.outer,
            "precision": place.precision,
            "max_epochs": 1 if place.fast_dev_run else local.max_epochs,
            "max_steps": local.max_steps,
            "gradient_clip_val": local.gradient_clip_val,
            "gradient_clip_algorithm": local.gradient_clip_algorithm if local.gradient_clip_val else None,
            "accumulate_grad_batches": local.accumulate_grad_batches,
            "limit_train_batches": 1 if place.fast_dev_run else local.limit_train_batches,
            "limit_val_batches": 0,
            "detect_anomaly": local.detect_anomaly or place.detect_anomaly,
            "deterministic": local.deterministic,
        }
        self._trainer: ClientTrainer | None = None

    def _fit(self, data: LightningDataModule, plan: TurnPlan) -> tuple[int, dict[str, float]]:
        trainer = self._next_trainer()
        trainer.plan(plan.max_epochs, plan.all_steps)
        with quiet(), lean_hooks():
            trainer.fit(self.resident.module, datamodule=data)
        return trainer.global_step, scalar_metrics(trainer.callback_metrics)

    def _next_trainer(self) -> ClientTrainer:
        # A user's callbacks have state that must not be shared by clients: each client gets copies and a new Trainer.
        if self._trainer is None or self._callbacks:
            callbacks = [*self.session.callbacks, *copy.deepcopy(self._callbacks)]
            self._trainer = inner_trainer(self.place.device, callbacks, **self._flags)
            self._begun = {name: getattr(self._trainer, name) for name in _CHANGEABLE}
        else:
            restart(self._trainer)
            for name, value in self._begun.items():
                setattr(self._trainer, name, value)
        return self._trainer

    @staticmethod
    def _place(trainer: Any, epoch: int, step: int) -> None:
        continue_from(trainer, epoch, step)
        trainer.fit_loop.max_epochs = trainer.fit_loop.epoch_loop.max_steps = -1  # those of the turn follow

    @staticmethod
    def _limit(trainer: Any, epoch: float, step: float) -> None:
        if epoch != math.inf:
            trainer.fit_loop.max_epochs = int(epoch)
        if step != math.inf:
            trainer.fit_loop.epoch_loop.max_steps = int(step)

    def recover(self) -> None:
        """Discard the Trainer, so that the next client gets a new one."""
        self._trainer = None
