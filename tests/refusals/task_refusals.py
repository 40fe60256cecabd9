"""Tasks, losses and transforms: wrong settings, and what they do not go with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from federations import Blobs, federate
from refusing import Refusal, fitting
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryF1Score

import fl_lightning as fl


class Alone(Blobs):
    """Inputs without a target."""

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.train[0]), batch_size=7)

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.val[0]), batch_size=7)


class Numbers(Blobs):
    """Real targets of a shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.train, self.val = ((x, x.sum(1).reshape(-1, *shape)) for x, _ in (self.train, self.val))


class Several(Blobs):
    """Targets of shape (B, C), one column for each class, as for examples of several classes."""

    def __init__(self) -> None:
        super().__init__()
        self.train, self.val = ((x, nn.functional.one_hot(y, 3)) for x, y in (self.train, self.val))


def task(network: Any, *args: Any, kind: Any = fl.RegressionTask, **settings: Any) -> Callable[[], Any]:
    return lambda: federate(kind(network, *args), 1, **{"data": Numbers(), **settings})


def classes(network: Any, *args: Any, **settings: Any) -> Callable[[], Any]:
    return task(network, *args, kind=fl.ClassificationTask, **{"data": Blobs(), **settings})


WITH_GRADIENT = torch.zeros(2, 3, requires_grad=True)
LINE = nn.Linear(4, 1)
TASKS = [
    Refusal(task(nn.Linear(4, 2)), "outputs of shape ( ... , 2), but the targets have shape ("),
    Refusal(task(nn.Linear(5, 1)), "Linear cannot take inputs of shape"),
    Refusal(task(LINE, nn.CrossEntropyLoss()), "must be a loss of numbers, ... but is 'CrossEntropyLoss'"),
    Refusal(task(LINE, fl.F1WeightedCrossEntropy(3)), "'model.loss' must be a loss of numbers"),
    Refusal(classes(nn.Linear(4, 3), 3, nn.MSELoss()), "MSELoss cannot compare ... Set 'model.loss' to one for such"),
    Refusal(task(LINE, strategy=fl.AdaFed(BinaryF1Score())), "BinaryF1Score cannot compare ... 'federation.strategy.metric'"),
    Refusal(task(LINE, data=Alone()), "RegressionTask learns from batches of (input, target), but the data return only inputs"),
    Refusal(classes(nn.Linear(4, 3), 3, fl.CrossEntropy(), data=Several()), "ClassificationTask learns ... shape (5, 3) for 5"),
    Refusal(lambda: fl.RegressionTask(LINE, l2=-1.0), "'model.l2' must be 0 or above, but is -1.0"),
    Refusal(lambda: fl.RegressionTask(LINE, mape_floor=0.0), "mape_floor' must be above 0, in units of the target, but is 0.0"),
    Refusal(lambda: fl.Hinge()(torch.zeros(4, 1), torch.zeros(4)), "one class per example, but got ... targets of"),
    *(
        Refusal(lambda compare=compare: compare(torch.zeros(3, 1), torch.zeros(3)), "of the same shape, but ... 1) and (3,)")
        for compare in (fl.HalfSquaredError(), fl.PercentageError().update, fl.RobustLoss())
    ),
    Refusal(lambda: fl.RobustLoss(adaptive=False, adapt_scale=True), "adapt_scale' must be false if 'adaptive' is false"),
    Refusal(lambda: fl.ProximalLoss(fl.CrossEntropy(), mu=-1.0), "'mu' must be 0 or above, but is -1.0"),
    Refusal(
        lambda: fl.ProximalLoss(fl.CrossEntropy(), 0.1)(WITH_GRADIENT, torch.tensor([0, 1])),
        "Call its anchor(self.parameters()) in 'on_train_start'",
    ),
    *(
        Refusal(lambda wrong=wrong: fl.SimulatedTasksDataModule(**wrong), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"kind": "clusters", "outliers": 0.1}, "outliers' must be 0 unless 'kind' is regression, but is 0.1"),
        )
    ),
]


class Answer(fl.Transform):
    """Returns something else than a message of the same length, or than the same change."""

    def __init__(self, sent: Any = None, received: Any = None) -> None:
        self.sent, self.received = sent, received

    def apply(self, message: Any, sender: Any) -> Any:
        return message if self.sent is None else self.sent(message)

    def receive(self, change: Any, received: Any, expected: Any, draw: Any, secret: Any) -> Any:
        return change if self.received is None else self.received(change)


TRANSFORMS = [
    Refusal(fitting(transforms=[fl.Quantize()], route=fl.FedCyclic()), "Quantize changes the updates that ... the route"),
    *(  # of 67 parameters, a mean or the first number would be added to each
        Refusal(fitting(transforms=[Answer(sent)]), f"Answer.apply ... {words}")
        for sent, words in (
            (lambda message: replace(message, change=message.change.mean()), "'change' is a tensor of shape () in float64"),
            (lambda message: replace(message, change=message.change[:1]), "'change' is a tensor of shape (1,) in float64"),
            (lambda message: [], "returned an object of the class list, but a Message is needed"),
            (lambda message: message.change, "returned a tensor of shape (67,) in float64, but a Message is needed"),
            (lambda message: replace(message) and None, "returned None, but a Message is needed. Return"),
        )
    ),
    *(
        Refusal(
            fitting(transforms=[Answer(received=received)]),
            f"Answer.receive returned {words}, but a float64 tensor of shape (67,)",
        )
        for received, words in (
            (lambda change: change.mean(), "a tensor of shape () in float64"),
            (lambda change: change[:1], "a tensor of shape (1,) in float64"),
            (lambda change: change.float(), "a tensor of shape (67,) in float32"),
            (lambda change: 1.0, "an object of the class float"),
        )
    ),
]
REFUSALS = [*TASKS, *TRANSFORMS]
