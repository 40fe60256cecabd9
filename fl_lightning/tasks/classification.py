"""Train classifiers with any network, loss, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.losses.metric_weighted import MetricWeightedCrossEntropy
from fl_lightning.losses.plain import CrossEntropy
from fl_lightning.reporting.tables import log_matrix, write_matrix
from fl_lightning.tasks.base import EQUAL, SupervisedTask


class ClassificationTask(SupervisedTask):
    """Train a single-label classifier on batches (input, label).

    The task logs ``train_loss`` and ``train_accuracy`` while training. For ``val`` and ``test`` it logs the loss, accuracy,
    macro and weighted F1, and F1 per class (``val_f1/0`` ...); all but the loss are in [0, 1]. The confusion matrix (rows
    true, columns predicted) is saved as a file by the CSV logger; W&B gets a table and a picture of the last round's. An
    :class:`~fl_lightning.AdaptiveLoss` anywhere in the loss, such as :class:`~fl_lightning.F1WeightedCrossEntropy`, adapts
    after each validation within ``fit``, except the sanity check.

    Args:
        network: maps inputs to logits of shape (N, num_classes).
        num_classes: the number of classes C, at least 2.
        loss: maps (logits, labels) to a scalar; cross-entropy by default.
        optimizer: the clients' optimizer, called with the parameters.
        lr_scheduler: the scheduler, called with the optimizer; steps once per local epoch.
        l2: the strength lambda >= 0 of ``lambda / 2 * sum of squares`` of the weights without biases, in training only.

    Raises:
        ConfigurationError: if a value is outside its range, or if the loss has weights for a different number of classes.
    """

    stacked_hooks = ("on_fit_start", "on_train_start", "on_train_epoch_end", "on_fit_end")
    predictions_are = "logits"
    """What ``predictions_and_target`` returns, ``"logits"`` or ``"probabilities"``, for metrics that compare probabilities."""

    def __init__(
        self,
        network: nn.Module,
        num_classes: int = 10,
        loss: nn.Module | None = None,
        optimizer: OptimizerCallable = torch.optim.SGD,
        lr_scheduler: LRSchedulerCallable | None = None,
        l2: float = 0.0,
    ) -> None:
        super().__init__(network, loss or CrossEntropy(), optimizer, lr_scheduler, l2)
        require(num_classes >= 2, "model.num_classes", "at least 2", num_classes)
        self.num_classes = num_classes
        for part in self.loss.modules():
            if isinstance(part, MetricWeightedCrossEntropy):
                classes = part.class_weights.numel()
                require(classes == num_classes, "model.loss.num_classes", f"the task's num_classes, {num_classes}", classes)
        self.train_accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        self._last_confusion: tuple[int, Tensor] | None = None
        self.val_metrics = _metrics(num_classes)
        self.test_metrics = _metrics(num_classes)

    def on_fit_start(self) -> None:
        """Check the labels once, before any training.

        Raises:
            DataError: if labels lie outside the classes.
        """
        data = getattr(self.trainer, "datamodule", None)
        labels = getattr(getattr(data, "client_datasets", data), "labels", None)
        if isinstance(labels, Tensor) and labels.numel():
            highest = int(labels.max())
            self._refuse_labels(int(labels.min()), highest)
            if highest + 1 < self.num_classes and hasattr(data, "has_validation_set"):
                rank_zero_warn(
                    f"The labels go from {int(labels.min())} to {highest}, but the model has {self.num_classes} classes. "
                    "In means over classes, one without examples counts as zero if the model predicts it, and is left out "
                    "if not. If there are no others, set "
                    f"'model.num_classes' (and the network's) to {highest + 1}."
                )

    def _refuse_labels(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self.num_classes:
            raise DataError(
                f"The labels go from {lowest} to {highest}, but the model has classes 0 to {self.num_classes - 1}. Set "
                "'model.num_classes' (and the network's) to fit the data, or correct the labels."
            )

    def predictions_and_target(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits and labels of a batch."""
        inputs, labels = self._parts(batch)
        if labels.ndim != 1:
            raise ConfigurationError(
                f"{type(self).__name__} learns one class for each example, but the data return targets of shape "
                f"{tuple(labels.shape)} for {len(inputs)} inputs. Return labels of shape (B,), or use a module of your own for "
                "examples of several classes."
            )
        return self._logits(inputs), labels

    def _logits(self, inputs: Tensor) -> Tensor:
        """Return the network's logits; if they don't fit the data or classes, raise an error that names the settings."""
        logits = self._outputs(inputs)
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise ConfigurationError(
                f"{type(self.network).__name__} returns outputs of shape {tuple(logits.shape)} for {len(inputs)} inputs, but "
                f"the task has {self.num_classes} classes. Set 'model.num_classes' and the network's to the same number."
            )
        return logits

    def _loss_of(self, compute: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, target: Tensor) -> Tensor:
        try:
            return super()._loss_of(compute, outputs, target)
        except ConfigurationError as error:
            if isinstance(error.__cause__, IndexError):
                self._refuse_labels(int(target.min()), int(target.max()))
            raise

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        logits, labels = self.predictions_and_target(batch)
        loss = self._with_l2(self._loss_of(self.loss, logits, labels))
        self.train_accuracy.update(logits, labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(labels))
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the accuracy of the epoch."""
        self.log("train_accuracy", self.train_accuracy.compute())
        self.train_accuracy.reset()

    def _evaluate(self, batch: Any, mean_loss: MeanMetric, metrics: MetricCollection) -> None:
        logits, labels = self.predictions_and_target(batch)
        self._add_loss(mean_loss, logits, labels)
        metrics.update(logits, labels)

    def _log_metrics(self, stage: str, loss: MeanMetric, metrics: MetricCollection) -> None:
        values: dict[str, Tensor] = metrics.compute()
        metrics.reset()
        self._log_losses(stage, loss)
        shown = {f"{stage}_{name}": values[name] for name in ("accuracy", "f1_macro")}
        self.log_dict(shown, prog_bar=True, **EQUAL)
        self.log(f"{stage}_f1_weighted", values["f1_weighted"], **EQUAL)
        self.log_dict({f"{stage}_f1/{c}": score for c, score in enumerate(values["f1_per_class"])}, **EQUAL)
        write_matrix(self.trainer, f"{stage}_confusion", values["confusion"])
        if self.trainer.state.fn is not TrainerFn.FITTING:
            log_matrix(self.trainer, f"{stage}_confusion", values["confusion"])
        elif not self.trainer.sanity_checking:
            self._last_confusion = self.trainer.current_epoch, values["confusion"]

    def on_fit_end(self) -> None:
        """Send the last confusion matrix to W&B; sending a table each round would take longer than all other figures."""
        if self._last_confusion is not None:
            epoch, matrix = self._last_confusion
            log_matrix(self.trainer, "val_confusion", matrix, epoch)
            self._last_confusion = None

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return class probabilities, shape (N, C), float32."""
        inputs = batch[0] if isinstance(batch, list | tuple) else batch
        return torch.softmax(self(inputs).float(), dim=1)


def _metrics(num_classes: int) -> MetricCollection:
    return MetricCollection(
        {
            "accuracy": MulticlassAccuracy(num_classes, average="micro", validate_args=False),
            "f1_macro": MulticlassF1Score(num_classes, average="macro", validate_args=False),
            "f1_weighted": MulticlassF1Score(num_classes, average="weighted", validate_args=False),
            "f1_per_class": MulticlassF1Score(num_classes, average="none", validate_args=False),
            "confusion": MulticlassConfusionMatrix(num_classes, validate_args=False),
        }
    )
