"""FedProx's synthetic(alpha, beta) with stragglers (Li et al. 2020, figures 1 and 2), beside their algorithm in NumPy.

30 clients with a logistic regression of their own each (60 features, 10 classes, sizes lognormal(4, 2) + 50), 10 a round, 20
epochs in batches of 10 in a fixed order, SGD with learning rate 0.01. Of stragglers, FedAvg drops the work, FedProx keeps it:
1 to 19 epochs, drawn uniformly. What the NumPy half takes from ours are the draws: each round's clients and their epochs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import numpy as np
import torch
from benchmark_loop import Plain, quiet
from torch import nn
from torch.utils.data import TensorDataset

import fl_lightning as fl

Array = np.ndarray[Any, np.dtype[np.float64]]
Client = tuple[Array, np.ndarray[Any, np.dtype[np.int64]]]
EPOCHS, BATCH, LR = 20, 10, 0.01


def synthetic(alpha: float, beta: float, clients: int = 30, seed: int = 0) -> list[Client]:
    """Return clients' examples: alpha is how far their models differ, beta how far their features do."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(4, 2, clients).astype(int) + 50
    models, centres = rng.normal(0, alpha, clients), rng.normal(0, beta, clients)
    deviations = np.arange(1, 61) ** -0.6  # the square root of their diagonal covariance j ** -1.2
    found = []
    for size, model, centre in zip(sizes, models, centres, strict=True):
        weight, bias = rng.normal(model, 1, (60, 10)), rng.normal(model, 1, 10)
        x = rng.normal(centre, 1, 60) + deviations * rng.standard_normal((size, 60))
        found.append((x, (x @ weight + bias).argmax(1)))
    return [(x[: len(y) * 9 // 10], y[: len(y) * 9 // 10]) for x, y in found]


def _errors(weights: Array, x: Array, y: Any) -> tuple[Array, float]:
    """The softmax minus the one-hot labels, and the mean cross-entropy."""
    logits = x @ weights[:-1] + weights[-1]
    logits -= logits.max(1, keepdims=True)
    softmax = np.exp(logits)
    softmax /= softmax.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -float(np.log(softmax[rows, y]).mean())
    softmax[rows, y] -= 1
    return softmax, loss


def training_loss(weights: Array, clients: Sequence[Client]) -> float:
    """Return the mean cross-entropy on all clients' examples; the last row of ``weights`` is the bias."""
    return float(np.average([_errors(weights, *client)[1] for client in clients], weights=[len(y) for _, y in clients]))


def solve(start: Array, client: Client, epochs: int, mu: float) -> Array:
    """Return a client's weights: w -= lr (gradient + mu (w - start)), batch after batch."""
    (x, y), weights = client, start.copy()
    for first in list(range(0, len(y), BATCH)) * epochs:
        batch = x[first : first + BATCH]
        errors = _errors(weights, batch, y[first : first + BATCH])[0] / len(batch)
        gradient = np.vstack([batch.T @ errors, errors.sum(0)])
        weights -= LR * (gradient + mu * (weights - start))
    return weights


def by_paper(start: Array, clients: Sequence[Client], rounds: Sequence[dict[int, int]], mu: float) -> list[Array]:
    """Return the weights after each round; ``rounds`` are the epochs of each round's clients."""
    found = [start]
    for epochs in rounds:
        solved = [solve(found[-1], clients[k], epochs[k], mu) for k in epochs]
        found.append(np.average(solved, axis=0, weights=[len(clients[k][1]) for k in epochs]))
    return found[1:]


@dataclass
class Record(fl.FederationCallback):
    """The epochs of each round's clients, and the weights after it."""

    rounds: list[dict[int, int]] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)

    def on_aggregated(self, trainer: L.Trainer, pl_module: Any, updates: list[fl.ClientUpdate]) -> None:
        self.rounds.append({update.client: update.num_steps // -(-update.num_examples // BATCH) for update in updates})

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.weights.append(_weights(pl_module.net))


def _weights(layer: nn.Linear) -> Array:
    found: Array = torch.cat([layer.weight.detach().T, layer.bias.detach()[None]]).double().numpy()
    return found


def ours(clients: Sequence[Client], rounds: int, mu: float, share: float, drop: bool) -> tuple[Array, Record]:
    """Return the initial weights, and the record of a federation in float64."""
    quiet()
    torch.manual_seed(0)
    net, record = nn.Linear(60, 10), Record()
    work = fl.PartialWork(share, "drop" if drop else "keep")
    local = fl.LocalTraining(max_epochs=EPOCHS, proximal_mu=mu, engine="fabric", partial_work=work)
    federation = fl.FederatedOrchestrator(strategy=fl.FedAvg(), local=local, clients_per_round=min(10, len(clients)))
    sets = {f"{k:02}": TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for k, (x, y) in enumerate(clients)}
    data = fl.FederatedDataModule.from_clients(sets, batch_size=BATCH, shuffle=False)
    start = _weights(net)
    with tempfile.TemporaryDirectory() as folder:
        off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        flags: dict[str, Any] = dict.fromkeys(off, False) | {"accelerator": "cpu", "default_root_dir": folder}
        trainer = L.Trainer(max_epochs=rounds, callbacks=[federation, record], precision="64-true", **flags)
        trainer.fit(Plain(net, LR), data)
    return start, record


CASES = [(1.0, 1.0, share, mu, drop) for share in (0.0, 0.5, 0.9) for mu, drop in ((0.0, True), (0.0, False), (1.0, False))]
CASES = [case for case in CASES if case[2] or not case[4]]  # without stragglers, none is dropped
CASES += [(spread, spread, 0.0, mu, False) for spread in (0.0, 0.5) for mu in (0.0, 1.0)]


def stragglers(args: argparse.Namespace) -> None:
    """Print the training loss over rounds, and how far the weights are from those of the NumPy half."""
    rounds = args.rounds or 200
    points = [max(1, rounds * part // 4) for part in (1, 2, 3, 4)]
    print("\n| synthetic | stragglers | algorithm | " + " | ".join(f"loss, round {n}" for n in points) + " | to NumPy |")
    print("|---|---|---|" + "---|" * 5)
    for alpha, beta, share, mu, drop in CASES:
        clients = synthetic(alpha, beta)
        start, record = ours(clients, rounds, mu, share, drop)
        theirs = by_paper(start, clients, record.rounds, mu)
        apart = max(float(abs(a - b).max()) for a, b in zip(record.weights, theirs, strict=True))
        losses = " | ".join(f"{training_loss(record.weights[n - 1], clients):.3f}" for n in points)
        name = "FedAvg, dropped" if drop else f"FedProx, mu = {mu:g}"
        print(f"| ({alpha:g}, {beta:g}) | {share:.0%} | {name} | {losses} | {apart:.0e} |", flush=True)


MEASUREMENTS = {"stragglers": stragglers}
