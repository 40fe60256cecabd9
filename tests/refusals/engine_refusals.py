"""What the engine ``fabric`` cannot honour, and which settings, rules and strategies stacked clients have no form for."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from engine_runs import stepping, variant
from federations import Consecutive, Plain
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from refusing import Refusal, fitting
from torch.nn import functional as F
from torch.optim import SGD

from fl_lightning import APFL, MOON, ClientRule, Ditto, FedAvg, FedBABU, LocalTraining, PersonalPart, PFedMe

LOSS = F.cross_entropy


def on(engine: Any, words: str, module: Any = Plain, parts: Any = None, **local: Any) -> Refusal:
    return Refusal(fitting(module=module, local=LocalTraining(engine=engine, **local), **(parts or {})), words)


def starting(change: Any) -> Any:
    return variant(on_train_start=change)


def takes_iterator(self, dataloader_iter):
    return LOSS(self(next(dataloader_iter)[0][0]), torch.zeros(5, dtype=torch.int64))


INSTEAD = ", which the engine 'fabric' of local training does not {}. Set 'federation.local.engine' to 'trainer'."
NOT_FOLLOWED, NOT_PROVIDED = INSTEAD.format("follow"), INSTEAD.format("provide")
FABRIC: dict[str, Any] = {
    f"optimizes manually ... {NOT_FOLLOWED}": variant(
        automatic_optimization=property(lambda self: False, lambda self, _: None)
    ),
    f"overrides 'backward'{NOT_FOLLOWED}": variant(backward=lambda self, loss: loss.backward()),
    "overrides 'configure_gradient_clipping'": variant(configure_gradient_clipping=lambda self, *_: None),
    f"takes 'dataloader_iter'{NOT_FOLLOWED}": variant(training_step=takes_iterator),
    "returns 0 optimizers ... or set 'federation.local.engine'": variant(configure_optimizers=lambda self: None),
    "overrides 'log'": variant(log=lambda self, *_, **__: None),
    f"sets 'trainer.max_steps'{NOT_FOLLOWED}": starting(lambda self: setattr(self.trainer, "max_steps", 3)),
    f"asks for 'trainer.strategy.reduce'{NOT_PROVIDED}": starting(lambda self: self.trainer.strategy.reduce(1)),
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


class Unchanged(ClientRule):
    def begin(self, start):
        return [torch.zeros_like(parameter) for parameter in start.parameters]


class EverySecond(Unchanged):
    """All clients of a stack share the rule's call, so it would be off for all of them."""

    calls = 0

    def begin(self, start):
        self.calls += 1
        return super().begin(start) if self.calls % 2 else []


class Own(FedAvg):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def client_rule(self):
        return self.rule


def ignored(method: str) -> Refusal:
    rule = type("Changed", (Unchanged,), {method: True if method == "own_model" else lambda self, *_: None})()
    words = f"Changed, ... '{method}', which stacked clients ignore. Set ... 'fabric'"
    return on("stacked", words, parts={"strategy": Own(rule)})


HEAD = PersonalPart(names="net.2.*")
PARTS = {
    "EverySecond.begin ... some clients ... 'fabric'": {"strategy": Own(EverySecond()), "partitioner": Consecutive((20, 20))},
    "do not support OwnModel": {"strategy": Ditto()},
    "do not support MoreauEnvelope": {"strategy": PFedMe()},
    "do not support ModelContrast": {"strategy": MOON("net.2")},
    "do not support Mixture": {"strategy": APFL()},
    "do not support Phases": {"strategy": FedBABU(), "personal": [HEAD]},
}
RULES = ("loss_term", "join_optimizers", "sends", "keeps_model", "figures", "resting", "own_model")
COMPILED_TWICE = stepping(lambda self, x, y, _: COMPILED_LOSS(self(x), y))
REFUSALS = [
    Refusal(lambda: LocalTraining(stack_size=0), "'federation.local.stack_size'"),
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
