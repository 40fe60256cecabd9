"""FedRep and FedBABU: clients train a head of their own and a common representation one after the other, or never the head."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from against_hand import assert_close
from by_hand import LR, B, World
from federations import SIZES, Blobs, Consecutive, Plain, client_scores, trainer, weights
from torch.nn import functional as F

from fl_lightning import (
    ClientEvaluation,
    FedBABU,
    FederatedDataModule,
    FederatedOrchestrator,
    FedRep,
    LocalTraining,
    PersonalPart,
)

HEAD = [PersonalPart(names="net.3.*")]


def fit(optimizer=None, data=None, **settings):
    torch.manual_seed(3)
    module = Plain(lr=LR, batchnorm=True).double()
    if optimizer:
        module.configure_optimizers = lambda: optimizer(module.parameters())
    federation = FederatedOrchestrator(**settings)
    run = trainer(3, federation, precision="64-true")
    run.fit(module, FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(), **(data or {})))
    return module, federation


def by_hand(phases, mu=0.0, decay=0.0):
    """Every client's network; ``phases`` says for each local epoch whether it trains the head (True) or the rest.

    The rest is pulled to the start of the round with strength ``mu``; what trains decays.
    """
    torch.manual_seed(3)
    start, world = Plain(lr=LR, batchnorm=True).double().net, World(torch.float64)
    clients = [copy.deepcopy(start) for _ in SIZES]
    for _ in range(3):
        for net, part in zip(clients, world.parts, strict=True):
            x, y = world.x[part], world.y[part]
            anchors = {name: p.detach().clone() for name, p in net.named_parameters()}
            for trains_head in phases:
                named = [(name, p) for name, p in net.named_parameters() if name.startswith("3.") is trains_head]
                chosen = [p for _, p in named]
                for begin in range(0, len(x), B):
                    loss = F.cross_entropy(net.train()(x[begin : begin + B]), y[begin : begin + B])
                    gradients = torch.autograd.grad(loss, chosen)
                    with torch.no_grad():
                        for (name, p), gradient in zip(named, gradients, strict=True):
                            pull = 0.0 if trains_head else mu * (p - anchors[name])
                            p -= LR * (gradient + pull + decay * p)
        states = [net.state_dict() for net in clients]
        for name in states[0]:
            if name.startswith("3."):
                continue
            stacked = torch.stack([state[name].double() for state in states])
            share = torch.tensor(SIZES, dtype=torch.float64).view(-1, *(1 for _ in stacked.shape[1:])) / sum(SIZES)
            shared = (share * stacked).sum(0) if states[0][name].is_floating_point() else stacked.amax(0)
            for state in states:
                state[name].copy_(shared)
    return clients


@pytest.mark.parametrize(
    ("strategy", "phases"), [(FedRep(2), (True, True, False)), (FedBABU(), (False, False, False))], ids=["fedrep", "fedbabu"]
)
def test_each_epoch_trains_one_part(strategy, phases):
    module, federation = fit(strategy=strategy, personal=HEAD, local=LocalTraining(max_epochs=3))
    for client, net in enumerate(by_hand(phases)):
        own = federation._run.memory.held(client)
        mine = weights(module.net) | {name.removeprefix("net."): tensor for name, tensor in own.items()}
        assert_close(net.state_dict(), mine)


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_part_that_rests_does_not_decay_with_a_proximal_term(engine):
    local = LocalTraining(max_epochs=3, engine=engine, proximal_mu=0.5)
    decaying = partial(torch.optim.SGD, lr=LR, weight_decay=0.3)
    _, federation = fit(strategy=FedRep(2), personal=HEAD, local=local, optimizer=decaying)
    for client, net in enumerate(by_hand((True, True, False), mu=0.5, decay=0.3)):
        own = federation._run.memory.held(client)
        assert_close(net[3].state_dict(), {name.removeprefix("net.3."): tensor for name, tensor in own.items()}, 1e-11)


def test_fine_tuning_trains_the_head_of_fedbabu():
    evaluation = ClientEvaluation(1, "val_loss", personal_epochs=5)
    _, federation = fit(strategy=FedBABU(), personal=HEAD, data={"client_test": 0.3}, client_evaluation=evaluation)
    before = client_scores(federation)[2]
    with open("client_comparison.csv") as file:
        rows = [line.split(",") for line in file.read().splitlines()]
    after = torch.tensor([float(row[rows[0].index("personalised")]) for row in rows[1:4]])
    assert (after < before - 0.01).all()
