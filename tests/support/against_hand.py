"""Federations beside the same algorithm by hand: what the tests of strategies, routes and transforms share."""

import copy

import lightning as L
import numpy as np
import torch
from by_hand import LR, World, averaged, build, flat
from federations import SIZES, Blobs, Consecutive, Plain, client_scores, trainer, weights
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
    assert_close(by_hand.state_dict(), module.net.state_dict(), tolerance)
    return run, updates.rounds


def divided(sizes):
    """The world by hand and the data of clients of these sizes."""
    world = World(torch.float64, parts=np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    return {"world": world, "data": fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(sizes))}


def clients_of(net, world, **kwargs):
    return [world.train(net, k, **kwargs)[0] for k in range(len(world.parts))]


def sending(forge, weights=None):
    """A round in which client k sends ``forge(k, changes)`` in place of its change; weights are by examples if not given."""

    def step(net, world, t):
        w, clients = flat(net)[0], clients_of(net, world)
        changes = [flat(client)[0] - w for client in clients]
        clients = [build(client, w + forge(k, changes), *flat(client)[1:]) for k, client in enumerate(clients)]
        return averaged(net, clients, world.sizes if weights is None else weights)

    return step


def final(batchnorm=True, **settings):
    """The weights at the end of :func:`fit`."""
    torch.manual_seed(3)
    return weights(fit(module=Plain(lr=LR, batchnorm=batchnorm).double(), **settings)[0].net)


def assert_close(one, other, tolerance=1e-11):
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance)


def follow(dtype, step, **settings):
    """As ``assert_follows``, and return the federation."""
    run, _ = assert_follows(dtype, step, **settings)
    return next(callback for callback in run.callbacks if isinstance(callback, fl.FederatedOrchestrator))


def fit(rounds=ROUNDS, *callbacks, module=None, optimizer=None, data=None, sizes=SIZES, flags=None, **settings):
    """Fit in float64, on examples in order, by default with BatchNorm; return the module, the callback and the Trainer."""
    if module is None:
        torch.manual_seed(3)
        module = Plain(lr=LR, batchnorm=True).double()
    if optimizer:
        module.configure_optimizers = lambda: optimizer(module.parameters())
    settings.setdefault("local", fl.LocalTraining(max_epochs=2))
    federation = fl.FederatedOrchestrator(**settings)
    run = trainer(rounds, federation, *callbacks, precision="64-true", **(flags or {}))
    run.fit(module, fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(sizes), **(data or {})))
    return module, federation, run


def complete(module, federation, client):
    """A client's whole network, with the parts that it keeps."""
    own = federation._run.memory.held(client)
    return weights(module.net) | {name.removeprefix("net."): tensor for name, tensor in own.items()}


def average_shared(nets, is_own):
    """Average networks in place, by examples and counters by maximum, except for the tensors whose names ``is_own`` tells."""
    states = [net.state_dict() for net in nets]
    for name, first in states[0].items():
        if is_own(name):
            continue
        if first.is_floating_point():
            shared = sum(n * state[name] for n, state in zip(SIZES, states, strict=True)) / sum(SIZES)
        else:
            shared = torch.stack([state[name] for state in states]).max()
        for state in states:
            state[name].copy_(shared)


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
