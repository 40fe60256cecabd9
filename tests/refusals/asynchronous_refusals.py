"""Asynchronous rounds and the simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from engine_runs import variant
from federations import Plain
from refusing import Refusal, fitting
from torch import nn

from fl_lightning import (
    ALIE,
    Asynchronous,
    Attackers,
    Availability,
    ClientError,
    ClientPrivacy,
    Clock,
    Faults,
    FedAsync,
    FedAvg,
    FedBuff,
    FedCyclic,
    FedDyn,
    FedNova,
    LocalTraining,
    PartialWork,
    Scaffold,
    SecureAggregation,
    TransferLearning,
)

UNIFORM = Availability(clock=Clock("uniform"))
BUFFER = "'federation.asynchronous.buffer'"


def asynchronous(**settings: Any) -> Callable[[], Any]:
    return fitting(**{"asynchronous": Asynchronous(3, 2), **settings})


class Sends(FedAvg):
    def broadcast(self) -> Any:
        return {"more": torch.zeros(67)}


class Everyone(FedAvg):
    needs_all_clients = True


class Following(Plain):
    """A target follows the network."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Linear(4, 8).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.target.weight.data = self.target.weight.data * 0.9
        return super().training_step(batch, batch_idx)


Thawing = variant(configure_callbacks=lambda self: [TransferLearning(["net.0"], thaw_after=1)])


REFUSALS = [
    Refusal(
        lambda: Asynchronous(0), "'federation.asynchronous.concurrency' must be a fraction above 0 and at most 1.0, or a whole"
    ),
    Refusal(lambda: Asynchronous(1.5), "'federation.asynchronous.concurrency' must be ..., but is 1.5"),
    Refusal(lambda: Asynchronous(buffer=0), f"{BUFFER} must be a whole number of 1 or above, but is 0"),
    Refusal(lambda: Asynchronous(buffer=2.5), "Asynchronous: 'buffer' must be a whole number, but is 2.5"),
    Refusal(lambda: Clock("normal"), "'between_clients' must be 'constant' or 'uniform' or 'exponential'"),
    Refusal(lambda: Clock(between_jobs="x"), "'between_jobs' must be 'constant' or"),
    Refusal(lambda: Clock(ticks=0), "'federation.availability.clock.ticks' must be a whole number of 1 or above, but is 0"),
    Refusal(lambda: FedAsync(alpha=0), "'federation.strategy.alpha' must be above 0 and at most 1"),
    Refusal(lambda: FedAsync(staleness="linear"), "'federation.strategy.staleness' must be one of constant, polynomial, hinge"),
    Refusal(lambda: FedAsync(mixes="both"), "'federation.strategy.mixes' must be models or changes"),
    Refusal(lambda: FedBuff(a=-1), "'federation.strategy.a' must be 0 or above"),
    Refusal(lambda: FedBuff(b=-1), "'federation.strategy.b' must be a whole number of 0 or above"),
    Refusal(lambda: FedBuff(lr=0), "'federation.strategy.lr' must be above 0"),
    Refusal(lambda: FedBuff(momentum=1), "'federation.strategy.momentum' must be at least 0 and below 1"),
    Refusal(
        asynchronous(asynchronous=Asynchronous(4)),
        "'federation.asynchronous.concurrency' must be a number of clients from 1 to 3",
    ),
    Refusal(
        asynchronous(asynchronous=Asynchronous(2, 4)),
        f"{BUFFER} must be at most 3, because each of the 3 clients has at most one",
    ),
    *(
        Refusal(
            asynchronous(strategy=strategy()), f"{strategy.__name__} needs each client to train from the current global model"
        )
        for strategy in (FedNova, Scaffold, FedDyn)
    ),
    Refusal(
        asynchronous(route=FedCyclic()), "On the route FedCyclic clients wait for each other, but 'federation.asynchronous'"
    ),
    Refusal(
        asynchronous(strategy=FedAsync(), asynchronous=Asynchronous(3, 2)), f"mixes every update ... {BUFFER} is 2. Set it to 1"
    ),
    Refusal(
        asynchronous(clients_per_round=2), "'federation.clients_per_round' (2) is the size ..., but ... no round draws a cohort"
    ),
    Refusal(
        asynchronous(secure_aggregation=SecureAggregation()),
        "'federation.secure_aggregation' lets the clients of a round agree on masks, but with",
    ),
    Refusal(
        asynchronous(strategy=FedAvg("uniform"), transforms=[ClientPrivacy(1.0, 1.0)]),
        "ClientPrivacy with noise at the server needs cohorts ... drawn from all clients, but ... Set its",
    ),
    Refusal(
        asynchronous(local=LocalTraining(max_epochs=2, partial_work=PartialWork(0.5))),
        "'federation.local.partial_work' needs ..., but ... no round draws",
    ),
    Refusal(
        asynchronous(attackers=Attackers(clients=[1], model=ALIE())),
        "'federation.attackers.model' ALIE reads the honest changes of a whole round, but with",
    ),
    Refusal(
        asynchronous(faults=Faults("skip", min_updates=3)),
        "'federation.faults.min_updates' must be at most the 2 clients of a round",
    ),
    *(
        Refusal(
            fitting(strategy=strategy()),
            f"{strategy.__name__} combines updates of asynchronous rounds, ... Set 'federation.asynchronous",
        )
        for strategy in (FedBuff, FedAsync)
    ),
    Refusal(
        fitting(route=FedCyclic(), availability=Availability(clock=Clock())),
        "On the route FedCyclic clients wait for each other, but 'federation.availability.clock' does not simulate",
    ),
    Refusal(
        asynchronous(strategy=FedBuff(), server_optimizer=lambda p: torch.optim.Adam(p)),
        "FedBuff has its own server optimizer, but 'federation.server_optimizer' is also set",
    ),
    Refusal(asynchronous(strategy=Sends()), "Sends sends tensors with each model ('broadcast'), which belong to the"),
    Refusal(asynchronous(strategy=Everyone()), "Everyone needs every client in every round, but with 'federation.asynchro"),
    Refusal(
        asynchronous(module=Following, strategy=FedBuff()),
        "Training changes 'target.weight', ..., but 'federation.asynchronous'",
    ),
    Refusal(
        asynchronous(module=Thawing, rounds=3, asynchronous=Asynchronous(3, 1), availability=UNIFORM),
        "changed since round 0, for example 'net.0...', but asynchronous clients still",
    ),
    Refusal(
        asynchronous(asynchronous=Asynchronous(3, 3), availability=Availability(drop_out=0.999), strategy=FedBuff()),
        "Round 0: 0 updates can arrive, but a new model needs 1. Lower ..., or lower 'drop_out'",
        ClientError,
    ),
]
