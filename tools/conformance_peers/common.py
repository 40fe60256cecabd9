"""What the driver and every peer's adapter share: the case, the network, plain local SGD, and the files between them.

A case is a federation in numbers: data, initial weights, the cohort of each round, and settings. An adapter is a table of
functions, one for each algorithm: a case in, weights after each round out. ``main`` runs all cases of a folder. It needs
numpy and torch only, because it runs in each peer's own environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Vector = NDArray[np.float64]
INPUTS, HIDDEN, CLASSES = 4, 6, 3


@dataclass(frozen=True)
class Case:
    """One algorithm on one federation; batches are taken in order, and the last one may be smaller.

    Attributes:
        algorithm: the algorithm's name in the table.
        settings: its settings, and ``epochs``, ``batch`` and ``lr`` of the clients' plain SGD.
        initial: the initial weights, shape (p,).
        x: all clients' inputs, one after another, shape (n, INPUTS).
        y: their labels, shape (n,).
        sizes: the number of examples of each client.
        cohorts: the clients of each round, ascending.
        staleness: the number of new models since each of them started; 0 in synchronous rounds.
    """

    algorithm: str
    settings: dict[str, Any]
    initial: Vector
    x: Vector
    y: NDArray[np.int64]
    sizes: Sequence[int]
    cohorts: Sequence[Sequence[int]]
    staleness: Sequence[Sequence[int]]

    @property
    def lr(self) -> float:
        return float(self.settings["lr"])

    def examples(self, client: int) -> tuple[Tensor, Tensor]:
        stop = int(np.sum(self.sizes[: client + 1]))
        part = slice(stop - int(self.sizes[client]), stop)
        return torch.as_tensor(self.x[part]), torch.as_tensor(self.y[part])

    def batches(self, client: int) -> list[tuple[Tensor, Tensor]]:
        """All batches of a turn."""
        x, y = self.examples(client)
        size = int(self.settings["batch"])
        epoch = list(zip(x.split(size), y.split(size), strict=True))
        return epoch * int(self.settings["epochs"])

    def shares(self, cohort: Sequence[int]) -> Vector:
        """Weights of the average, which sum to 1: by examples, or equal ones if the settings say ``uniform``."""
        uniform = self.settings.get("weighting") == "uniform"
        weights = np.array([1.0 if uniform else self.sizes[client] for client in cohort], dtype=np.float64)
        return weights / weights.sum()

    def mean(self, cohort: Sequence[int], models: Sequence[Vector]) -> Vector:
        """The average of clients' models with these weights."""
        return self.shares(cohort) @ np.stack(models)


@dataclass(frozen=True)
class Result:
    """Weights after each round, shape (rounds, p), and the clients' own models after the last one, by client."""

    weights: Sequence[Vector]
    own: dict[int, Vector] | None = None


Run = Callable[[Case], Result]


class Net(nn.Module):
    """An encoder and a head, in float64."""

    def __init__(self, batchnorm: bool = False) -> None:
        super().__init__()
        norm = [nn.BatchNorm1d(HIDDEN)] if batchnorm else []
        self.encoder = nn.Sequential(nn.Linear(INPUTS, HIDDEN), *norm, nn.Tanh())
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def network(case: Case) -> Net:
    """The network with the initial weights."""
    net = Net("batchnorm" in case.settings)
    load(net, case.initial)
    return net


def _floats(net: nn.Module) -> list[Tensor]:
    return [tensor for tensor in net.state_dict().values() if tensor.is_floating_point()]


def vector(net: nn.Module) -> Vector:
    """Parameters and running statistics, in the order of ``state_dict``, shape (p,)."""
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in _floats(net)])


def load(net: nn.Module, weights: Vector | Tensor) -> None:
    """Set what ``vector`` returns."""
    flat = torch.as_tensor(np.asarray(weights))
    with torch.no_grad():
        for tensor, piece in zip(_floats(net), flat.split([t.numel() for t in _floats(net)]), strict=True):
            tensor.copy_(piece.view_as(tensor))


def entries(case: Case, prefix: str) -> NDArray[np.bool_]:
    """Which entries of ``vector`` belong to tensors whose names begin so."""
    state = {name: tensor for name, tensor in network(case).state_dict().items() if tensor.is_floating_point()}
    return np.concatenate([np.full(tensor.numel(), name.startswith(prefix)) for name, tensor in state.items()])


def norm_entries(case: Case) -> NDArray[np.bool_]:
    """The entries of ``vector`` that belong to BatchNorm; none without it."""
    return entries(case, "encoder.1.")


def sgd(
    case: Case,
    client: int,
    net: nn.Module,
    term: Callable[[nn.Module], Any] = lambda net: 0.0,
    then: Callable[[nn.Module], object] = lambda net: None,
) -> None:
    """Plain SGD through a client's batches, with a term in the loss, and something to do after each step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=case.lr)
    net.train()
    for x, y in case.batches(client):
        optimizer.zero_grad()
        (F.cross_entropy(net(x), y) + term(net)).backward()
        optimizer.step()
        then(net)


def local_sgd(case: Case, client: int, start: Vector) -> Vector:
    """FedAvg's client: plain SGD from the given weights."""
    net = network(case)
    load(net, start)
    sgd(case, client, net)
    return vector(net)


def server_rounds(
    case: Case,
    step: Callable[[Vector, Sequence[int], list[Vector]], Vector] | None = None,
    train: Callable[[Case, int, Vector], Vector] = local_sgd,
) -> Result:
    """Rounds: ``step(w_t, cohort, models)`` is w_{t+1}, by default the average; ``train(case, k, w_t)`` a client's model."""
    weights, w = [], case.initial
    for cohort in case.cohorts:
        models = [train(case, client, w) for client in cohort]
        w = np.asarray(case.mean(cohort, models) if step is None else step(w, cohort, models), dtype=np.float64)
        weights.append(w)
    return Result(weights)


def as_torch_adam(settings: dict[str, Any], number: int) -> tuple[float, float]:
    """The rate and tau of round ``number``, from 1, with which ``rate * m / (sqrt(v) + tau)`` is torch's Adam, v from 0."""
    first, second = (1 - settings[name] ** number for name in ("beta_1", "beta_2"))
    return settings["server_lr"] * second**0.5 / first, settings["tau"] * second**0.5


SERVER_OPTIMIZERS: dict[str, Callable[[Any, dict[str, Any]], torch.optim.Optimizer]] = {
    "FedAvgM": lambda parameters, s: torch.optim.SGD(parameters, s["server_lr"], s["momentum"]),
    "FedAdam": lambda parameters, s: torch.optim.Adam(parameters, s["server_lr"], (s["beta_1"], s["beta_2"]), s["tau"]),
    "FedAdagrad": lambda parameters, s: torch.optim.Adagrad(
        parameters, s["server_lr"], eps=s["tau"], initial_accumulator_value=s["tau"] ** 2
    ),
}
"""Of peers that take any optimizer of torch at the server."""


def save(what: Case | Result, file: Path) -> None:
    """Write a case or a result as JSON, which keeps every bit of a float."""
    file.write_text(json.dumps(asdict(what), default=np.ndarray.tolist), encoding="utf-8")


def load_case(file: Path) -> Case:
    found = json.loads(file.read_text(encoding="utf-8"))
    return Case(**found | {name: np.array(found[name]) for name in ("initial", "x", "y")})


def load_result(file: Path) -> Result:
    found = json.loads(file.read_text(encoding="utf-8"))
    own = {int(client): np.array(weights) for client, weights in (found["own"] or {}).items()}
    return Result([np.array(weights) for weights in found["weights"]], own or None)


def main(
    package: str, runs: dict[str, Run], changed: dict[str, Run] | None = None, explained: dict[str, Run] | None = None
) -> None:
    """Run every case of a folder that the adapter knows.

    Args:
        package: the peer's package, whose version is noted.
        runs: the algorithms as the peer has them.
        changed: the same with those lines of the peer changed that the documentation names: must agree with ours.
        explained: the paper's algorithm with the peer's lines in it: must agree with the peer.
    """
    parser = argparse.ArgumentParser(description=f"Run the cases of a folder with {package}.")
    folder = parser.add_argument("folder", type=Path) and parser.parse_args().folder
    (folder / "version.txt").write_text(importlib.metadata.version(package), encoding="utf-8")
    for file in sorted(folder.glob("case_*.json")):
        case = load_case(file)
        for kind, table in (("result", runs), ("changed", changed or {}), ("explained", explained or {})):
            if case.algorithm in table:
                target = folder / f"{kind}_{case.algorithm}.json"
                try:
                    save(table[case.algorithm](case), target)
                except Exception:  # a peer that cannot run it is a row of the table
                    target.with_suffix(".txt").write_text(traceback.format_exc(), encoding="utf-8")
