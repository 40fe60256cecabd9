"""Every strategy against its formula, worked by hand: three rounds, unequal clients, BatchNorm, float64."""

import copy
import itertools
import math
import warnings

import byzfl
import numpy as np
import pytest
import torch
from against_hand import ROUNDS, assert_follows, clients_of, divided
from by_hand import LR, World, accuracy, averaged, build, flat, like_parameters
from federations import SIZES, Blobs, Consecutive
from scipy.special import softmax
from sklearn.metrics import confusion_matrix, f1_score
from torch.nn import functional as F
from torchmetrics.classification import MulticlassF1Score

import fl_lightning as fl
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.types import Snapshot


def test_fedsgd_is_one_step_on_the_mean_gradient():
    def step(net, world, t):
        total = [torch.zeros_like(p) for p in net.parameters()]
        clients = []
        for part in world.parts:
            client = copy.deepcopy(net).train()
            loss = F.cross_entropy(client(world.x[part]), world.y[part])
            for sum_, g in zip(total, torch.autograd.grad(loss, list(client.parameters())), strict=True):
                sum_ += len(part) / sum(SIZES) * g
            clients.append(client)  # its BatchNorm has seen the batch
        new = averaged(net, clients, world.sizes)
        with torch.no_grad():
            for p, old, g in zip(new.parameters(), net.parameters(), total, strict=True):
                p.copy_(old - LR * g)
        return new

    assert_follows(torch.float64, step, strategy=fl.FedSGD(), local=fl.LocalTraining(full_batch=True))


def momentum_step(beta, lr):
    velocity = None

    def step(net, world, t):
        nonlocal velocity
        mean = averaged(net, clients_of(net, world), world.sizes)
        (w, _, _), (average, floats, integers) = flat(net), flat(mean)
        difference = w - average
        velocity = difference if velocity is None else beta * velocity + difference
        return build(net, w - lr * velocity, floats, integers)

    return step


def test_fedavgm_keeps_a_velocity():
    assert_follows(torch.float64, momentum_step(0.7, 0.9), strategy=fl.FedAvgM(0.7, lr=0.9))


def adaptive_step(rule, lr, b1, b2, eps):
    """Reddi et al. 2021, Algorithm 2 with v_{-1} = tau^2, torch's Adagrad from 0 and torch's Adam with its bias correction."""
    m = v = None

    def step(net, world, t):
        nonlocal m, v
        mean = averaged(net, clients_of(net, world), world.sizes)
        (w, _, _), (average, floats, integers) = flat(net), flat(mean)
        g = w - average
        if m is None:
            m, v = np.zeros_like(g), np.full_like(g, eps**2 if rule in ("yogi", "adagrad of the paper") else 0.0)
        if rule.startswith("adagrad"):
            v = v + g**2
            return build(net, w - lr * g / (np.sqrt(v) + eps), floats, integers)
        m = b1 * m + (1 - b1) * g
        if rule == "yogi":
            v = v - (1 - b2) * g**2 * np.sign(v - g**2)
            return build(net, w - lr * m / (np.sqrt(v) + eps), floats, integers)
        v = b2 * v + (1 - b2) * g**2
        corrected = m / (1 - b1 ** (t + 1)) / (np.sqrt(v / (1 - b2 ** (t + 1))) + eps)
        return build(net, w - lr * corrected, floats, integers)

    return step


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("adam", {"server_optimizer": lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3)}),
        ("adagrad", {"server_optimizer": lambda p: torch.optim.Adagrad(p, lr=0.05, eps=1e-3)}),
        ("adagrad of the paper", {"strategy": fl.FedAdagrad(0.05, 1e-3)}),
        ("yogi", {"server_optimizer": lambda p: fl.Yogi(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3)}),
    ],
)
def test_fedopt_steps_on_the_pseudo_gradient(rule, settings):
    assert_follows(torch.float64, adaptive_step(rule, 0.05, 0.8, 0.95, 1e-3), **settings)


@pytest.mark.parametrize("clients", [3, 4])
def test_fedmedian_is_the_median_of_each_coordinate(clients):
    """numpy takes the mean of the two middle values of four; byzfl agrees on the odd cohort."""

    def step(net, world, t):
        states = [flat(client) for client in clients_of(net, world)]
        stacked = np.stack([s[0] for s in states])
        if clients == 3:
            np.testing.assert_allclose(byzfl.Median()(stacked), np.median(stacked, axis=0), rtol=1e-6)
        floats = np.median(np.stack([s[1] for s in states]), axis=0)
        return build(net, np.median(stacked, axis=0), floats, np.max([s[2] for s in states], axis=0))

    assert_follows(torch.float64, step, **divided((7, 12, 13, 8)[:clients]), strategy=fl.FedMedian())


@pytest.mark.parametrize("exponent", [0.0, 1.0, 0.5])
def test_fedloss_weighs_by_the_loss_at_home(exponent):
    data = fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(), client_validation=0.3)
    probe = fl.FederatedDataModule(Blobs(shuffle=False, dtype=torch.float64), Consecutive(), client_validation=0.3)
    probe.setup("fit")
    assert [len(part) for part in probe.splits.validation] == [2, 6, 4]
    world = World(torch.float64, [p.numpy() for p in probe.indices], [p.numpy() for p in probe.splits.validation])

    def step(net, world, t):
        clients = clients_of(net, world)
        losses = [
            world.evaluate(c, F.cross_entropy, world.x[held], world.y[held])
            for c, held in zip(clients, world.held_out, strict=True)
        ]
        return averaged(net, clients, np.array(losses) * world.sizes**exponent)

    assert_follows(torch.float64, step, world=world, data=data, strategy=fl.FedLoss(examples=exponent))


@pytest.mark.parametrize(("losses", "shares"), [([2.0, math.nan, 1.0], [2 / 3, 0, 1 / 3]), ([0.0, 0.0, 0.0], [1 / 3] * 3)])
def test_fedloss_rejects_a_loss_that_is_not_finite_and_averages_perfect_models(losses, shares):
    strategy, sums, states = fl.FedLoss(), fl.Sums(), torch.eye(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k, loss in enumerate(losses):
            update = fl.ClientUpdate(k, 0, 10, 1, local_score=loss, model=Snapshot(states[k], torch.zeros(0)))
            strategy.accumulate(update, sums)
    assert strategy.aggregate(sums).tolist() == pytest.approx(shares)
    told = ["FedLoss rejects the update of client 1 in round 0: its validation loss is nan."] if shares[1] == 0 else []
    assert [str(one.message) for one in said] == told


def sgd_on_a_constant_gradient(tau, momentum, mu):
    """(w_t - w_k) / eta for a local gradient of 1 everywhere, taken by torch's own SGD: the sum of the coefficients."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([w], lr=LR, momentum=momentum)
    for _ in range(tau):
        w.grad = torch.ones_like(w) + mu * w.detach()
        sgd.step()
    return -w.item() / LR


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.9, 0.5)])
def test_fednova_normalises_by_the_coefficients_of_the_local_gradients(momentum, mu):
    world = World(torch.float64, momentum=momentum, mu=mu)

    def step(net, world, t):
        trained = [world.train(net, k) for k in range(3)]
        taus = [tau for _, tau in trained]
        assert taus == [4, 8, 6]
        a = np.array([sgd_on_a_constant_gradient(tau, momentum, mu) for tau in taus])
        if not mu:  # the closed forms of the paper
            rho = momentum
            closed = [(tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho) for tau in taus]
            np.testing.assert_allclose(a, closed, rtol=1e-9)
        elif not momentum:
            np.testing.assert_allclose(a, [(1 - (1 - LR * mu) ** tau) / (LR * mu) for tau in taus], rtol=1e-9)
        p = world.sizes / world.sizes.sum()
        mean = averaged(net, [client for client, _ in trained], p)
        (w, _, _), (_, floats, integers) = flat(net), flat(mean)
        d = [(w - flat(client)[0]) / a[k] for k, (client, _) in enumerate(trained)]
        new = w - (p * a).sum() * sum(p[k] * d[k] for k in range(3))
        return build(net, new, floats, integers)

    local = fl.LocalTraining(max_epochs=2, proximal_mu=mu)
    assert_follows(torch.float64, step, world=world, strategy=fl.FedNova(), momentum=momentum, local=local)


@pytest.mark.parametrize("size", [2, 3])
def test_scaffold_follows_its_listing(size):
    """Karimireddy et al. 2020, Algorithm 1: line 17 moves c by the cohort's changes over all N clients."""
    c, own = None, [None] * 3
    cohorts = [draw_cohort(3, size, 0, t, range(3)) for t in range(ROUNDS)]

    def step(net, world, t):
        nonlocal c
        w = flat(net)[0]
        c = np.zeros_like(w) if c is None else c
        clients, changes = [], []
        for k in cohorts[t]:
            c_k = np.zeros_like(w) if own[k] is None else own[k]
            y, steps = world.train(net, k, correction=like_parameters(net, c - c_k))
            new = c_k - c + (w - flat(y)[0]) / (steps * LR)
            changes.append(new - c_k)
            own[k] = new
            clients.append(y)
        c = c + np.sum(changes, axis=0) / 3
        return averaged(net, clients, [1] * size)

    assert_follows(torch.float64, step, strategy=fl.Scaffold(), clients_per_round=size)


def by_permutations(worth):
    """Shapley's own definition: the mean over all m! orders."""
    orders = list(itertools.permutations(range(3)))
    return [np.mean([worth(o[: o.index(k) + 1]) - worth(o[: o.index(k)]) for o in orders]) for k in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "sign"), [("val_acc", 1), ("val_loss", -1)])
def test_shapley_weights(metric, sign):
    measure = accuracy if sign == 1 else F.cross_entropy

    def step(net, world, t):
        clients = clients_of(net, world)

        def worth(members):
            members = sorted(members)
            model = averaged(net, [clients[k] for k in members], world.sizes[members]) if members else net
            return sign * world.on_server(model, measure)

        values = by_permutations(worth)
        assert abs(sum(values) - (worth((0, 1, 2)) - worth(()))) < 1e-9
        return averaged(net, clients, np.maximum(values, 0))

    # batches of the server's set of unequal sizes: the module's own mean of losses is by examples
    run, _ = assert_follows(torch.float64, step, strategy=fl.ShapleyValues(metric, mode="max" if sign == 1 else "min"))
    assert run.callback_metrics["federation/shapley_evaluations"] == 8


@pytest.mark.parametrize("credibility", ["complement", "softmax"])
def test_focus_weighs_by_credibility(credibility):
    def step(net, world, t):
        clients = clients_of(net, world)
        at_home = [world.on_client(net, F.cross_entropy, k) for k in range(3)]
        abroad = [world.on_server(client, F.cross_entropy) for client in clients]
        errors = np.array(at_home) + np.array(abroad)
        rates = 1 - softmax(errors / 0.5) if credibility == "complement" else softmax(-errors / 0.5)
        return averaged(net, clients, world.sizes * rates)

    assert_follows(torch.float64, step, strategy=fl.Focus(temperature=0.5, credibility=credibility))


@pytest.mark.parametrize("metric", ["f1", "odds"])
def test_adafed_by_a_metric_of_scikit_learn(metric):
    def measure(logits, y):
        predicted, y = logits.argmax(1).numpy(), y.numpy()
        if metric == "f1":
            return np.float32(f1_score(y, predicted, average="macro", labels=range(3), zero_division=0))
        m = confusion_matrix(y, predicted, labels=range(3)).astype(float)
        ratios = []
        for c in range(3):
            tp, fn, fp = m[c, c], m[c].sum() - m[c, c], m[:, c].sum() - m[c, c]
            tn = m.sum() - tp - fn - fp
            ratios.append((tp + 0.5) * (tn + 0.5) / ((fp + 0.5) * (fn + 0.5)))
        return np.mean(ratios)

    def step(net, world, t):
        clients = clients_of(net, world)
        return averaged(net, clients, [world.on_server(client, measure) for client in clients])

    chosen = MulticlassF1Score(3, average="macro") if metric == "f1" else fl.DiagnosticOddsRatio(3)
    assert_follows(torch.float64, step, strategy=fl.AdaFed(chosen), tolerance=1e-7)  # torchmetrics' F1 is a float32


def test_last_client_keeps_one_of_them():
    last = [derive_seed(0, t, "last") % 3 for t in range(ROUNDS)]

    def step(net, world, t):
        clients = clients_of(net, world)
        new = averaged(net, [clients[last[t]]], [1])
        return build(new, *flat(new)[:2], np.max([flat(c)[2] for c in clients], axis=0))

    _, rounds = assert_follows(torch.float64, step, strategy=fl.LastClient())
    assert [[u.client for u in round_ if u.weight] for round_ in rounds] == [[k] for k in last]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "mu"), [("keep", 0.4), ("drop", 0.0)])
def test_fedprox_with_partial_work(policy, mu):
    """Two of three clients do fewer of their five epochs: kept as they are, or dropped from the round."""
    part = fl.PartialWork(2 / 3, policy)
    local = fl.LocalTraining(max_epochs=5, proximal_mu=mu, partial_work=part)
    fewer = [part.epochs(range(3), 5, 0, t) for t in range(ROUNDS)]
    assert all(len(own) == 2 and set(own.values()) <= {1, 2, 3, 4} for own in fewer)
    assert any(own != fewer[0] for own in fewer)  # drawn anew
    work = [{k: own.get(k, 5) for k in range(3) if policy == "keep" or k not in own} for own in fewer]

    def step(net, world, t):
        clients = [world.train(net, k, epochs=e)[0] for k, e in work[t].items()]
        return averaged(net, clients, world.sizes[list(work[t])])

    _, rounds = assert_follows(torch.float32, step, world=World(torch.float32, mu=mu), batchnorm=False, local=local)
    assert [{u.client: u.num_steps // (2, 4, 3)[u.client] for u in round_} for round_ in rounds] == work
