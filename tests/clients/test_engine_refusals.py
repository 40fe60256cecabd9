"""What the engines ``fabric`` and ``stacked`` cannot honour, they refuse by name."""

from __future__ import annotations

import random
from typing import Any

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


LOSS = F.cross_entropy
NOT_STACKED: dict[str, Any] = {
    "'on_train_batch_end'": variant(on_train_batch_end=lambda self, *_: None),
    "'optimizer_step'": variant(optimizer_step=lambda self, *_: None),
    "'lr_scheduler_step'": variant(lr_scheduler_step=lambda self, *_: None),
    "'backward'": variant(backward=lambda self, loss: loss.backward()),
    "'setup'": variant(setup=lambda self, stage: None),
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
    ],
)
def test_what_would_be_compiled_as_a_constant_is_refused(step, what):
    with pytest.raises(ConfigurationError, match=r"'federation\.local\.compile'") as caught:
        trained("stacked", stepping(step), compile=True)
    assert what in str(caught.value)


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
