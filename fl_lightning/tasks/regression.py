"""Train regression models of numbers, images or counts, with any network, loss, optimizer and scheduler."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric, MetricCollection, R2Score

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.losses.metric_weighted import MetricWeightedCrossEntropy
from fl_lightning.losses.plain import CrossEntropy, Hinge
from fl_lightning.metrics.percentage_error import PercentageError
from fl_lightning.tasks.base import EQUAL, SupervisedTask

_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, CrossEntropy, MetricWeightedCrossEntropy, Hinge)


class RegressionTask(SupervisedTask):
    """Train a model that predicts numbers on batches (input, target).

    The task logs ``train_loss`` while training. For ``val`` and ``test`` it logs the loss, the mean absolute error ``_mae``,
    the mean absolute percentage error ``_mape`` as a ratio, and the coefficient of determination ``_r2`` (NaN for a single
    number). These cover all numbers of all targets, or the results of ``readout``: for example, train on density images and
    measure their counts.

    An :class:`~fl_lightning.AdaptiveLoss` anywhere in the loss adapts after each validation within ``fit``.

    Args:
        network: maps inputs to outputs of the targets' shape; outputs (N, 1) also fit targets (N,).
        loss: maps (outputs, targets) to a scalar; ``torch.nn.MSELoss`` by default.
        optimizer: the clients' optimizer, called with the parameters.
        lr_scheduler: the scheduler, called with the optimizer; steps once per local epoch.
        l2: the strength lambda >= 0 of ``lambda / 2 * sum of squares`` of the weights without biases, in training only.
        readout: maps outputs and targets to the measured and predicted values, such as
            :class:`~fl_lightning.DensityCount`; by default, they are used as they are.
        mape_floor: F > 0: percentage errors are ``|y - prediction| / max(|y|, F)``. Use 1 for counts, so that each extra
            cell in an image without cells is an error of 100 %.

    Raises:
        ConfigurationError: if a value is outside its range, or the outputs do not have the targets' shape.
    """

    stacked_hooks = ("on_fit_start", "on_train_start")

    def __init__(
        self,
        network: nn.Module,
        loss: nn.Module | None = None,
        optimizer: OptimizerCallable = torch.optim.SGD,
        lr_scheduler: LRSchedulerCallable | None = None,
        l2: float = 0.0,
        readout: nn.Module | None = None,
        mape_floor: float = 1e-6,
    ) -> None:
        super().__init__(network, loss or nn.MSELoss(), optimizer, lr_scheduler, l2)
        for part in self.loss.modules():
            known = "a loss of numbers, such as torch.nn.MSELoss or RobustLoss"
            require(not isinstance(part, _OF_CLASSES), "model.loss", known, type(part).__name__)
        self.readout = readout
        metrics: dict[str, Any] = {"mae": MeanAbsoluteError(), "mape": PercentageError(mape_floor), "r2": R2Score()}
        self.val_metrics, self.test_metrics = MetricCollection(metrics), MetricCollection(metrics).clone()

    def on_fit_start(self) -> None:
        """Check the scale of densities, once.

        Raises:
            ConfigurationError: if the readout's scale differs from the data's.
        """
        mine, theirs = (
            getattr(self.readout, "scale", None),
            getattr(getattr(self.trainer, "datamodule", None), "density_scale", None),
        )
        if mine is not None and theirs is not None and mine != theirs:
            raise ConfigurationError(
                f"'model.readout.scale' is {mine}, but 'data.datamodule.density_scale' is {theirs}, so counts would be wrong "
                "by that factor. Set both to the same value."
            )

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return outputs and targets of one shape."""
        inputs, target = self._parts(batch)
        outputs = self._outputs(inputs)
        if outputs.ndim == target.ndim + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        if outputs.shape != target.shape:
            raise ConfigurationError(
                f"{type(self.network).__name__} returns outputs of shape {tuple(outputs.shape)}, but the targets have shape "
                f"{tuple(target.shape)}. Change 'model.network' so that it returns as many numbers as the targets have."
            )
        if not target.is_floating_point():
            target = target.to(torch.float32)
        return outputs, target

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        outputs, target = self._pair(batch)
        loss = self._with_l2(self._loss_of(self.loss, outputs, target))
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(target))
        return loss

    def _evaluate(self, batch: Any, mean_loss: MeanMetric, metrics: MetricCollection) -> None:
        outputs, target = self._pair(batch)
        self._add_loss(mean_loss, outputs, target)
        metrics.update(*self._compared(outputs, target))

    def predictions_and_target(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the values that metrics compare: outputs and targets after the readout, flattened, float32."""
        return self._compared(*self._pair(batch))

    def _compared(self, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        predicted, true = (self._read(values).flatten().float() for values in (outputs, target))
        return predicted, true

    def _read(self, values: Tensor) -> Tensor:
        if self.readout is None:
            return values
        read: Tensor = self.readout(values)
        return read

    def _log_metrics(self, stage: str, loss: MeanMetric, metrics: MetricCollection) -> None:
        values: dict[str, Any] = {}
        for name in ("mae", "mape", "r2"):
            try:
                values[name] = metrics[name].compute()
            except ValueError:  # R2 of one number over all ranks: there is no variance to explain
                values[name] = torch.nan
        metrics.reset()
        self._log_losses(stage, loss)
        self.log_dict({f"{stage}_{name}": value for name, value in values.items()}, prog_bar=True, **EQUAL)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the outputs after the readout, float32."""
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        return self._read(self(inputs)).float()
