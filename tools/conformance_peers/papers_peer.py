"""The papers themselves: each algorithm once more, on flat float64 vectors, from its listing. It needs no package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from common import Case, Net, Result, Run, Vector, as_torch_adam, entries, local_sgd, main, network, norm_entries, server_rounds
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F


def _tensors(case: Case, w: Tensor) -> dict[str, Tensor]:
    net, tensors, start = Net("batchnorm" in case.settings), {}, 0
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            tensors[name] = w[start : start + tensor.numel()].view_as(tensor)
            start += tensor.numel()
    return tensors


def _loss(case: Case, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(functional_call(network(case), _tensors(case, w), (x,)), y)


def _encode(case: Case, w: Tensor, x: Tensor) -> Tensor:
    tensors = {name[8:]: tensor for name, tensor in _tensors(case, w).items() if name.startswith("encoder.")}
    return functional_call(network(case).encoder, tensors, (x,))


def gradient(case: Case, w: Vector, batch: tuple[Tensor, Tensor], term: Callable[..., Tensor] | None = None) -> Vector:
    """The gradient of the mean loss of a batch, and of a term of (w, x) beside it."""
    point = torch.tensor(w, requires_grad=True)
    loss = _loss(case, point, *batch)
    if term is not None:
        loss = loss + term(point, batch[0])
    return torch.autograd.grad(loss, point)[0].numpy()


def descend(case: Case, client: int, start: Vector, direction: Callable[[Vector, Vector], Vector] | None = None) -> Vector:
    """Plain SGD through the client's batches along ``direction(w, g)``, by default g."""
    w = start
    for batch in case.batches(client):
        g = gradient(case, w, batch)
        w = w - case.lr * (g if direction is None else direction(w, g))
    return w


def fedprox(case: Case) -> Result:
    """Li et al. 2020, eq. 2, by gradient steps."""
    mu = case.settings["proximal_mu"]
    return server_rounds(case, train=lambda case, k, w: descend(case, k, w, lambda v, g: g + mu * (v - w)))


def scaffold(case: Case) -> Result:
    """Karimireddy et al. 2020, Algorithm 1, option II, with a global rate of 1."""
    weights, w, c = [], case.initial, np.zeros_like(case.initial)
    own = {k: np.zeros_like(w) for k in range(len(case.sizes))}
    for cohort in case.cohorts:
        models, changes = [], []
        for k in cohort:
            models.append(descend(case, k, w, lambda v, g, k=k, c=c: g - own[k] + c))
            new = own[k] - c + (w - models[-1]) / (len(case.batches(k)) * case.lr)
            changes.append(new - own[k])
            own[k] = new
        weights.append(w := np.mean(models, axis=0))
        c = c + np.sum(changes, axis=0) / len(case.sizes)
    return Result(weights)


def fednova(case: Case) -> Result:
    """Wang et al. 2020, eq. 6 with ||a_k||_1 = tau_k."""

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        p, tau = case.shares(cohort), np.array([len(case.batches(k)) for k in cohort])
        directions = [(w - model) / (case.lr * steps) for model, steps in zip(models, tau, strict=True)]
        return w - (p @ tau) * case.lr * (p @ np.stack(directions))

    return server_rounds(case, step)


def feddyn(case: Case) -> Result:
    """Acar et al. 2021, Algorithm 1; m there counts all devices."""
    alpha, h = case.settings["alpha"], np.zeros_like(case.initial)
    own = {k: np.zeros_like(h) for k in range(len(case.sizes))}

    def train(case: Case, k: int, w: Vector) -> Vector:
        model = descend(case, k, w, lambda v, g: g - own[k] + alpha * (v - w))
        own[k] = own[k] - alpha * (model - w)
        return model

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        nonlocal h
        h = h - alpha / len(case.sizes) * sum(model - w for model in models)
        return np.mean(models, axis=0) - h / alpha

    return server_rounds(case, step, train)


def moon(case: Case) -> Result:
    """Li et al. 2021, Algorithm 1; before a client's first turn, its last model is w_t, so that the term is constant."""
    mu, temperature, last = case.settings["mu"], case.settings["temperature"], {}

    def train(case: Case, k: int, w: Vector) -> Vector:
        def term(point: Tensor, x: Tensor) -> Tensor:
            z = _encode(case, point, x)
            near, far = (_encode(case, torch.tensor(model), x) for model in (w, last.get(k, w)))
            scores = [F.cosine_similarity(z, other, dim=1) / temperature for other in (near, far)]
            return mu * F.cross_entropy(torch.stack(scores, dim=1), torch.zeros(len(x), dtype=torch.long))

        v = w
        for batch in case.batches(k):
            v = v - case.lr * gradient(case, v, batch, term)
        last[k] = v
        return v

    return server_rounds(case, train=train)


def ditto(case: Case) -> Result:
    """Li et al. 2021, Algorithm 1: FedAvg, and v_k near w_t. Its listing leaves v_k's start open: here the first w_t."""
    strength, own = case.settings["strength"], {}

    def train(case: Case, k: int, w: Vector) -> Vector:
        own[k] = descend(case, k, own.get(k, w), lambda v, g: g + strength * (v - w))
        return local_sgd(case, k, w)

    return Result(server_rounds(case, train=train).weights, own)


def fedrep(case: Case) -> Result:
    """Collins et al. 2021, Algorithm 1: the head for one epoch, then the encoder for one; heads stay at the clients."""
    encoder, heads = entries(case, "encoder."), {}

    def train(case: Case, k: int, w: Vector) -> Vector:
        v, batches = np.where(encoder, w, heads.get(k, case.initial)), case.batches(k)
        for number, batch in enumerate(batches):
            trained = ~encoder if number < len(batches) // 2 else encoder
            v = v - case.lr * trained * gradient(case, v, batch)
        heads[k] = v
        return v

    weights = server_rounds(case, lambda w, cohort, models: np.where(encoder, case.mean(cohort, models), w), train).weights
    return Result([w[encoder] for w in weights], {k: v[~encoder] for k, v in heads.items()})


def fedbn(case: Case) -> Result:
    """Li et al. 2021 (FedBN), section 4: FedAvg of all but BatchNorm, with torch's BatchNorm in local training."""
    norm, own = norm_entries(case), {}

    def train(case: Case, k: int, w: Vector) -> Vector:
        own[k] = local_sgd(case, k, np.where(norm, own.get(k, case.initial), w))
        return own[k]

    weights = server_rounds(case, train=train).weights
    return Result([w[~norm] for w in weights], {k: v[norm] for k, v in own.items()})


def apfl(case: Case) -> Result:
    """Deng et al. 2020, Algorithm 1, with a fixed alpha: both models step at once; the mixture is the client's own."""
    alpha, own, mixed = case.settings["alpha"], {}, {}

    def train(case: Case, k: int, w: Vector) -> Vector:
        u, v = w, own.get(k, w)
        for batch in case.batches(k):
            g = gradient(case, alpha * v + (1 - alpha) * u, batch)
            u, v = u - case.lr * gradient(case, u, batch), v - case.lr * alpha * g
        own[k], mixed[k] = v, alpha * v + (1 - alpha) * u
        return u

    return Result(server_rounds(case, train=train).weights, mixed)


def pfedme(case: Case) -> Result:
    """Dinh et al. 2020, Algorithm 1: K steps of theta, one of w, and so on; beta mixes at the server."""
    s, own = case.settings, {}

    def train(case: Case, k: int, w: Vector) -> Vector:
        u = theta = w
        for number, batch in enumerate(case.batches(k), 1):
            theta = theta - case.lr * (gradient(case, theta, batch) + s["strength"] * (theta - u))
            if number % s["steps"] == 0:
                u = u - s["rate"] * s["strength"] * (u - theta)
        own[k] = theta
        return u

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        return (1 - s["beta"]) * w + s["beta"] * case.mean(cohort, models)

    return Result(server_rounds(case, step, train).weights, own)


def qfedavg(case: Case) -> Result:
    """Li et al. 2020, Algorithm 2: F_k is the loss of w_t, L = 1 / lr."""
    q = case.settings["q"]

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        losses = np.array([float(_loss(case, torch.tensor(w), *case.examples(k))) for k in cohort])
        changes = (w - np.stack(models)) / case.lr
        h = q * losses ** (q - 1) * (changes**2).sum(axis=1) + losses**q / case.lr
        return w - (losses**q @ changes) / h.sum()

    return server_rounds(case, step)


def adaptive(second: Callable[[Vector, Vector, float], Vector]) -> Run:
    """Reddi et al. 2021, Algorithm 2, from v = tau^2; FedAdagrad without a first moment."""

    def run(case: Case) -> Result:
        s, m, v = case.settings, np.zeros_like(case.initial), np.full_like(case.initial, case.settings["tau"] ** 2)

        def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
            nonlocal m, v
            change = case.mean(cohort, models) - w
            m = s["beta_1"] * m + (1 - s["beta_1"]) * change
            v = second(v, change**2, s["beta_2"])
            return w + s["server_lr"] * m / (np.sqrt(v) + s["tau"])

        return server_rounds(case, step)

    return run


def torch_adam(case: Case) -> Result:
    """FedAdam as this package has it: Kingma and Ba 2015, from v = 0 and with bias corrected."""
    s, number, m, v = case.settings, 0, np.zeros_like(case.initial), np.zeros_like(case.initial)

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        nonlocal number, m, v
        number, change = number + 1, case.mean(cohort, models) - w
        lr, tau = as_torch_adam(s, number)
        m, v = s["beta_1"] * m + (1 - s["beta_1"]) * change, s["beta_2"] * v + (1 - s["beta_2"]) * change**2
        return w + lr * m / (np.sqrt(v) + tau)

    return server_rounds(case, step)


def fedavgm(case: Case) -> Result:
    """Hsu et al. 2019, section 3.1."""
    velocity = np.zeros_like(case.initial)

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        nonlocal velocity
        velocity = case.settings["momentum"] * velocity + w - case.mean(cohort, models)
        return w - case.settings["server_lr"] * velocity

    return server_rounds(case, step)


def fedbuff(case: Case) -> Result:
    """Nguyen et al. 2022, Algorithm 1: the mean of the buffered changes, each times 1 / sqrt(1 + staleness)."""
    models = [case.initial]
    for cohort, staleness in zip(case.cohorts, case.staleness, strict=True):
        starts = [models[len(models) - 1 - late] for late in staleness]
        changes = [descend(case, k, start) - start for k, start in zip(cohort, starts, strict=True)]
        discounts = 1 / np.sqrt(1 + np.array(staleness))
        models.append(models[-1] + case.settings["server_lr"] * (discounts @ np.stack(changes)) / len(cohort))
    return Result(models[1:])


def krum(case: Case) -> Result:
    """Blanchard et al. 2017, section 4: scores over m - f - 2 neighbours; the plain mean of the best."""
    neighbours = len(case.cohorts[0]) - case.settings["attackers"] - 2

    def step(w: Vector, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        squares = ((np.stack(models)[:, None] - np.stack(models)[None]) ** 2).sum(axis=2)
        scores = np.sort(squares, axis=1)[:, 1 : neighbours + 1].sum(axis=1)
        return np.mean(np.stack(models)[np.argsort(scores)[: case.settings["selected"]]], axis=0)

    return server_rounds(case, step)


def trimmed_mean(case: Case) -> Result:
    """Yin et al. 2018, Definition 2."""
    f = case.settings["attackers"]
    return server_rounds(case, lambda w, cohort, models: np.sort(models, axis=0)[f : len(models) - f].mean(axis=0))


RUNS: dict[str, Run] = {
    "FedAvg": server_rounds,  # McMahan et al. 2017, Algorithm 1
    "FedAvgM": fedavgm,
    "FedProx": fedprox,
    "SCAFFOLD": scaffold,
    "FedNova": fednova,
    "FedDyn": feddyn,
    "MOON": moon,
    "Ditto": ditto,
    "FedRep": fedrep,
    "FedBN": fedbn,
    "APFL": apfl,
    "pFedMe": pfedme,
    "q-FedAvg": qfedavg,
    "FedAdam": adaptive(lambda v, square, beta: beta * v + (1 - beta) * square),
    "FedAdagrad": adaptive(lambda v, square, beta: v + square),
    "FedYogi": adaptive(lambda v, square, beta: v - (1 - beta) * square * np.sign(v - square)),
    "FedBuff": fedbuff,
    "Krum": krum,
    "multi-Krum": krum,
    "trimmed mean": trimmed_mean,
    "median": lambda case: server_rounds(case, lambda w, cohort, models: np.median(models, axis=0)),
}

if __name__ == "__main__":
    main("torch", RUNS, {"FedAdam": torch_adam})
