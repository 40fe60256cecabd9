"""Compute metrics of models with a Trainer that is built once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.outer_run import IdleOptimizers
from fl_lightning.clients.session import keep_metrics_to_this_process
from fl_lightning.clients.trainer import inner_trainer, quiet, scalar_metrics
from fl_lightning.compat.lightning_hooks import lean_hooks
from fl_lightning.compat.torch import without_process_group
from fl_lightning.data.views import TRANSFER_HOOKS
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.model_parts import copy_of_tensors, restore_tensors
from fl_lightning.metrics.probabilities import as_probabilities
from fl_lightning.metrics.update import update_metric
from fl_lightning.settings.local_training import Place

STRATEGY_METRIC = "federation.strategy.metric"
"""The setting of a strategy's metric, for messages."""


class ModelEvaluation:
    """Compute metrics of models on this rank, with one Trainer that is built when it is first needed.

    Args:
        place: where models are evaluated, and in which precision.
        limit_batches: the limit on batches, as a Trainer's ``limit_val_batches``.
    """

    def __init__(self, place: Place, limit_batches: int | float = 1.0) -> None:
        self._place, self._limit, self._reload = place, limit_batches, _Reload()
        self._idle: tuple[LightningModule, IdleOptimizers] | None = None

    @cached_property
    def _trainer(self) -> Trainer:
        return inner_trainer(
            self._place.device,
            [self._reload],
            logger=self._place.logger,
            outer=self._place.outer,
            precision=self._place.precision,
            limit_val_batches=self._limit,
            inference_mode=self._place.inference_mode,
        )

    def score(self, metric: str | Metric, setting: str, module: LightningModule, data: LightningDataModule) -> float:
        """Return a metric of the model that is in the module, on the data's validation set.

        Args:
            metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
            setting: the setting that names the metric, for messages.
            module: the module.
            data: the data.

        Raises:
            ConfigurationError: if the module does not log the metric in validation; it lists the metrics that the module logs.
        """
        self._reload.remember(module)
        name, scored = str(metric), module
        if isinstance(metric, Metric):
            metric.distributed_available_fn = lambda: False  # each rank scores different models
            name, scored = "score", _Scorer(module, metric.to(self._place.device), setting)
        if self._idle is None or self._idle[0] is not module:
            self._idle = module, IdleOptimizers(module)
        idle = self._idle[1].attached()
        with quiet(), lean_hooks(), without_process_group(), torch.random.fork_rng(devices=[]), idle:
            self._trainer.validate(scored, datamodule=data, verbose=False)
        logged = scalar_metrics(self._trainer.callback_metrics)
        if not sum(self._trainer.num_val_batches):
            raise ConfigurationError(
                f"'{setting}' needs {name!r} of models, but the set to evaluate them on has no batches. Let "
                "'val_dataloader' return a loader with examples."
            )
        if name not in logged:
            raise ConfigurationError(
                f"The metric for models is {name!r}, which {type(module).__name__} does not log in validation. It logs: "
                f"{', '.join(sorted(logged)) or 'nothing'}. Set '{setting}' to one of these, "
                f"or to a torchmetrics class by its class_path.{did_you_mean(name, logged)}"
            )
        return logged[name]


class _Reload(Callback):
    """Restore the trained weights if validation calls ``setup`` again and the module builds a new network there."""

    def remember(self, module: LightningModule) -> None:
        """Remember the weights for the next validation."""
        self._module = module
        rebuilt = is_overridden("setup", module) or is_overridden("configure_model", module)
        self._trained = copy_of_tensors(module) if rebuilt else None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the weights after ``setup``."""
        keep_metrics_to_this_process(self._module)
        if self._trained is not None:
            restore_tensors(self._module, self._trained)


class _Scorer(LightningModule):
    """Validate another module with a metric of (predictions, target), instead of the metrics that it logs."""

    def __init__(self, module: LightningModule, metric: Metric, setting: str) -> None:
        super().__init__()
        self.module = module
        self.metric = metric
        self._setting = setting
        for hook in TRANSFER_HOOKS:
            if is_overridden(hook, module):
                vars(self)[hook] = getattr(module, hook)

    def on_validation_epoch_start(self) -> None:
        """Reset the metric."""
        self.metric.reset()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metric with a batch of (input, target)."""
        if not (isinstance(batch, list | tuple) and len(batch) >= 2 and isinstance(batch[1], Tensor)):
            raise ConfigurationError(
                f"'{self._setting}' is a torchmetrics metric, which needs batches of (input, target), but it got a "
                f"{type(batch).__name__}. Set it to the name of a metric that your module logs in validation."
            )
        compare = getattr(self.module, "predictions_and_target", None)  # the module's own comparison, if it defines one
        predictions, target = (self.module(batch[0]), batch[1]) if compare is None else compare(batch)
        predictions = as_probabilities(self.metric, predictions, target, self.module)
        update_metric(self.metric, predictions, target, self._setting)

    def on_validation_epoch_end(self) -> None:
        """Log the metric."""
        self.log("score", self.metric.compute())
