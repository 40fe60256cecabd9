"""The engine ``fabric`` against ``trainer``: the same weights, figures and steps to the last bit, or a refusal by name."""

from __future__ import annotations

import random
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from engine_runs import JitteredBlobs, Transferred, differences, optimized, scheduled, trained, variant
from federations import Blobs, Consecutive, Plain, same_bits, trainer, weights
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from torch.nn import functional as F
from torch.optim import SGD, Adam, lr_scheduler
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision

from fl_lightning import (
    AdaFed,
    FedCyclic,
    FederatedDataModule,
    FederatedOrchestrator,
    FedNova,
    LocalTraining,
    Mediators,
    PartialWork,
    RingFed,
    Scaffold,
)
from fl_lightning.clients.resident import ResidentModel


def logging_step(body: Any) -> type[Plain]:
    """A module whose training step logs what ``body(module, loss, logits, labels)`` does."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        body(self, loss, logits, y)
        return loss

    return variant(training_step=training_step)


def plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.2)


def halving(optimizer):
    return lr_scheduler.StepLR(optimizer, 1, 0.5)


# ---------------------------------------------------------------- settings

SETTINGS = {
    "plain": {},
    "clip norm": {"gradient_clip_val": 0.05},
    "clip value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value", "limit_train_batches": 2},
    "accumulate": {"accumulate_grad_batches": 3, "max_epochs": 3},
    "max steps": {"max_steps": 5, "max_epochs": -1, "accumulate_grad_batches": 2},
    "share of batches": {"limit_train_batches": 0.6},
    "partial work": {"max_epochs": 4, "partial_work": PartialWork(0.6)},
    "proximal, decay": {"proximal_mu": 0.3, "lr_decay": 0.5, "gradient_clip_val": 0.1},
    "full batch": {"full_batch": True, "detect_anomaly": True},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "bf16-true": {"precision": "bf16-true"},
    "fast dev run": {"flags": {"fast_dev_run": True}},
    "cyclic": {"server": {"route": FedCyclic}},
    "ring": {"server": {"route": RingFed}},
    "mediators": {"server": {"route": lambda: Mediators(2)}},
    "adafed": {"server": {"strategy": lambda: AdaFed("val_acc")}},
    "scaffold": {"server": {"strategy": Scaffold}},
    "nova": {"server": {"strategy": FedNova}, "partial_work": PartialWork(0.4)},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_give_the_same_bits(name):
    def make():
        return Plain(batchnorm=name != "scaffold", momentum=0.0 if name == "scaffold" else 0.9)

    assert differences("fabric", make, **SETTINGS[name]) == []


def test_double_precision_gives_the_same_bits():
    settings = {"data": lambda: Blobs(dtype=torch.float64), "flags": {"precision": "64-true"}}
    assert differences("fabric", lambda: Plain(batchnorm=True).double(), **settings) == []


# ---------------------------------------------------------------- modules


def minus_one(self, batch, batch_idx):
    return -1 if batch_idx == 1 else None


def step_by_hand(self, epoch, batch_idx, optimizer, optimizer_closure):
    if batch_idx % 2:
        optimizer_closure()
    else:
        optimizer.step(closure=optimizer_closure)


def dictionary(self, batch, batch_idx):
    logits = self(batch[0])
    return {"loss": F.cross_entropy(logits, batch[1]), "logits": logits.detach()}


def log_logits(self, outputs, batch, batch_idx):
    self.log("logits", outputs["logits"].abs().max(), on_step=False, on_epoch=True, reduce_fx="max")


def log_at_batch_end(self, outputs, batch, batch_idx):
    self.log("seen", self.trainer.callback_metrics.get("train_loss", torch.tensor(-1.0)), on_step=False, on_epoch=True)


def skip_odd(self, batch, batch_idx):
    return None if batch_idx % 2 else F.cross_entropy(self(batch[0]), batch[1])


def noisy(self, batch, batch_idx):
    x = batch[0] + 0.1 * torch.randn_like(batch[0]) * random.random() * np.random.rand()
    return F.cross_entropy(self(x), batch[1])


def gradient_norm(self, optimizer):
    gradients = [p.grad.norm() for p in self.parameters() if p.grad is not None]
    self.log("norm", torch.stack(gradients).norm(), on_step=False, on_epoch=True)


def keep_gradients(self, epoch, batch_idx, optimizer):
    """Lightning empties gradients at the start of each fit; within it they add up."""


MODULES = {
    "adam": optimized(lambda p: Adam(p, lr=0.01)),
    "lbfgs": optimized(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)),
    "schedule by step": scheduled(halving, interval="step", frequency=2),
    "schedule by epoch": scheduled(halving, interval="epoch"),
    "plateau by epoch": scheduled(plateau, monitor="train_loss"),
    "plateau by step": scheduled(plateau, monitor="train_acc", interval="step"),
    "plateau on the step's loss": scheduled(plateau, monitor="train_loss_step", interval="step"),
    "dictionary": variant(training_step=dictionary, on_train_batch_end=log_logits),
    "no batch_idx": variant(training_step=lambda self, batch: F.cross_entropy(self(batch[0]), batch[1])),
    "no loss": variant(training_step=skip_odd),
    "random numbers": variant(training_step=noisy),
    "optimizer_step": variant(optimizer_step=step_by_hand),
    "-1": variant(on_train_batch_start=minus_one),
    "-1, schedule by epoch": variant(scheduled(halving), on_train_batch_start=minus_one),
    "lr_scheduler_step": variant(scheduled(halving), lr_scheduler_step=lambda self, scheduler, _: scheduler.step()),
    "metrics in a hook": variant(on_train_batch_end=log_at_batch_end),
    "metric computed in a hook": variant(on_train_epoch_end=lambda self: self.log("mine", self.train_acc.compute())),
    "optimizer in a hook": variant(on_train_start=lambda self: self.optimizers()),
    "part of the parameters": variant(
        configure_optimizers=lambda self: SGD(self.net[2].parameters(), 0.1), on_before_optimizer_step=gradient_norm
    ),
    "gradients kept": variant(optimizer_zero_grad=keep_gradients),
    "stop": variant(on_train_batch_end=lambda self, *_: setattr(self.trainer, "should_stop", self.global_step == 3)),
    "eval mode": variant(on_train_start=lambda self: self.net.eval()),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_give_the_same_bits(name):
    assert differences("fabric", MODULES[name]) == []


# ---------------------------------------------------------------- logging


class Collected(Plain):
    """Several metrics in a collection."""

    def __init__(self):
        super().__init__()
        kinds = (MulticlassAccuracy, MulticlassF1Score, MulticlassPrecision)
        self.scores = MetricCollection({kind.__name__: kind(3) for kind in kinds})

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.scores.update(logits, batch[1])
        self.log_dict(self.scores, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, batch[1])


def log_every_way(module, loss, *_):
    for on_step, on_epoch in ((None, None), (True, True), (False, True), (True, False)):
        for how in ("mean", "min", torch.max, "sum"):
            module.log(f"{on_step} {on_epoch} {how}", loss, on_step=on_step, on_epoch=on_epoch, reduce_fx=how)


LOGGING = {
    "every way": logging_step(log_every_way),
    "batch_size": logging_step(lambda m, loss, *_: m.log("it", loss, on_epoch=True, batch_size=3)),
    "numbers": logging_step(lambda m, *_: m.log_dict({"a": 0.1, "b": 3, "c": torch.tensor([2])}, on_epoch=True)),
    "avg": logging_step(lambda m, loss, *_: m.log("it", loss, on_epoch=True, reduce_fx="avg")),
    "metric by step": logging_step(lambda m, _, logits, y: [m.train_acc(logits, y), m.log("acc", m.train_acc)]),
    "metric's value": logging_step(lambda m, _, logits, y: m.log("acc", m.train_acc(logits, y), on_epoch=True)),
    "collection": Collected,
    "hooks": variant(
        on_train_epoch_start=lambda self: self.log("a", 1.0),
        on_train_batch_start=lambda self, *_: self.log("b", 2.0, on_epoch=True),
        on_after_backward=lambda self: self.log("c", 3.0),
        on_train_epoch_end=lambda self: self.log("train_loss", 7.0),
    ),
}


@pytest.mark.parametrize("name", LOGGING)
def test_logged_figures_are_the_same(name):
    assert differences("fabric", LOGGING[name]) == []


# ---------------------------------------------------------------- callbacks and data


class Averaging(L.Callback):
    """Hands over a running mean of its own of the weights."""

    def on_train_start(self, trainer, pl_module):
        self.mean = [p.detach().clone() for p in pl_module.parameters()]

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.mean = [0.9 * m + 0.1 * p.detach() for m, p in zip(self.mean, pl_module.parameters(), strict=True)]
        pl_module.log("distance", self.mean[0].norm(), on_step=False, on_epoch=True)

    def on_train_end(self, trainer, pl_module):
        with torch.no_grad():
            torch._foreach_copy_(list(pl_module.parameters()), self.mean)


class Logs(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        self.log("of a callback", 2.0)


CALLBACKS = {
    "hooks": Averaging,
    "lambda": lambda: LambdaCallback(on_train_epoch_start=lambda _, module: module.net[0].weight.data.mul_(0.5)),
    "its own log": Logs,
    "answers -1": lambda: LambdaCallback(on_train_batch_start=lambda *_: -1),
    "early stopping": lambda: EarlyStopping("train_loss", min_delta=0.3, patience=1, check_on_train_epoch_end=True),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_give_the_same_bits(name):
    assert differences("fabric", Plain, callbacks=[CALLBACKS[name]], max_epochs=3) == []


def test_callbacks_hear_of_an_error():
    def fail(self, batch, batch_idx):
        raise ArithmeticError("as expected")

    heard = []
    for engine in ("trainer", "fabric"):
        callback = LambdaCallback(on_exception=lambda trainer, module, error, engine=engine: heard.append(engine))
        with pytest.raises(ArithmeticError, match="as expected"):
            trained(engine, variant(training_step=fail), callbacks=[lambda callback=callback: callback])
    assert heard == ["trainer", "fabric"]


@pytest.mark.parametrize("data", [JitteredBlobs, Transferred])
def test_data_give_the_same_bits(data):
    def as_tuple(self, batch, batch_idx):
        return Plain.training_step(self, (batch["x"], batch["y"]) if isinstance(batch, dict) else batch, batch_idx)

    assert differences("fabric", variant(training_step=as_tuple), data=data) == []


def test_a_second_fit_of_one_orchestrator_is_the_same():
    found = []
    for engine in ("trainer", "fabric"):
        L.seed_everything(4, verbose=False)
        federation = FederatedOrchestrator(local=LocalTraining(engine=engine))
        data = FederatedDataModule(Blobs(), Consecutive())
        for _ in range(2):
            module = Plain(batchnorm=True)
            trainer(2, federation).fit(module, data)
        found.append(weights(module))
    assert same_bits(*found)


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_gradients_are_freed_before_the_model_is_copied(engine, monkeypatch):
    """Otherwise, each client would need the memory of one more model."""
    held: list[bool] = []

    def snapshot(self: ResidentModel, client: Any) -> Any:
        held.extend(parameter.grad is not None for parameter in self.module.parameters())
        return copy(self, client)

    copy = ResidentModel.snapshot
    monkeypatch.setattr(ResidentModel, "snapshot", snapshot)
    trained(engine, Plain)
    assert held
    assert not any(held)
