"""Strategies with a corrected client, a fair weight or a step of their own: three rounds against the formulas by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from against_hand import DTYPES, assert_close, assert_follows, clients_of, final
from by_hand import World, averaged, build, flat, like_parameters
from federations import Blobs, Consecutive, Plain, federate
from scipy.optimize import minimize
from torch.nn import functional as F

from fl_lightning import (
    AFL,
    ConfigurationError,
    Faults,
    FedAdagrad,
    FedAvg,
    FedDyn,
    FederatedDataModule,
    FedExP,
    LocalTraining,
    QFedAvg,
)
from fl_lightning.functional.simplex import project_to_simplex

ALPHA = 0.3


def feddyn_step(alpha):
    """Acar et al. 2021, Algorithm 1; buffers are averaged."""
    drift, own = 0.0, {}

    def step(net, world, t):
        nonlocal drift
        world = copy.copy(world)
        world.mu = alpha
        w, clients = flat(net)[0], []
        for k in range(len(world.parts)):
            correction = like_parameters(net, -own[k]) if k in own else None
            client, _ = world.train(net, k, correction=correction)
            own[k] = own.get(k, 0.0) - alpha * (flat(client)[0] - w)
            clients.append(client)
        mean = averaged(net, clients, [1, 1, 1])
        drift = drift - alpha / 3 * sum(flat(client)[0] - w for client in clients)
        return build(net, flat(mean)[0] - drift / alpha, *flat(mean)[1:])

    return step


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["trainer", "stacked"])
def test_feddyn_keeps_each_clients_gradient(dtype, engine):
    local = LocalTraining(max_epochs=2, engine=engine)
    _, rounds = assert_follows(dtype, feddyn_step(ALPHA), strategy=FedDyn(ALPHA), local=local)
    assert {update.bytes_up for update in rounds[-1]} == {99 * dtype.itemsize + 8}  # a model, and nothing else


def fedexp_step(epsilon, weights):
    def step(net, world, t):
        clients = clients_of(net, world)
        w, share = flat(net)[0], np.array(weights) / sum(weights)
        mean = averaged(net, clients, weights)
        changes = [flat(client)[0] - w for client in clients]
        step = flat(mean)[0] - w
        rate = max(1.0, sum(s * (c @ c) for s, c in zip(share, changes, strict=True)) / (2 * (step @ step + epsilon)))
        rates.append(rate)
        return build(net, w + rate * step, *flat(mean)[1:])

    rates = []
    return step, rates


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedexp_extrapolates(weighting, dtype):
    """On clients that see one class each, so that their changes disagree."""
    order = torch.cat([(Blobs().train[1] == c).nonzero().flatten() for c in range(3)])
    sizes = [int((Blobs().train[1] == c).sum()) for c in range(3)]
    parts = np.split(order.numpy(), np.cumsum(sizes)[:-1])
    source = Blobs(shuffle=False, dtype=dtype)
    source.train = tuple(tensor[order] for tensor in source.train)
    step, rates = fedexp_step(1e-3, [1, 1, 1] if weighting == "uniform" else sizes)
    run, _ = assert_follows(
        dtype,
        step,
        world=World(dtype, parts=parts),
        data=FederatedDataModule(source, Consecutive(sizes)),
        batchnorm=False,
        strategy=FedExP(1e-3, weighting),
    )
    assert max(rates) > 1.05
    assert float(run.callback_metrics["federation/server_rate"]) == pytest.approx(rates[-1], rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("q", [0.5, 2.0])
def test_qfedavg_weighs_by_powers_of_the_loss(q, dtype):
    def step(net, world, t):
        w, clients = flat(net)[0], clients_of(net, world)
        losses = [world.on_client(net, F.cross_entropy, k) + 1e-10 for k in range(3)]
        gradients = [(w - flat(client)[0]) / 0.1 for client in clients]
        numerator = sum(loss**q * g for loss, g in zip(losses, gradients, strict=True))
        scale = sum(q * loss ** (q - 1) * (g @ g) + loss**q / 0.1 for loss, g in zip(losses, gradients, strict=True))
        buffers = flat(averaged(net, clients, np.array(losses) ** q))[1:]
        return build(net, w - numerator / scale, *buffers)

    tolerance = {"tolerance": 1e-6}  # losses are logged in float32
    assert_follows(dtype, step, strategy=QFedAvg(q, 0.1), **tolerance)


def test_without_fairness_they_are_the_plain_average():
    plain = final(strategy=FedAvg("uniform"), batchnorm=False)
    assert_close(plain, final(strategy=QFedAvg(0.0, 0.1), batchnorm=False))
    assert_close(plain, final(strategy=AFL(0.0), batchnorm=False))


@pytest.mark.parametrize("dtype", DTYPES)
def test_afl_moves_its_weights_to_the_highest_losses(dtype):
    mixture = np.full(3, 1 / 3)

    def step(net, world, t):
        nonlocal mixture
        new = averaged(net, clients_of(net, world), mixture)
        losses = np.array([world.on_client(net, F.cross_entropy, k) for k in range(3)])
        mixture = projected(mixture + 0.6 * losses)
        return new

    _, rounds = assert_follows(dtype, step, strategy=AFL(0.6), tolerance=1e-5)
    assert len({round(update.share, 6) for update in rounds[-1]}) == 3


def projected(values):
    """The nearest point of the simplex, by a general solver."""
    found = minimize(
        lambda p: ((p - values) ** 2).sum(),
        np.full(len(values), 1 / len(values)),
        jac=lambda p: 2 * (p - values),
        bounds=[(0, 1)] * len(values),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-16, "maxiter": 500},
    )
    return found.x


def test_the_projection_is_the_nearest_point():
    generator = torch.Generator().manual_seed(1)
    for size in (1, 2, 5):
        for spread in (0.1, 3.0):
            values = torch.randn(size, generator=generator, dtype=torch.float64) * spread
            np.testing.assert_allclose(project_to_simplex(values), projected(values.numpy()), atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fedadagrad_starts_from_tau(dtype):
    squares = None

    def step(net, world, t):
        nonlocal squares
        mean = averaged(net, clients_of(net, world), world.sizes)
        (w, _, _), (average, floats, integers) = flat(net), flat(mean)
        change = average - w
        squares = (np.full_like(w, 0.01**2) if squares is None else squares) + change**2
        return build(net, w + 0.05 * change / (np.sqrt(squares) + 0.01), floats, integers)

    assert_follows(dtype, step, strategy=FedAdagrad(0.05, 0.01))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (lambda: {"strategy": FedDyn(0.0)}, "'federation.strategy.alpha' must be above 0"),
        (lambda: {"strategy": FedExP(-1.0)}, "'federation.strategy.epsilon' must be 0 or above"),
        (lambda: {"strategy": QFedAvg(-1.0)}, "'federation.strategy.q' must be 0 or above"),
        (lambda: {"strategy": QFedAvg(1.0, 0.0)}, "'federation.strategy.lr' must be above 0"),
        (lambda: {"strategy": QFedAvg(loss="val_accuracy")}, "'federation.strategy.loss' must be a loss"),
        (lambda: {"strategy": AFL(-0.1)}, "'federation.strategy.rate' must be 0 or above"),
        (lambda: {"strategy": AFL(loss="val_accuracy")}, "'federation.strategy.loss' must be a loss"),
        (lambda: {"strategy": FedAdagrad(0.0)}, "'federation.strategy.lr' must be above 0"),
        (lambda: {"strategy": FedAdagrad(tau=0.0)}, "'federation.strategy.tau' must be above 0"),
        (
            lambda: {"strategy": AFL(), "clients_per_round": 2},
            "AFL needs every client in every round, but .* a cohort of 2 out of 3.* or use another strategy, such as FedAvg",
        ),
        (lambda: {"strategy": AFL(), "faults": Faults("skip")}, "AFL needs every client .* 'federation.faults.policy' skip"),
        (
            lambda: {"strategy": FedAdagrad(), "server_optimizer": lambda p: torch.optim.Adam(p)},
            "FedAdagrad has its own server optimizer",
        ),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), 1, **settings())


def test_a_loss_that_is_not_finite_ends_qfedavg():
    class Broken(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.tensor(float("nan")), batch_size=1)

    with pytest.raises(Exception, match=r"q-FedAvg cannot weigh client . in round 0: its loss is nan"):
        federate(Broken(), 1, strategy=QFedAvg())
