"""Metrics and losses: what they are named, what they return, and data without what they need."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from adaptive import Own, Tempered
from engine_runs import variant
from federations import NoValidation, Plain, changed
from refusing import Refusal, fitting
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import (
    BinaryRecall,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassHammingDistance,
    MulticlassRecall,
)

import fl_lightning as fl


class Misspelt(Tempered):
    server_buffers = "faktor"  # a single name needs no comma


class Silent(Tempered):
    def __init__(self) -> None:
        super().__init__()
        del self.signal


def by(metric: Any) -> Any:
    """Return a task whose loss weighs classes by a metric."""
    return lambda: fl.ClassificationTask(Plain().net, 3, fl.MetricWeightedCrossEntropy(metric, 3))


def scored(value: float) -> Any:
    """Return a module that logs a score."""
    return variant(on_validation_epoch_end=lambda self: self.log("score", value))


NO_DIRECTION = "must be a metric that sets its class attribute 'higher_is_better'"
REFUSALS = [
    Refusal(lambda: fl.AdaFed("val_acuracy"), "'val_acuracy' is not the name ... Did you mean val_accuracy? If it"),
    Refusal(lambda: fl.AdaFed("val/los"), "'val/los' is not the name ... Did you mean val/loss? If it is right, set"),
    Refusal(lambda: fl.MetricWeightedCrossEntropy(MulticlassConfusionMatrix(3), 3), "'model.loss.metric' must be a metric"),
    Refusal(
        lambda: fl.MetricWeightedCrossEntropy(MulticlassHammingDistance(3, average="none"), 3),
        f"'model.loss.metric' {NO_DIRECTION}",
    ),
    Refusal(
        lambda: fl.MetricWeightedCrossEntropy(MulticlassRecall(2, average="none"), 2).adapt(torch.tensor([-0.5, 0.2])),
        "needs values in [0, 1], for which higher is better, but its metric returns [-0.5",
    ),
    Refusal(fitting(module=by(MulticlassRecall(3, average="macro"))), "each of 3 classes, but its metric returns shape ()"),
    Refusal(fitting(module=by(BinaryRecall())), "BinaryRecall cannot compare predictions of ... Set 'model.loss.metric' to a"),
    Refusal(fitting(module=by(MulticlassRecall(2, average="none"))), "MulticlassRecall cannot compare ... with the same"),
    Refusal(fitting(module=lambda: Own(fl.F1WeightedCrossEntropy(3))), "but Own did not call it. Compute the loss in"),
    Refusal(fitting(module=lambda: Own(Tempered("val_mae"))), "adapts to 'val_mae', which Own does not log in validation. It"),
    Refusal(fitting(module=lambda: Own(Misspelt())), "'server_buffers' of Misspelt names ... Correct the name, or call"),
    Refusal(lambda: fl.ClassificationTask(nn.Linear(4, 3), 3, Misspelt()), "'server_buffers' of Misspelt names 'faktor'"),
    Refusal(fitting(module=lambda: Own(Silent())), "Silent has no signal to adapt to. Set self.signal in its __init__"),
    Refusal(fitting(module=by(MulticlassRecall(3, average="none")), data=NoValidation()), "adapts to the MulticlassRecall on"),
    Refusal(
        fitting(module=variant(validation_step=L.LightningModule.validation_step), strategy=fl.AdaFed("val_acc")),
        "'federation.strategy.metric' needs val_acc, but Variant has no 'validation_step' to log it in. Define",
    ),
    Refusal(fitting(strategy=fl.AdaFed("val_acc"), data=changed("val", [])), "needs 'val_acc' of models, but the set to"),
    Refusal(fitting(strategy=fl.AdaFed("val_acc"), data=NoValidation()), "needs val_acc on the server's validation set, but"),
    Refusal(fitting(strategy=fl.AdaFed()), "'val_accuracy', which Plain does not log ... It logs: val_acc, val_loss"),
    Refusal(
        fitting(module=scored(-0.5), strategy=fl.AdaFed("score", mode="max")),
        "AdaFed gave client 1 the weight -0.5 in round 0, but weights must be finite",
        fl.ClientError,
    ),
    Refusal(
        fitting(strategy=variant(fl.WeightedAverage, weight=lambda self, update: update.score)()),
        "Variant.weight returns None, but must return a number. 'update.score' is known",
    ),
    Refusal(
        fitting(
            module=variant(validation_step=lambda self, batch, batch_idx: None),
            strategy=fl.AdaFed(MulticlassAccuracy(3)),
            data=changed("val", DataLoader([{"x": torch.zeros(2, 4)}], batch_size=None)),
        ),
        "needs batches of (input, target), but it got a dict",
    ),
]
