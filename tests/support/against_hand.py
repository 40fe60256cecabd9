"""Federations beside the same algorithm by hand: what the tests of strategies, routes and transforms share."""

import copy

import lightning as L
import numpy as np
import torch
from by_hand import LR, World, build
from federations import SIZES, Blobs, Consecutive, Plain, client_scores, federate, trainer, weights
from torch.nn import functional

import fl_lightning as fl
from fl_lightning.types import RoundStart, Snapshot

ROUNDS = 3


class Updates(fl.FederationCallback):
    """Keeps what the clients of each round did."""

    def __init__(self):
        self.rounds = []

    def on_aggregated(self, trainer, pl_module, updates):
        self.rounds.append(updates)


def assert_follows(
    dtype,
    step,
    *,
    world=None,
    data=None,
    batchnorm=True,
    momentum=0.0,
    local=None,
    tolerance=1e-11,
    rounds=ROUNDS,
    kind=Plain,
    **settings,
):
    """Run a federation for some rounds and the same by hand; ``step(net, world, t)`` gives the next global network."""
    L.seed_everything(3, verbose=False)
    module = kind(lr=LR, batchnorm=batchnorm, momentum=momentum).to(dtype)
    by_hand = copy.deepcopy(module.net)
    updates = Updates()
    precision = "64-true" if dtype == torch.float64 else "32-true"
    data = data or fl.FederatedDataModule(Blobs(shuffle=False, dtype=dtype), Consecutive())
    federation = fl.FederatedOrchestrator(local=local or fl.LocalTraining(max_epochs=2), **settings)
    run = trainer(rounds, federation, updates, accelerator="cpu", precision=precision)
    run.fit(module, data)
    world = world or World(dtype)
    for t in range(rounds):
        by_hand = step(by_hand, world, t)
    tolerance = tolerance if dtype == torch.float64 else 5e-6
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=tolerance, atol=tolerance)
    return run, updates.rounds


def divided(sizes):
    """The world by hand and the data of clients of these sizes."""
    world = World(torch.float64, parts=np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    return {"world": world, "data": fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(sizes))}


def clients_of(net, world, **kwargs):
    return [world.train(net, k, **kwargs)[0] for k in range(len(world.parts))]


def final(dtype=torch.float64, batchnorm=True, sizes=SIZES, **settings):
    L.seed_everything(3, verbose=False)
    module = Plain(lr=LR, batchnorm=batchnorm).to(dtype)
    flags = {"precision": "64-true" if dtype == torch.float64 else "32-true"}
    data = Blobs(shuffle=False, dtype=dtype)
    federate(module, ROUNDS, data=data, partitioner=Consecutive(sizes), flags=flags, **settings)
    return weights(module.net)


def assert_close(one, other, tolerance=1e-11):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance)


def follow(dtype, step, **settings):
    """As ``assert_follows``, and return the federation."""
    run, _ = assert_follows(dtype, step, **settings)
    return next(callback for callback in run.callbacks if isinstance(callback, fl.FederatedOrchestrator))


def own_of(federation, client, like):
    """A client's own network, as it is kept."""
    found = federation._run.memory.last_model(client)
    size = sum(p.numel() for p in like.parameters())
    return build(like, found.vector[:size], found.vector[size:], found.counters)


def assert_evaluated_with_own_models(strategy):
    """The score on a client's test part is that of its own model, by hand."""
    torch.manual_seed(3)
    module = Plain(batchnorm=True).double()
    federation = fl.FederatedOrchestrator(strategy, client_evaluation=fl.ClientEvaluation(1, "val_loss"))
    data = fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(), client_test=0.3)
    trainer(1, federation, precision="64-true").fit(module, data)
    x, y = Blobs(dtype=torch.float64).train
    for client in range(3):
        rows, net = data.splits.test[client], own_of(federation, client, module.net).eval()
        with torch.no_grad():
            expected = float(functional.cross_entropy(net(x[rows]), y[rows]))
        torch.testing.assert_close(float(client_scores(federation)[0][client]), expected, rtol=1e-6, atol=0)


def combine(strategy, states, sizes=None):
    """What a joint strategy makes of the clients' states: the new state and the weights."""
    sizes = sizes or [3 + k for k in range(len(states))]
    strategy.start_round(RoundStart(0, tuple(range(len(states))), len(states), torch.zeros_like(states[0]), states[0].numel()))
    updates = [
        fl.ClientUpdate(k, 0, n, 1, model=Snapshot(state, torch.zeros(0)))
        for k, (state, n) in enumerate(zip(states, sizes, strict=True))
    ]
    result, weights = strategy.combine(updates, lambda models: [])
    return result.numpy(), weights
