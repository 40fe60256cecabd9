"""What the engines 'fabric' and 'stacked' cannot honour."""

import itertools
import random
import secrets
from collections import deque
from typing import Any, ClassVar

import lightning as L
import numpy as np
import torch
from engine_runs import built, optimized, scheduled, stepping, variant
from federations import CLASSES, Consecutive, Plain, network
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from refusing import Refusal, fits
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import fl_lightning as fl

LOSS = F.cross_entropy


class Counter:
    __slots__ = ("n",)
    seen: ClassVar[list[int]] = []

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> float:
        self.n += 1
        return 1 + 0.1 * self.n


class Scaling(nn.Module):
    """Keeps its state where ``state_dict`` does not look, and behind an underscore."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[int] = []

    def forward(self, x):
        return x * append(self._calls)


def append(values):
    values.append(1)
    return 1 + 0.1 * len(values)


def times(factor: Any) -> Any:
    """A module whose loss has a factor of the module."""
    return stepping(lambda self, x, y, _: LOSS(self(x), y) * factor(self))


def holding(make: Any, use: Any) -> Any:
    """A module that holds an object, with which each step changes the loss."""
    return built(lambda self: setattr(self, "held", make()), times(lambda self: use(self.held)))


def adding(layer: Any) -> Any:
    return built(lambda self: self.net.append(layer()))


def later(change: Any) -> Any:
    """A module whose third batch changes something, which the trial of the first does not see."""
    return stepping(lambda self, x, y, i: [LOSS(self(x), y), change(self) if i == 2 else None][0])


def hooked(change: Any, name: str = "on_train_epoch_end", base: Any = Plain, **more: Any) -> Any:
    return variant(base, **{name: change}, stacked_hooks=(name,), **more)


def collecting(self, x, y, batch_idx):
    loss = LOSS(self(x), y)
    self.outputs.append(loss)
    return loss


HELD = [
    holding(lambda: {"n": deque()}, lambda held: append(held["n"])),
    holding(lambda: np.zeros(1), lambda array: 1 + 0.1 * float(np.add(array, 1, out=array)[0])),
    holding(Counter, lambda counter: counter()),
    holding(Counter, lambda counter: append(counter.seen)),
    holding(itertools.count, next),
    holding(lambda: np.random.default_rng(0), lambda rng: rng.random()),
]
AVERAGING = lambda self: self.log("mean", torch.stack(self.outputs).mean())  # noqa: E731
FREEZING = hooked(lambda self: self.net[0].requires_grad_(self.current_epoch == 1), "on_train_epoch_start")
LATE_OUTPUTS = later(lambda self: collecting(self, torch.ones(5, 4), torch.zeros(5).long(), 0))
CHANGED: list[tuple[str, Any]] = [
    *(("held", module) for module in HELD),
    ("net.3._calls", adding(Scaling)),
    ("Variant.seen", variant(times(lambda self: append(self.seen)), seen=[])),
    ("_hparams", times(lambda self: append(self.hparams.setdefault("seen", [])))),
    ("mean", stepping(lambda self, x, y, _: LOSS(self(x) - remembered(self, x), y))),
    ("steps", times(lambda self: setattr(self, "steps", getattr(self, "steps", 0) + 1) or 1)),
    ("Variant.total", variant(times(lambda self: 1 / self.total.add_(1)), total=torch.zeros(()))),
    ("late", later(lambda self: setattr(self, "late", 1))),
    ("net.training", later(lambda self: self.net.eval())),
    ("epochs", hooked(lambda self: setattr(self, "epochs", getattr(self, "epochs", 0) + 1))),
    ("net.0.weight", FREEZING),
    ("net.0.bias", hooked(lambda self: nn.init.zeros_(self.net[0].bias))),
    ("Variant.seen", hooked(lambda self: append(self.seen), "on_fit_start", seen=[])),
    ("Variant.outputs", hooked(AVERAGING, base=LATE_OUTPUTS, outputs=[])),
]


def remembered(module: Any, x: Any) -> Any:
    """A mean that is no buffer."""
    module.mean = getattr(module, "mean", 0) * 0.9 + module(x).detach().mean(0)
    return module.mean


OTHER_LOSS = [
    holding(lambda: (lambda values: lambda: append(values))([]), lambda closure: closure()),
    times(lambda self: 1 + secrets.randbelow(2**30)),  # as a clock: reached through a module, whose content does not count
]


def computing(self, x, y, batch_idx):
    self.log("now", [self.train_acc.update(self(x), y), self.train_acc.compute()][1])
    return LOSS(self(x), y)


def clamped(parameters):
    optimizer = SGD(parameters, 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def percent(self, x, y, batch_idx):
    logits = self(x)
    self.log("percent", 100 * self.train_acc(logits, y))
    return LOSS(logits, y)


def setting_data(self, x, y, batch_idx):
    """Under vmap this can end the process."""
    kept = torch.zeros(8)
    kept.data = self.net[0].bias * 0.1
    return LOSS(self(x), y)


def shrinking(self, x, y, batch_idx):
    with torch.no_grad():
        self.net[0].weight.mul_(0.9)
    return LOSS(self(x), y)


def asking_late(self, x, y, batch_idx):
    loss = LOSS(self(x), y)
    return loss * loss.item() if batch_idx == 2 else loss


PULLED = fl.ProximalLoss(fl.CrossEntropy(), 0.1)
UNLIKE = ", which the engine 'stacked' of local training does not {}. Set 'federation.local.engine' to 'trainer'"
NOT_FOLLOWED, NOT_PROVIDED = UNLIKE.format("follow"), UNLIKE.format("provide")
SHARED_HOOK = "which stacked clients would share. Set ... 'trainer'. ... stacked_hooks = ('on_train_batch_end',)"
MODULES: dict[str, Any] = {
    f"asks for 'trainer.is_last_batch'{NOT_PROVIDED}": times(lambda self: 3 if self.trainer.is_last_batch else 1),
    f"sets 'trainer.should_stop'{NOT_FOLLOWED}": times(lambda self: setattr(self.trainer, "should_stop", True) or 1),
    f"overrides 'on_train_batch_end', {SHARED_HOOK}": variant(on_train_batch_end=lambda self, *_: None),
    f"overrides 'optimizer_step'{NOT_FOLLOWED}": variant(optimizer_step=lambda self, *_: None),
    "overrides 'teardown'": variant(teardown=lambda self, stage: None),
    "builds its networks in 'setup' ... in '__init__', or set ... 'trainer'": variant(setup=lambda self, stage: None),
    "optimizes manually": variant(automatic_optimization=property(lambda self: False, lambda self, _: None)),
    "configures LBFGS, but ... only one of SGD, ... 'trainer'": optimized(optim.LBFGS),
    "configures no optimizer": variant(configure_optimizers=lambda self: None),
    "ReduceLROnPlateau would need": scheduled(optim.lr_scheduler.ReduceLROnPlateau, monitor="train_loss"),
    "called random operation ... 'trainer'": stepping(lambda self, x, y, _: LOSS(self(x + torch.randn_like(x)), y)),
    "draws random numbers from torch, NumPy": times(lambda self: np.random.rand()),
    "draws random numbers from torch, NumPy or Python's random": times(lambda self: random.random()),
    "The 'on_train_epoch_end' of Variant draws random numbers": hooked(lambda self: self.log("drawn", torch.rand(()))),
    "calling .item()": times(lambda self: self.net[0].weight.sum().item()),
    "It looks like you're either (1) calling .item()": stepping(asking_late),
    "returns no loss": stepping(lambda self, x, y, i: None if i else LOSS(self(x), y)),
    "Cannot stack the training_step": stepping(percent),
    "depends on batch_idx": stepping(lambda self, x, y, i: LOSS(self(F.dropout(x, 0.8 if i % 2 else 0.1)), y)),
    "computes a MulticlassAccuracy ... Log the metric itself": stepping(computing),
    "has no gradient": stepping(lambda self, x, y, _: LOSS(self(x).detach(), y)),
    "registered hooks": optimized(clamped),
    "do not support alpha dropout": stepping(lambda self, x, y, _: LOSS(self(F.alpha_dropout(x, 0.5, training=True)), y)),
    "do not support AlphaDropout": adding(lambda: nn.AlphaDropout(0.1)),
    "setting 'tensor.data'": stepping(setting_data),
    "Cannot stack the training_step of Variant ... Set 'federation.local.engine'": stepping(
        lambda self, x, y, _: LOSS(checkpoint(self.net, x, use_reentrant=False), y)
    ),
    "changes its batch in place": stepping(lambda self, x, y, _: LOSS(self(x.mul_(2)), y)),
    "changes 'net.0.weight' in place": stepping(shrinking),
    "'stacked_hooks' of Variant names 'on_after_backward', which": hooked(lambda self: None, "on_after_backward"),
    "contains a ProximalLoss ... 'federation.local.proximal_mu'": lambda: fl.ClassificationTask(network(), CLASSES, PULLED),
}


def on(engine: Any, words: str, module: Any = Plain, parts: Any = None, **local: Any) -> Refusal:
    return fits(words, module=module, local=fl.LocalTraining(engine=engine, **local), **(parts or {}))


TWICE = {"max_epochs": 2}
AGAIN = "returns another loss when it runs again ( ... , then ... stacked clients would share ... 'trainer'"
STACKED = [
    *(
        on("stacked", f"of Variant changes '{name}' or what it ... clients would share. Set ... 'trainer'", module, **TWICE)
        for name, module in CHANGED
    ),
    *(on("stacked", f"of Variant {AGAIN}", module, **TWICE) for module in OTHER_LOSS),
    *(on("stacked", words, module, **TWICE) for words, module in MODULES.items()),
]
INSTEAD = ", which the engine 'fabric' of local training does not {}. Set 'federation.local.engine' to 'trainer'."
UNFOLLOWED, UNPROVIDED = INSTEAD.format("follow"), INSTEAD.format("provide")
FABRIC: dict[str, Any] = {
    f"optimizes manually ... {UNFOLLOWED}": variant(automatic_optimization=property(lambda self: False, lambda self, _: None)),
    f"overrides 'backward'{UNFOLLOWED}": variant(backward=lambda self, loss: loss.backward()),
    f"takes 'dataloader_iter'{UNFOLLOWED}": variant(training_step=lambda self, dataloader_iter: None),
    "returns 0 optimizers ... or set 'federation.local.engine'": variant(configure_optimizers=lambda self: None),
    "overrides 'log'": variant(log=lambda self, *_, **__: None),
    f"sets 'trainer.max_steps'{UNFOLLOWED}": variant(on_train_start=lambda self: setattr(self.trainer, "max_steps", 3)),
    f"asks for 'trainer.strategy.reduce'{UNPROVIDED}": variant(on_train_start=lambda self: self.trainer.strategy.reduce(1)),
    # what a Trainer would not take either
    "returns 2 optimizers": variant(configure_optimizers=lambda self: [SGD(self.net[k].parameters(), 0.1) for k in (0, 2)]),
    "returns a dict without a loss": stepping(lambda self, x, y, _: {"output": 1}),
    "returns a float without a loss": stepping(lambda self, x, y, _: 1.0),
    "does not call its closure": variant(optimizer_step=lambda self, *_: None),
    "is logged as 15 numbers": stepping(lambda self, x, y, _: self.log("a", self(x))),
    "with the reduction 'median'": stepping(lambda self, x, y, _: self.log("a", 1.0, reduce_fx="median")),
}
COMPILED: dict[str, Any] = {
    "uses its batch_idx": lambda self, x, y, i: LOSS(self(x), y) * (i + 1),
    "reads the epoch": lambda self, x, y, _: LOSS(self(x), y) * (self.current_epoch + 1),
    "or the optimizer": lambda self, x, y, _: LOSS(self(x), y) * self.optimizers().param_groups[0]["lr"],
    "of steps or batches": lambda self, x, y, _: LOSS(self(x), y) / self.trainer.num_training_batches,
}
COMPILED_LOSS = torch.compile(LOSS, backend="eager")


class Unchanged(fl.ClientRule):
    def begin(self, start):
        return [torch.zeros_like(parameter) for parameter in start.parameters]


class EverySecond(Unchanged):
    """All clients of a stack share the rule's call, so it would be off for all of them."""

    calls = 0

    def begin(self, start):
        self.calls += 1
        return super().begin(start) if self.calls % 2 else []


class Own(fl.FedAvg):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def client_rule(self):
        return self.rule


def ignored(method: str) -> Refusal:
    rule = type("Changed", (Unchanged,), {method: True if method == "own_model" else lambda self, *_: None})()
    words = f"Changed, ... '{method}', which stacked clients ignore. Set ... 'fabric'"
    return on("stacked", words, parts={"strategy": Own(rule)})


HEAD = fl.PersonalPart(names="net.2.*")
PARTS = {
    "EverySecond.begin ... some clients ... 'fabric'": {"strategy": Own(EverySecond()), "partitioner": Consecutive((20, 20))},
    "do not support OwnModel": {"strategy": fl.Ditto()},
    "do not support Phases": {"strategy": fl.FedBABU(), "personal": [HEAD]},
}
RULES = ("loss_term", "join_optimizers", "sends", "keeps_model", "figures", "resting", "own_model")
COMPILED_TWICE = stepping(lambda self, x, y, _: COMPILED_LOSS(self(x), y))
ENGINE = [
    *(on("fabric", words, module) for words, module in FABRIC.items()),
    on("fabric", "'federation.local.limit_train_batches' is 0.01", limit_train_batches=0.01),
    on("fabric", "StochasticWeightAveraging asks", progress="round", callbacks=[StochasticWeightAveraging(0.1)]),
    on("fabric", "GradientAccumulationScheduler sets", progress="round", callbacks=[GradientAccumulationScheduler({0: 2})]),
    on("stacked", "detect_anomaly", detect_anomaly=True),
    on("stacked", "callbacks", callbacks=[L.Callback()]),
    on("stacked", "precision", precision="bf16-mixed"),
    on("stacked", "'federation.local.optimizer_state' (kept)", optimizer_state="kept"),
    *(on("stacked", f"... {words}", stepping(step), compile=True) for words, step in COMPILED.items()),
    on("stacked", "dynamo-optimized function ... set 'federation.local.compile' to false", COMPILED_TWICE, compile=True),
    *(ignored(method) for method in RULES),
    *(on("stacked", words, parts=parts) for words, parts in PARTS.items()),
]


REFUSALS = [*STACKED, *ENGINE]
