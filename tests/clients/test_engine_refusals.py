"""What the engines ``fabric`` and ``stacked`` cannot honour, they refuse by name."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from typing import Any, ClassVar

import lightning as L
import numpy as np
import pytest
import torch
from engine_runs import optimized, scheduled, stepping, trained, variant
from federations import CLASSES, Plain, network
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import nn, optim
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from fl_lightning import (
    ClassificationTask,
    ClientRule,
    ConfigurationError,
    CrossEntropy,
    FedAvg,
    LocalTraining,
    ProximalLoss,
)


def takes_iterator(self, dataloader_iter):
    return F.cross_entropy(self(next(dataloader_iter)[0][0]), torch.zeros(5, dtype=torch.int64))


def two(self):
    return [SGD(self.net[0].parameters(), 0.1), SGD(self.net[2].parameters(), 0.1)]


NOT_BY_FABRIC = {
    "optimizes manually": ({"automatic_optimization": property(lambda self: False, lambda self, _: None)}, {}),
    "'backward'": ({"backward": lambda self, loss: loss.backward()}, {}),
    "'configure_gradient_clipping'": ({"configure_gradient_clipping": lambda self, *_: None}, {}),
    "'dataloader_iter'": ({"training_step": takes_iterator}, {}),
    "0 optimizers": ({"configure_optimizers": lambda self: None}, {}),
    "'log'": ({"log": lambda self, *_, **__: None}, {}),
    "'trainer.max_steps'": ({"on_train_start": lambda self: setattr(self.trainer, "max_steps", 3)}, {}),
    "'trainer.strategy.reduce'": ({"on_train_start": lambda self: self.trainer.strategy.reduce(1)}, {}),
    "StochasticWeightAveraging": ({}, {"progress": "round", "callbacks": [lambda: StochasticWeightAveraging(0.1)]}),
    "GradientAccumulationScheduler": ({}, {"progress": "round", "callbacks": [lambda: GradientAccumulationScheduler({0: 2})]}),
}


@pytest.mark.parametrize("what", NOT_BY_FABRIC)
def test_what_fabric_cannot_honour_is_refused_by_name(what):
    methods, settings = NOT_BY_FABRIC[what]
    with pytest.raises(ConfigurationError, match=r"'federation\.local\.engine'") as caught:
        trained("fabric", variant(**methods), **settings)
    assert what in str(caught.value)


def test_a_share_of_less_than_one_batch_is_refused():
    with pytest.raises(ConfigurationError, match=r"'federation\.local\.limit_train_batches' is 0\.01"):
        trained("fabric", Plain, limit_train_batches=0.01)


MISTAKES = {
    "returns 2 optimizers": {"configure_optimizers": two},
    "returns a dict without a loss": {"training_step": lambda self, batch, batch_idx: {"output": 1}},
    "returns a float without a loss": {"training_step": lambda self, batch, batch_idx: 1.0},
    "does not call its closure": {"optimizer_step": lambda self, *_: None},
    "is logged as 15 numbers": {"training_step": lambda self, batch, batch_idx: self.log("a", self(batch[0]))},
    "with the reduction 'median'": {"training_step": lambda self, batch, batch_idx: self.log("a", 1.0, reduce_fx="median")},
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_that_a_trainer_would_not_take_either_are_named(what):
    with pytest.raises(ConfigurationError) as caught:
        trained("fabric", variant(**MISTAKES[what]))
    assert what in str(caught.value)


@pytest.mark.parametrize("setting", [{"engine": "nonsense"}, {"stack_size": 0}])
def test_settings_are_checked(setting):
    with pytest.raises(ConfigurationError, match=f"'federation.local.{next(iter(setting))}'"):
        LocalTraining(**setting)


LOSS = F.cross_entropy


def kept(self, x, y, batch_idx):
    """Carries a tensor from step to step that is no buffer."""
    logits = self(x)
    self.mean = getattr(self, "mean", 0) * 0.9 + logits.detach().mean(0)
    return F.cross_entropy(logits - self.mean, y)


def by_parity(self, x, y, batch_idx):
    return F.cross_entropy(self(F.dropout(x, 0.5) if batch_idx % 2 else x), y)


def counting(self, x, y, batch_idx):
    self.steps = getattr(self, "steps", 0) + 1
    return F.cross_entropy(self(x), y)


def computing(self, x, y, batch_idx):
    self.train_acc.update(self(x), y)
    self.log("now", self.train_acc.compute())
    return F.cross_entropy(self(x), y)


def clamped(parameters):
    optimizer = SGD(parameters, 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def percent(self, x, y, batch_idx):
    logits = self(x)
    self.log("percent", 100 * self.train_acc(logits, y))
    return F.cross_entropy(logits, y)


def alpha(self, x, y, batch_idx):
    return F.cross_entropy(self(F.alpha_dropout(x, 0.5, training=True)), y)


def setting_data(self, x, y, batch_idx):
    """Under vmap this can end the process."""
    kept = torch.zeros(8)
    kept.data = self.net[0].bias * 0.1
    return F.cross_entropy(self(x), y)


def held(make: Any, use: Any) -> Any:
    """A module that holds an object, with which each step changes the loss."""

    def build(self):
        Plain.__init__(self)
        self.held = make()

    return variant(__init__=build, training_step=lambda self, batch, _: LOSS(self(batch[0]), batch[1]) * use(self.held))


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
        self._calls = {"n": 0}

    def forward(self, x):
        return x * add(self._calls)


def add(counts):
    counts["n"] += 1
    return 1 + 0.1 * counts["n"]


def append(values):
    values.append(1)
    return 1 + 0.1 * len(values)


def raise_all(array):
    array += 1
    return 1 + 0.1 * float(array[0])


def closure():
    counts = {"n": 0}
    return lambda: add(counts)


def counting_up():
    number = 1.0
    while True:
        number += 0.1
        yield number


def with_default(self, batch, batch_idx, counts={"n": 0}):  # noqa: B006
    return LOSS(self(batch[0]), batch[1]) * add(counts)


def later(change: Any) -> Any:
    """A module whose third batch changes something, which the trial of the first does not see."""

    def step(self, x, y, batch_idx):
        if batch_idx == 2:
            change(self)
        return LOSS(self(x), y)

    return variant(training_step=lambda self, batch, batch_idx: step(self, *batch, batch_idx), outputs=[])


def in_a_hook(change: Any) -> Any:
    return variant(on_train_epoch_end=change, stacked_hooks=("on_train_epoch_end",))


def collecting(self, x, y, batch_idx):
    loss = LOSS(self(x), y)
    self.outputs.append(loss)
    return loss


def averaging(self):
    self.log("mean", torch.stack(self.outputs).mean())


GLOBAL = {"n": 0}
SHARED = {
    "dictionary": held(lambda: {"n": 0}, add),
    "list": held(list, append),
    "deque": held(deque, append),
    "array": held(lambda: np.zeros(1), raise_all),
    "object": held(Counter, lambda counter: counter()),
    "count": held(itertools.count, next),
    "default_rng": held(lambda: np.random.default_rng(0), lambda rng: rng.random()),
    "RandomState": held(lambda: np.random.RandomState(0), lambda rng: rng.rand()),
    "random.Random": held(lambda: random.Random(0), lambda rng: rng.random()),
    "closure": held(closure, lambda count: count()),
    "generator": held(counting_up, next),
    "class of an object": held(Counter, lambda counter: append(counter.seen)),
    "part": variant(__init__=lambda self: [Plain.__init__(self), self.net.append(Scaling())][0]),
    "class": variant(seen=[], training_step=lambda self, b, _: LOSS(self(b[0]), b[1]) * append(self.seen)),
    "default argument": variant(training_step=with_default),
    "global": stepping(lambda self, x, y, _: LOSS(self(x), y) * add(GLOBAL)),
    "hyperparameters": stepping(lambda self, x, y, _: LOSS(self(x), y) * add(self.hparams.setdefault("counts", {"n": 0}))),
    "later": later(lambda self: setattr(self, "late", 1)),
    "mode later": later(lambda self: self.net.eval()),
    "hook": in_a_hook(lambda self: setattr(self, "epochs", getattr(self, "epochs", 0) + 1)),
    "freezing hook": variant(
        on_train_epoch_start=lambda self: self.net[0].requires_grad_(self.current_epoch == 1),
        stacked_hooks=("on_train_epoch_start",),
    ),
    "hook that sets a weight": in_a_hook(lambda self: nn.init.zeros_(self.net[0].bias)),
    "first hook": variant(on_fit_start=lambda self: append(self.seen), seen=[], stacked_hooks=("on_fit_start",)),
    "outputs": variant(stepping(collecting), outputs=[], on_train_epoch_end=averaging, stacked_hooks=("on_train_epoch_end",)),
    "outputs later": variant(
        later(lambda self: collecting(self, torch.ones(5, 4), torch.zeros(5).long(), 0)),
        on_train_epoch_end=averaging,
        stacked_hooks=("on_train_epoch_end",),
    ),
}
"""State outside tensors, which one call of the step for all clients would change for all."""


@pytest.mark.parametrize("where", SHARED)
def test_state_that_stacked_clients_would_share_is_refused(where):
    seen = r"(changes '.*'|returns another loss when it runs again)"
    with pytest.raises(ConfigurationError, match=rf"of Variant {seen}.* stacked clients would share.*\. Set .* 'trainer'"):
        trained("stacked", SHARED[where])


def test_numbers_drawn_in_a_hook_are_refused():
    with pytest.raises(ConfigurationError, match="The 'on_train_epoch_end' of Variant draws random numbers from torch"):
        trained("stacked", in_a_hook(lambda self: self.log("drawn", torch.rand(()))))


def test_a_step_that_depends_on_a_clock_is_refused(monkeypatch):
    clock = itertools.count(1)
    monkeypatch.setattr(time, "time", lambda: next(clock))  # reached through a module, whose content does not count
    with pytest.raises(ConfigurationError, match=r"returns another loss when it runs again \(.*, then .*\).*'trainer'"):
        trained("stacked", stepping(lambda self, x, y, _: LOSS(self(x), y) * time.time()))


OF_ONE_CLIENT = {
    "asks for 'trainer.is_last_batch'": lambda trainer: 3 if trainer.is_last_batch else 1,
    "asks for 'trainer.callback_metrics'": lambda trainer: 1 + len(trainer.callback_metrics),
    "asks for 'trainer.datamodule'": lambda trainer: len(trainer.datamodule.train_dataloader()),
    "asks for 'trainer.callbacks'": lambda trainer: 1 + len(trainer.callbacks),
    "sets 'trainer.should_stop'": lambda trainer: [1, setattr(trainer, "should_stop", True)][0],
}


@pytest.mark.parametrize("what", OF_ONE_CLIENT)
def test_what_a_stacked_step_cannot_know_of_its_trainer_is_refused(what):
    with pytest.raises(ConfigurationError, match=r"The module .* Set 'federation.local.engine' to 'trainer'") as caught:
        trained("stacked", stepping(lambda self, x, y, _: LOSS(self(x), y) * OF_ONE_CLIENT[what](self.trainer)))
    assert what in str(caught.value)


def shrinking(self, x, y, batch_idx):
    with torch.no_grad():
        self.net[0].weight.mul_(0.9)
    return LOSS(self(x), y)


def totalling(self, x, y, batch_idx):
    self.total.add_(1)
    return LOSS(self(x), y) / self.total


def asking_late(self, x, y, batch_idx):
    loss = LOSS(self(x), y)
    return loss * loss.item() if batch_idx == 2 else loss


NOT_STACKED: dict[str, Any] = {
    "'on_train_batch_end'": variant(on_train_batch_end=lambda self, *_: None),
    "'optimizer_step'": variant(optimizer_step=lambda self, *_: None),
    "'lr_scheduler_step'": variant(lr_scheduler_step=lambda self, *_: None),
    "'backward'": variant(backward=lambda self, loss: loss.backward()),
    "'setup'": variant(setup=lambda self, stage: None),
    "'teardown'": variant(teardown=lambda self, stage: None),
    "optimizes manually": variant(automatic_optimization=property(lambda self: False, lambda self, _: None)),
    "LBFGS": optimized(optim.LBFGS),
    "no optimizer": variant(configure_optimizers=lambda self: None),
    "ReduceLROnPlateau": scheduled(optim.lr_scheduler.ReduceLROnPlateau, monitor="train_loss"),
    "random operation": stepping(lambda self, x, y, _: LOSS(self(x + torch.randn_like(x)), y)),
    "NumPy": stepping(lambda self, x, y, _: LOSS(self(x), y) * np.random.rand()),
    "Python's random": stepping(lambda self, x, y, _: LOSS(self(x), y) * random.random()),
    ".item()": stepping(lambda self, x, y, _: LOSS(self(x), y) * self.net[0].weight.sum().item()),
    "returns no loss": stepping(lambda self, x, y, i: None if i else LOSS(self(x), y)),
    "changes 'mean'": stepping(kept),
    "changes 'steps'": stepping(counting),
    "Cannot stack the training_step": stepping(percent),
    "depends on batch_idx, which stacked clients do not support": stepping(by_parity),
    "depends on batch_idx": stepping(lambda self, x, y, i: LOSS(self(F.dropout(x, 0.8 if i % 2 else 0.1)), y)),
    "computes a MulticlassAccuracy": stepping(computing),
    "has no gradient": stepping(lambda self, x, y, _: LOSS(self(x).detach(), y)),
    "registered hooks": optimized(clamped),
    "alpha dropout": stepping(alpha),
    "setting 'tensor.data'": stepping(setting_data),
    "saved tensor hooks": stepping(lambda self, x, y, _: LOSS(checkpoint(self.net, x, use_reentrant=False), y)),
    "changes its batch in place": stepping(lambda self, x, y, _: LOSS(self(x.mul_(2)), y)),
    "changes 'net.0.weight' in place": stepping(shrinking),
    "changes 'Variant.total'": variant(stepping(totalling), total=torch.zeros(())),
    "It looks like you're either (1) calling .item()": stepping(asking_late),
    "'stacked_hooks' of Variant names 'on_after_backward', which": variant(
        on_after_backward=lambda self: None, stacked_hooks=("on_after_backward",)
    ),
    "AlphaDropout": variant(__init__=lambda self: [Plain.__init__(self), self.net.append(nn.AlphaDropout(0.1))][0]),
    "ProximalLoss": lambda: ClassificationTask(network(), CLASSES, ProximalLoss(CrossEntropy(), 0.1)),
}


@pytest.mark.parametrize("what", NOT_STACKED)
def test_modules_without_a_stacked_form_are_refused_by_name(what):
    with pytest.raises(ConfigurationError, match=r"fabric|trainer|self\.log") as caught:
        trained("stacked", NOT_STACKED[what])
    assert what in str(caught.value)


@pytest.mark.parametrize("setting", [{"detect_anomaly": True}, {"callbacks": [L.Callback]}, {"precision": "bf16-mixed"}])
def test_settings_without_a_stacked_form_are_refused_by_name(setting):
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        trained("stacked", Plain, **setting)


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (lambda self, x, y, i: LOSS(self(x), y) * (i + 1), "uses its batch_idx"),
        (lambda self, x, y, _: LOSS(self(x), y) * (self.current_epoch + 1), "reads the epoch"),
        (lambda self, x, y, _: LOSS(self(x), y) * self.optimizers().param_groups[0]["lr"], "or the optimizer"),
        (lambda self, x, y, _: LOSS(self(x), y) / self.trainer.num_training_batches, "of steps or batches"),
    ],
)
def test_what_would_be_compiled_as_a_constant_is_refused(step, what):
    with pytest.raises(ConfigurationError, match=r"'federation\.local\.compile'") as caught:
        trained("stacked", stepping(step), compile=True)
    assert what in str(caught.value)


def test_a_compiled_loss_in_a_compiled_step_is_refused():
    loss = torch.compile(LOSS, backend="eager")
    with pytest.raises(ConfigurationError, match=r"dynamo-optimized function.*Or set 'federation\.local\.compile' to false"):
        trained("stacked", stepping(lambda self, x, y, _: loss(self(x), y)), compile=True)


class Unchanged(ClientRule):
    def begin(self, start):
        return [torch.zeros_like(parameter) for parameter in start.parameters]


class Own(FedAvg):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def client_rule(self):
        return self.rule


@pytest.mark.parametrize("method", ["loss_term", "join_optimizers", "sends", "keeps_model", "figures", "resting", "own_model"])
def test_rules_that_stacked_clients_would_ignore_are_refused_by_name(method):
    changed = True if method == "own_model" else lambda self, *_: None
    rule = type("Changed", (Unchanged,), {method: changed})()
    with pytest.raises(ConfigurationError, match=rf"Changed, .* '{method}', which stacked clients ignore\. Set .*'fabric'"):
        trained("stacked", Plain, server={"strategy": Own(rule)})


def test_a_rule_that_is_off_for_some_of_the_stacked_clients_is_refused():
    """All clients of a stack share the rule's call, so it would be off for all of them."""

    class EverySecond(Unchanged):
        calls = 0

        def begin(self, start):
            self.calls += 1
            return super().begin(start) if self.calls % 2 else []

    with pytest.raises(ConfigurationError, match=r"EverySecond\.begin .*some clients.*'fabric'"):
        trained("stacked", Plain, server={"strategy": Own(EverySecond())}, sizes=(20, 20))
