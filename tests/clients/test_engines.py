"""The engine ``fabric`` against ``trainer``: the same weights, figures and steps to the last bit in what a loop does itself."""

import copy
import random
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from engine_runs import JitteredBlobs, Transferred, built, differences, fitted, scheduled, tier_1, trained, variant
from federations import Blobs, Plain, same_bits, weights
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from torch.nn import functional as F
from torch.optim import SGD, lr_scheduler
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision

from fl_lightning import LocalTraining

SETTINGS: dict[str, Any] = {
    "clip value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value", "limit_train_batches": 2},
    "accumulate": {"accumulate_grad_batches": 3, "max_epochs": 3},
    "max steps": {"max_steps": 5, "max_epochs": -1, "accumulate_grad_batches": 2},
    "share of batches": {"limit_train_batches": 0.6, "proximal_mu": 0.3, "lr_decay": 0.5, "gradient_clip_val": 0.1},
    "full batch": {"full_batch": True, "detect_anomaly": True},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "double": {"data": lambda: Blobs(dtype=torch.float64), "flags": {"precision": "64-true"}},
    "fast dev run": {"flags": {"fast_dev_run": True}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tier_1(SETTINGS, "max steps", "share of batches", "full batch"))
def test_settings_give_the_same_bits(name):
    dtype = torch.float64 if name == "double" else torch.float32
    assert differences("fabric", lambda: Plain(batchnorm=True, momentum=0.9).to(dtype), **SETTINGS[name]) == []


def step_by_hand(self, epoch, batch_idx, optimizer, optimizer_closure):
    if batch_idx % 2:
        optimizer_closure()
    else:
        optimizer.step(closure=optimizer_closure)


def dictionary(self, batch, batch_idx):
    logits = self(batch[0])
    self.train_acc.update(logits, batch[1])
    return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits.detach()}


def log_at_batch_end(self, outputs, batch, batch_idx):
    self.log("logits", outputs["logits"].abs().max(), on_step=False, on_epoch=True, reduce_fx="max")
    self.log("seen", self.trainer.callback_metrics.get("logits", torch.tensor(-1.0)), on_step=False, on_epoch=True)


def skip_odd_and_draw(self, batch, batch_idx):
    if batch_idx % 2:
        return None
    x = batch[0] + 0.1 * torch.randn_like(batch[0]) * random.random() * np.random.rand()
    return F.cross_entropy(self(x), batch[1])


def gradient_norm(self, optimizer):
    gradients = [p.grad.norm() for p in self.parameters() if p.grad is not None]
    self.log("norm", torch.stack(gradients).norm(), on_step=False, on_epoch=True)


def keep_gradients(self, epoch, batch_idx, optimizer):
    """Lightning empties gradients at the start of each fit; within it they add up."""


class LogsEveryWay(Plain):
    """Logs numbers, tensors, metrics and a collection of metrics, in the step and in hooks."""

    def __init__(self):
        super().__init__()
        kinds = (MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision)
        self.scores = MetricCollection({kind.__name__: kind(3) for kind in kinds})
        self.other = MulticlassAccuracy(3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        for on_step, on_epoch in ((None, None), (True, True), (False, True), (True, False)):
            for how in ("mean", "min", torch.max, "sum", "avg"):
                self.log(f"{on_step} {on_epoch} {how}", loss, on_step=on_step, on_epoch=on_epoch, reduce_fx=how)
        self.log("weighed", loss, on_epoch=True, batch_size=3)
        self.log_dict({"a": 0.1, "b": 3, "c": torch.tensor([2])}, on_epoch=True)
        self.train_acc(logits, y)
        self.log("by step", self.train_acc)
        self.log("value", self.other(logits, y), on_epoch=True)
        self.scores.update(logits, y)
        self.log_dict(self.scores, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_start(self):
        self.log("d", 1.0)

    def on_train_batch_start(self, batch, batch_idx):
        self.log("e", 2.0, on_epoch=True)

    def on_after_backward(self):
        self.log("f", 3.0)

    def on_train_epoch_end(self):
        self.log("g", 7.0)


PLATEAU = lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.2)  # noqa: E731
HALVING = scheduled(lambda o: lr_scheduler.StepLR(o, 1, 0.5))
MODULES = {
    "plateau by step": scheduled(PLATEAU, monitor="train_acc", interval="step"),
    "plateau on the step's loss": scheduled(PLATEAU, monitor="train_loss_step", interval="step"),
    "dictionary, and a metric computed in a hook": variant(
        training_step=dictionary,
        on_train_batch_end=log_at_batch_end,
        on_train_epoch_end=lambda self: self.log("mine", self.train_acc.compute()),
    ),
    "eval mode, no batch_idx": variant(
        training_step=lambda self, batch: F.cross_entropy(self(batch[0]), batch[1]), on_train_start=lambda self: self.net.eval()
    ),
    "no loss, random numbers": variant(training_step=skip_odd_and_draw),
    "steps by hand": variant(
        HALVING, optimizer_step=step_by_hand, lr_scheduler_step=lambda self, scheduler, _: scheduler.step()
    ),
    "-1, schedule by epoch": variant(HALVING, on_train_batch_start=lambda self, _, batch_idx: -1 if batch_idx == 1 else None),
    "part of the parameters, optimizer in a hook": variant(
        configure_optimizers=lambda self: SGD(self.net[2].parameters(), 0.1),
        on_before_optimizer_step=gradient_norm,
        on_train_start=lambda self: self.optimizers(),
    ),
    "gradients kept": variant(optimizer_zero_grad=keep_gradients),
    "stop": variant(on_train_batch_end=lambda self, *_: setattr(self.trainer, "should_stop", self.global_step == 3)),
    "every way to log": LogsEveryWay,
}


QUICK = (
    "dictionary, and a metric computed in a hook",
    "no loss, random numbers",
    "steps by hand",
    "every way to log",
)


@pytest.mark.parametrize("name", tier_1(MODULES, *QUICK))
def test_modules_give_the_same_bits(name):
    assert differences("fabric", MODULES[name]) == []


class Averaging(L.Callback):
    """Hands over a running mean of its own of the weights, and logs."""

    def on_train_start(self, trainer, pl_module):
        self.mean = [p.detach().clone() for p in pl_module.parameters()]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.mean = [0.9 * m + 0.1 * p.detach() for m, p in zip(self.mean, pl_module.parameters(), strict=True)]
        pl_module.log("distance", self.mean[0].norm(), on_step=False, on_epoch=True)

    def on_train_epoch_end(self, trainer, pl_module):
        self.log("of a callback", 2.0)

    def on_train_end(self, trainer, pl_module):
        with torch.no_grad():
            torch._foreach_copy_(list(pl_module.parameters()), self.mean)


CALLBACKS = {
    "hooks": Averaging,
    "lambda": lambda: LambdaCallback(on_train_epoch_start=lambda _, module: module.net[0].weight.data.mul_(0.5)),
    "answers -1": lambda: LambdaCallback(on_train_batch_start=lambda *_: -1),
    "early stopping": lambda: EarlyStopping("train_loss", min_delta=0.3, patience=1, check_on_train_epoch_end=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tier_1(CALLBACKS, "hooks", "early stopping"))
def test_callbacks_give_the_same_bits(name):
    assert differences("fabric", Plain, callbacks=[CALLBACKS[name]], max_epochs=3) == []


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_callbacks_hear_of_an_error(engine):
    def fail(self, batch, batch_idx):
        raise ArithmeticError("as expected")

    heard = []
    with pytest.raises(ArithmeticError, match="as expected"):
        trained(
            engine, variant(training_step=fail), callbacks=[lambda: LambdaCallback(on_exception=lambda *_: heard.append(1))]
        )
    assert heard == [1]


@pytest.mark.parametrize("data", [JitteredBlobs, pytest.param(Transferred, marks=pytest.mark.slow)])
def test_data_give_the_same_bits(data):
    def as_tuple(self, batch, batch_idx):
        return Plain.training_step(self, (batch["x"], batch["y"]) if isinstance(batch, dict) else batch, batch_idx)

    assert differences("fabric", variant(training_step=as_tuple), data=data) == []


def test_channels_last_is_the_same_within_rounding():
    layers = torch.nn.Unflatten(1, (1, 2, 2)), torch.nn.Conv2d(1, 3, 2), torch.nn.Flatten(), torch.nn.Linear(3, 3)
    convolving = built(lambda self: setattr(self, "net", copy.deepcopy(torch.nn.Sequential(*layers))))
    found = [weights(fitted(convolving, 3, local=LocalTraining(channels_last=chosen))) for chosen in (False, True)]
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in found[0])
    assert not same_bits(weights(convolving()), found[0])
