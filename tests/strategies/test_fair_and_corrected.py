"""Strategies with a corrected client, a fair weight or a step of their own: three rounds against the formulas by hand."""

import copy
from fractions import Fraction

import numpy as np
import pytest
import torch
from against_hand import assert_follows, clients_of
from by_hand import World, averaged, build, flat, like_parameters
from engine_runs import variant
from federations import Blobs, Consecutive
from scipy.optimize import minimize
from torch.nn import functional as F

from fl_lightning import AFL, ClientUpdate, FedDyn, FederatedDataModule, FedExP, QFedAvg
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.functional.sums import Sums, grid_of
from fl_lightning.strategies.afl import project_to_simplex
from fl_lightning.types import RoundStart, Snapshot

ALPHA = 0.3


@pytest.mark.parametrize("size", [3, 2])
def test_feddyn_follows_its_listing(size):
    """Acar et al. 2021, Algorithm 1: h moves by the cohort's changes over all three clients; buffers are averaged."""
    drift, own = 0.0, {}
    cohorts = [draw_cohort(3, size, 0, t, range(3)) for t in range(3)]

    def step(net, world, t):
        nonlocal drift
        world = copy.copy(world)
        world.mu = ALPHA
        w, clients = flat(net)[0], []
        for k in cohorts[t]:
            correction = like_parameters(net, -own[k]) if k in own else None
            client, _ = world.train(net, k, correction=correction)
            own[k] = own.get(k, 0.0) - ALPHA * (flat(client)[0] - w)
            clients.append(client)
        mean = averaged(net, clients, [1] * size)
        drift = drift - ALPHA / 3 * sum(flat(client)[0] - w for client in clients)
        return build(net, flat(mean)[0] - drift / ALPHA, *flat(mean)[1:])

    _, rounds = assert_follows(torch.float64, step, strategy=FedDyn(ALPHA), clients_per_round=size)
    assert {update.bytes_up for update in rounds[-1]} == {99 * 8 + 8}  # a model, and nothing else
    assert (len(set(cohorts)) > 1) == (size < 3)


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


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_fedexp_extrapolates(weighting):
    """On clients that see one class each, so that their changes disagree."""
    order = torch.cat([(Blobs().train[1] == c).nonzero().flatten() for c in range(3)])
    sizes = [int((Blobs().train[1] == c).sum()) for c in range(3)]
    parts = np.split(order.numpy(), np.cumsum(sizes)[:-1])
    source = Blobs(shuffle=False, dtype=torch.float64)
    source.train = tuple(tensor[order] for tensor in source.train)
    step, rates = fedexp_step(1e-3, [1, 1, 1] if weighting == "uniform" else sizes)
    run, _ = assert_follows(
        torch.float64,
        step,
        world=World(torch.float64, parts=parts),
        data=FederatedDataModule(source, Consecutive(sizes)),
        batchnorm=False,
        strategy=FedExP(1e-3, weighting),
    )
    assert max(rates) > 1.05
    assert float(run.callback_metrics["federation/server_rate"]) == pytest.approx(rates[-1], rel=1e-5)


@pytest.mark.parametrize(("q", "scaled"), [(0.0, 1.0), (0.5, 1.0), (2.0, 1.0), (15.0, 0.02)])
def test_qfedavg_weighs_by_powers_of_the_loss(q, scaled):
    """Also where losses of about 0.02 to the power 15 are 1e-25."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", scaled * F.cross_entropy(self(batch[0]), batch[1]), batch_size=len(batch[1]))

    def step(net, world, t):
        w, clients = flat(net)[0], clients_of(net, world)
        losses = [scaled * world.on_client(net, F.cross_entropy, k) + 1e-10 for k in range(3)]
        gradients = [(w - flat(client)[0]) / 0.1 for client in clients]
        numerator = sum(loss**q * g for loss, g in zip(losses, gradients, strict=True))
        scale = sum(q * loss ** (q - 1) * (g @ g) + loss**q / 0.1 for loss, g in zip(losses, gradients, strict=True))
        buffers = flat(averaged(net, clients, np.array(losses) ** q))[1:]
        return build(net, w - numerator / scale, *buffers)

    kind = variant(validation_step=validation_step)
    assert_follows(torch.float64, step, kind=kind, strategy=QFedAvg(q, 0.1), tolerance=1e-6 * max(q, 1e-5))  # losses in float32


@pytest.mark.parametrize(
    ("q", "losses"),
    [
        (1.0, [0.1, 0.2, 0.3]),
        (15.0, [0.05, 0.06, 0.07]),
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


def test_afl_moves_its_weights_to_the_highest_losses():
    mixture = np.full(3, 1 / 3)

    def step(net, world, t):
        nonlocal mixture
        new = averaged(net, clients_of(net, world), mixture)
        losses = np.array([world.on_client(net, F.cross_entropy, k) for k in range(3)])
        mixture = projected(mixture + 0.6 * losses)
        return new

    _, rounds = assert_follows(torch.float64, step, strategy=AFL(0.6), tolerance=1e-5)
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
