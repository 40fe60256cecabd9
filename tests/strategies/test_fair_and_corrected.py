"""Strategies with a corrected client, a fair weight or a step of their own: three rounds against the formulas by hand."""

from __future__ import annotations

import copy
from fractions import Fraction

import lightning as L
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
    ClientError,
    ClientUpdate,
    ConfigurationError,
    Faults,
    FedAdagrad,
    FedAvg,
    FedDyn,
    FederatedDataModule,
    FedExP,
    LocalTraining,
    QFedAvg,
    SecureAggregation,
)
from fl_lightning.functional import Sums, grid_of
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.functional.simplex import project_to_simplex
from fl_lightning.types import RoundStart, Snapshot

ALPHA = 0.3


def feddyn_step(alpha, cohorts=None):
    """Acar et al. 2021, Algorithm 1, over the clients of each cohort, by default all; buffers are averaged."""
    drift, own = 0.0, {}

    def step(net, world, t):
        nonlocal drift
        world = copy.copy(world)
        world.mu = alpha
        w, clients = flat(net)[0], []
        for k in range(len(world.parts)) if cohorts is None else cohorts[t]:
            correction = like_parameters(net, -own[k]) if k in own else None
            client, _ = world.train(net, k, correction=correction)
            own[k] = own.get(k, 0.0) - alpha * (flat(client)[0] - w)
            clients.append(client)
        mean = averaged(net, clients, [1] * len(clients))
        drift = drift - alpha / 3 * sum(flat(client)[0] - w for client in clients)
        return build(net, flat(mean)[0] - drift / alpha, *flat(mean)[1:])

    return step


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("engine", ["trainer", "stacked"])
def test_feddyn_keeps_each_clients_gradient(dtype, engine):
    local = LocalTraining(max_epochs=2, engine=engine)
    _, rounds = assert_follows(dtype, feddyn_step(ALPHA), strategy=FedDyn(ALPHA), local=local)
    assert {update.bytes_up for update in rounds[-1]} == {99 * dtype.itemsize + 8}  # a model, and nothing else


def test_absent_clients_damp_the_drift_of_feddyn():
    """Two of three clients a round: h moves by their changes over all three."""
    cohorts = [draw_cohort(3, 2, 0, t, range(3)) for t in range(3)]
    assert len(set(cohorts)) > 1
    assert_follows(torch.float64, feddyn_step(ALPHA, cohorts), strategy=FedDyn(ALPHA), clients_per_round=2)


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


@pytest.mark.parametrize(
    ("q", "losses"),
    [
        (1.0, [0.1, 0.2, 0.3]),
        (15.0, [0.05, 0.06, 0.07]),
        (15.0, [0.03, 0.04, 0.05]),
        (15.0, [50.0, 60.0, 70.0]),
        (15.0, [1e-6, 1e-3, 40.0]),
        (2.0, [1e-9, 2e-9, 1e-9]),
        (15.0, [0.0, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_qfedavg_is_right_for_any_losses_within_the_papers_range_of_q(q, losses, ranks):
    """Algorithm 2 in exact rationals but for the power, with models that differ by 0.1."""
    generator, lr = torch.Generator().manual_seed(0), 0.1
    w = torch.randn(5, generator=generator)
    models = [w + 0.1 * torch.randn(5, generator=generator) for _ in losses]
    powers = [Fraction((loss + 1e-10) ** q) for loss in losses]
    w64, rate = [Fraction(float(x)) for x in w], Fraction(lr)
    gradients = [[(a - Fraction(float(b))) / rate for a, b in zip(w64, model, strict=True)] for model in models]
    scale = sum(
        Fraction(q) * p / Fraction(loss + 1e-10) * sum(x * x for x in g) + p / rate
        for p, loss, g in zip(powers, losses, gradients, strict=True)
    )
    steps = [float(sum(p * g[i] for p, g in zip(powers, gradients, strict=True)) / scale) for i in range(5)]
    strategy = QFedAvg(q, lr)
    strategy.start_round(RoundStart(0, (0, 1, 2), 3, w, 5))
    grids = strategy.grids([10, 10, 10], lambda largest: grid_of([(5, magnitude(w))], 0, largest))
    shares = [Sums(grids=grids) for _ in range(ranks)]
    for k, (loss, model) in enumerate(zip(losses, models, strict=True)):
        snapshot = Snapshot(model, torch.zeros(0, dtype=torch.int64))
        strategy.accumulate(ClientUpdate(k, 0, 10, 1, global_score=loss, model=snapshot), shares[k % ranks])
    for other in shares[1:]:
        shares[0].merge(other)
    moved = w.double() - strategy.aggregate(shares[0])
    np.testing.assert_allclose(moved.numpy(), steps, rtol=1e-8, atol=1e-9 * max(map(abs, steps)) + 1e-15)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("q", "loss", "power"), [(400.0, 0.1, "1e-400"), (400.0, 10.0, "1e400"), (15.0, 0.05, "1e-20")])
def test_a_power_that_cannot_be_summed_names_q_and_the_loss(q, loss, power, secure):
    """In float64 it is 0 or infinite; masked sums have a single grid for weights about 1."""

    class Constant(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.tensor(loss), batch_size=1)

    settings = {"secure_aggregation": SecureAggregation()} if secure else {}
    if power == "1e-20" and not secure:
        return federate(Constant(), 1, strategy=QFedAvg(q))
    message = rf"its loss {loss}\d* to the power of q = {q} is about {power},.* Lower"
    if power == "1e-20":
        message = r"The weight 3.05e-20 in the sum 'state' is too far from what its grid expects"
    with pytest.raises(ClientError, match=message):
        return federate(Constant(), 1, strategy=QFedAvg(q), **settings)


def test_qfedavg_follows_the_formula_where_powers_are_tiny():
    """Losses of about 0.02 to the power 15, 1e-25, from the first round to the last."""

    class Small(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", 0.02 * F.cross_entropy(self(batch[0]), batch[1]), batch_size=len(batch[1]))

    L.seed_everything(3, verbose=False)
    module = Small(lr=0.1, batchnorm=False).double()
    net, world = copy.deepcopy(module.net), World(torch.float64)
    data = Blobs(shuffle=False, dtype=torch.float64)
    flags = {"precision": "64-true"}
    federate(module, 3, data=data, partitioner=Consecutive(), flags=flags, strategy=QFedAvg(15.0, 0.1))
    for _ in range(3):
        w, clients = flat(net)[0], clients_of(net, world)
        losses = [0.02 * world.on_client(net, F.cross_entropy, k) + 1e-10 for k in range(3)]
        gradients = [(w - flat(client)[0]) / 0.1 for client in clients]
        numerator = sum(loss**15 * g for loss, g in zip(losses, gradients, strict=True))
        scale = sum(15 * loss**14 * (g @ g) + loss**15 / 0.1 for loss, g in zip(losses, gradients, strict=True))
        net = build(net, w - numerator / scale, *flat(net)[1:])
    for name, value in net.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-5, atol=1e-6)


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
