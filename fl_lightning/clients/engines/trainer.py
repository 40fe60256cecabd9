"""The engine ``trainer``: a Lightning Trainer per client, with all that Lightning does."""

from __future__ import annotations

import copy
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from fl_lightning.clients.engines.options import EngineOptions
from fl_lightning.clients.inner_trainer import inner_trainer, quiet, restart
from fl_lightning.clients.session import ClientSession, scalar_metrics
from fl_lightning.settings.local_training import LocalTraining


class TrainerEngine:
    """Fits clients one after another by one inner Trainer, which is used again.

    Args:
        local: the settings of the local training.
        options: where and how.
        session: what happens inside of a fit.
    """

    def __init__(self, local: LocalTraining, options: EngineOptions, session: ClientSession) -> None:
        self._device, self._session, self._callbacks = options.device, session, local.callbacks or []
        self._max_epochs = 1 if options.fast_dev_run else local.max_epochs
        self._flags: dict[str, Any] = {
            "logger": options.logger,
            "precision": options.precision,
            "max_epochs": self._max_epochs,
            "max_steps": local.max_steps,
            "gradient_clip_val": local.gradient_clip_val,
            "gradient_clip_algorithm": local.gradient_clip_algorithm if local.gradient_clip_val else None,
            "accumulate_grad_batches": local.accumulate_grad_batches,
            "limit_train_batches": 1 if options.fast_dev_run else local.limit_train_batches,
            "limit_val_batches": 0,
            "detect_anomaly": local.detect_anomaly or options.detect_anomaly,
            "deterministic": local.deterministic,
        }
        self._trainer: Trainer | None = None

    def fit(self, module: LightningModule, data: LightningDataModule, epochs: int | None) -> tuple[int, dict[str, float]]:
        """Train one client.

        Args:
            module: with the session's model to be loaded into it.
            data: the client's examples.
            epochs: fewer local epochs than the settings say; None for theirs.

        Returns:
            The optimizer's steps and what the module logged.
        """
        trainer = self._next_trainer()
        trainer.fit_loop.max_epochs = self._max_epochs if epochs is None else min(epochs, self._max_epochs)
        with quiet():
            trainer.fit(module, datamodule=data)
        return trainer.global_step, scalar_metrics(trainer.callback_metrics)

    def _next_trainer(self) -> Trainer:
        # Callbacks of the user's have a life of their own, which must not span clients: they get copies and a new Trainer.
        if self._trainer is None or self._callbacks:
            self._trainer = inner_trainer(
                self._device, [*self._session.callbacks, *copy.deepcopy(self._callbacks)], **self._flags
            )
        else:
            restart(self._trainer)
        return self._trainer
