"""Asynchronous rounds and the simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from engine_runs import variant
from federations import Plain
from refusing import Refusal, fitting
from torch import nn

import fl_lightning as fl

UNIFORM = fl.Availability(clock=fl.Clock("uniform"))
BUFFER = "'federation.asynchronous.buffer'"


def asynchronous(**settings: Any) -> Callable[[], Any]:
    return fitting(**{"asynchronous": fl.Asynchronous(3, 2), **settings})


class Sends(fl.FedAvg):
    def broadcast(self) -> Any:
        return {"more": torch.zeros(67)}


class Everyone(fl.FedAvg):
    needs_all_clients = True


class Following(Plain):
    """A target follows the network."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Linear(4, 8).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.target.weight.data = self.target.weight.data * 0.9
        return super().training_step(batch, batch_idx)


Thawing = variant(configure_callbacks=lambda self: [fl.TransferLearning(["net.0"], thaw_after=1)])


REFUSALS = [
    Refusal(lambda: fl.Asynchronous(buffer=0), f"{BUFFER} must be a whole number of 1 or above, but is 0"),
    Refusal(asynchronous(asynchronous=fl.Asynchronous(4)), "'federation.asynchronous.concurrency' must be a number of clients"),
    Refusal(
        asynchronous(asynchronous=fl.Asynchronous(2, 4)),
        f"{BUFFER} must be at most 3, because each of the 3 clients has at most one",
    ),
    *(
        Refusal(
            asynchronous(strategy=strategy()), f"{strategy.__name__} needs each client to train from the current global model"
        )
        for strategy in (fl.FedNova, fl.Scaffold, fl.FedDyn)
    ),
    Refusal(asynchronous(route=fl.FedCyclic()), "On the route FedCyclic clients wait for each other, but"),
    Refusal(
        asynchronous(strategy=fl.FedAsync(), asynchronous=fl.Asynchronous(3, 2)),
        f"mixes every update ... {BUFFER} is 2. Set it to 1",
    ),
    Refusal(asynchronous(clients_per_round=2), "'federation.clients_per_round' (2) is the size ..., but ... no round draws a"),
    Refusal(asynchronous(secure_aggregation=fl.SecureAggregation()), "'federation.secure_aggregation' lets the clients of a"),
    Refusal(
        asynchronous(strategy=fl.FedAvg("uniform"), transforms=[fl.ClientPrivacy(1.0, 1.0)]),
        "ClientPrivacy with noise at the server needs cohorts ... drawn from all clients, but ... Set its",
    ),
    Refusal(
        asynchronous(local=fl.LocalTraining(max_epochs=2, partial_work=fl.PartialWork(0.5))),
        "'federation.local.partial_work' needs ..., but ... no round draws",
    ),
    Refusal(asynchronous(attackers=fl.Attackers(clients=[1], model=fl.ALIE())), "'federation.attackers.model' ALIE reads the"),
    Refusal(asynchronous(faults=fl.Faults("skip", min_updates=3)), "'federation.faults.min_updates' must be at most the 2"),
    *(
        Refusal(
            fitting(strategy=strategy()),
            f"{strategy.__name__} combines updates of asynchronous rounds, ... Set 'federation.asynchronous",
        )
        for strategy in (fl.FedBuff, fl.FedAsync)
    ),
    Refusal(
        fitting(route=fl.FedCyclic(), availability=fl.Availability(clock=fl.Clock())),
        "On the route FedCyclic clients wait for each other, but 'federation.availability.clock' does not simulate",
    ),
    Refusal(
        asynchronous(strategy=fl.FedBuff(), server_optimizer=lambda p: torch.optim.Adam(p)),
        "FedBuff has its own server optimizer, but 'federation.server_optimizer' is also set",
    ),
    Refusal(asynchronous(strategy=Sends()), "Sends sends tensors with each model ('broadcast'), which belong to the"),
    Refusal(asynchronous(strategy=Everyone()), "Everyone needs every client in every round, but with 'federation.asynchro"),
    Refusal(asynchronous(module=Following, strategy=fl.FedBuff()), "Training changes 'target.weight', ..., but"),
    Refusal(
        asynchronous(module=Thawing, rounds=3, asynchronous=fl.Asynchronous(3, 1), availability=UNIFORM),
        "changed since round 0, for example 'net.0...', but asynchronous clients still",
    ),
    Refusal(
        asynchronous(asynchronous=fl.Asynchronous(3, 3), availability=fl.Availability(drop_out=0.999), strategy=fl.FedBuff()),
        "Round 0: 0 updates can arrive, but a new model needs 1. Lower ..., or lower 'drop_out'",
        fl.ClientError,
    ),
]
