"""Share code among the tasks: network, loss, optimizer, and hooks for losses that depend on rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.losses.adaptive import PlainLoss
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.metrics.update import comparing
from fl_lightning.tasks.loss_adaptation import LossAdaptation
from fl_lightning.utilities.checkpoints import LoadsSafely

EQUAL: dict[str, Any] = {"sync_dist": True, "reduce_fx": "max"}
"""How to log values that torchmetrics has synchronised: the maximum of equal values is exact and avoids Lightning's advice."""


class SupervisedTask(LoadsSafely, LightningModule):
    """Train a network with a loss on batches (input, target, ...).

    An :class:`~fl_lightning.AdaptiveLoss` anywhere in the loss adapts after each validation within ``fit``. A
    :class:`~fl_lightning.ProximalLoss` measures the distance from the start of the fit, which is a client's round. A subclass
    provides ``training_step``, ``val_metrics`` and ``test_metrics``, evaluates batches and logs the metrics.

    Args:
        network: maps inputs to outputs.
        loss: maps (outputs, target) to a scalar.
        optimizer: the clients' optimizer, called with the parameters.
        lr_scheduler: the scheduler, called with the optimizer; steps once per local epoch.
        l2: the strength lambda >= 0 of ``lambda / 2 * sum of squares`` of the trained weights, without one-dimensional ones
            such as biases; added to the loss in training only.
    """

    val_metrics: MetricCollection
    test_metrics: MetricCollection
    stacked_hooks: tuple[str, ...] = ("on_train_start",)
    """See :class:`~fl_lightning.clients.stacked.engine.StackedEngine`."""

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module,
        optimizer: OptimizerCallable = torch.optim.SGD,
        lr_scheduler: LRSchedulerCallable | None = None,
        l2: float = 0.0,
    ) -> None:
        super().__init__()
        require(l2 >= 0, "model.l2", "0 or above", l2)
        self.network, self.loss, self.optimizer, self.lr_scheduler = network, loss, optimizer, lr_scheduler
        self.l2 = l2
        # Not Lightning's sync_dist mean: it rounds the mean number of examples per rank down to a whole one.
        self.val_loss, self.test_loss, self.val_adaptive_loss = MeanMetric(), MeanMetric(), MeanMetric()
        self._plain_loss = PlainLoss(loss)

    def configure_callbacks(self) -> list[Callback]:
        """Return the callback that adapts an adaptive loss, with or without a federation."""
        return [LossAdaptation()]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the network."""
        outputs: Tensor = self.network(inputs)
        return outputs

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with its scheduler if one is set."""
        try:
            optimizer = self.optimizer(p for p in self.parameters() if p.requires_grad)
        except ValueError as error:
            raise ConfigurationError(f"'model.optimizer' rejects its settings: {error}. Change them.") from error
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        config = {"scheduler": scheduler, "interval": "epoch"}
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            config["monitor"] = "train_loss"  # clients log it; Lightning's own ReduceLROnPlateau names its monitor itself
        return {"optimizer": optimizer, "lr_scheduler": config}

    def on_train_start(self) -> None:
        """Anchor proximal losses at the start of the round."""
        for part in self.loss.modules():
            if isinstance(part, ProximalLoss):
                part.anchor(self.network.parameters())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a batch."""
        self._evaluate(batch, self.val_loss, self.val_metrics)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a batch."""
        self._evaluate(batch, self.test_loss, self.test_metrics)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("val", self.val_loss, self.val_metrics)

    def on_test_epoch_end(self) -> None:
        """Log the metrics."""
        self._log_metrics("test", self.test_loss, self.test_metrics)

    @abstractmethod
    def _evaluate(self, batch: Any, mean_loss: MeanMetric, metrics: MetricCollection) -> None:
        """Add a batch to the loss and the metrics of a stage."""

    @property
    def _shows_adaptive_loss(self) -> bool:
        """Return whether the loss adapts in this validation; in any later one its weights are those of the next round."""
        return self._plain_loss.adapts and self.trainer.state.fn is TrainerFn.FITTING

    def _add_loss(self, mean_loss: MeanMetric, outputs: Tensor, target: Tensor) -> None:
        """Add a batch's plain loss to its mean and, in a fit, the loss that the clients trained with to another mean."""
        if not self._plain_loss.adapts:
            mean_loss.update(self._loss_of(self.loss, outputs, target), len(target))
            return
        if self._shows_adaptive_loss:
            self.val_adaptive_loss.update(self._loss_of(self.loss, outputs, target), len(target))
        mean_loss.update(self._loss_of(partial(self._plain_loss, self.loss), outputs, target), len(target))

    def _log_losses(self, stage: str, mean_loss: MeanMetric) -> None:
        self.log(f"{stage}_loss", mean_loss.compute(), **EQUAL)
        mean_loss.reset()
        if self._shows_adaptive_loss:
            self.log("val_adaptive_loss", self.val_adaptive_loss.compute(), **EQUAL)
            self.val_adaptive_loss.reset()

    @abstractmethod
    def _log_metrics(self, stage: str, loss: MeanMetric, metrics: MetricCollection) -> None:
        """Log and reset the results of a stage, ``val`` or ``test``."""

    def predictions_and_target(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the predictions and targets of a batch for metrics, including those that a strategy asks for."""
        inputs, target = self._parts(batch)
        return self._outputs(inputs), target

    def _parts(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return inputs and target."""
        if not (isinstance(batch, list | tuple) and len(batch) >= 2):
            raise ConfigurationError(
                f"{type(self).__name__} learns from batches of (input, target), but the data return "
                f"{'only inputs' if isinstance(batch, list | tuple | Tensor) else type(batch).__name__}. Set "
                "'data.datamodule' to data with a target, or 'model' to a task without one, such as KMeansTask."
            )
        return batch[0], batch[1]

    def _loss_of(self, compute: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, target: Tensor) -> Tensor:
        """Return a loss; if it rejects the outputs and targets, raise an error that names the settings to change."""
        with comparing(self.loss, outputs, target, "Set 'model.loss' to one for such data, or 'model' to another task."):
            return compute(outputs, target)

    def _outputs(self, inputs: Tensor) -> Tensor:
        """Return the network's outputs; if it rejects the data, raise an error that names the settings to change."""
        try:
            outputs: Tensor = self(inputs)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("shape", "size", "channels")):
                raise
            raise ConfigurationError(
                f"{type(self.network).__name__} cannot take inputs of shape {tuple(inputs.shape)}: {error}. Change "
                "'model.network' (its channels, image size or number of inputs) to fit the data, or use other data."
            ) from error
        return outputs

    def _with_l2(self, loss: Tensor) -> Tensor:
        """Return the loss of a training batch plus the L2 term."""
        if not self.l2:
            return loss
        weights = (p for p in self.network.parameters() if p.requires_grad and p.ndim > 1)
        squares: Tensor = sum((weight.square().sum() for weight in weights), torch.zeros_like(loss))
        return loss + self.l2 / 2 * squares
