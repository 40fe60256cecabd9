"""MOCHA: its fixed point against a linear system, its groups, and what it refuses."""

import csv
from itertools import pairwise
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Consecutive, trainer
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.loggers import CSVLogger
from scipy import linalg
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning.data import TensorLoader
from fl_lightning.routes.mocha import coupling, learn_relationships, pulls, similarity

SIZES = (12, 30, 18, 24, 12, 30)
GROUPS = np.array([0, 1, 0, 1, 0, 1])


class Related(L.LightningDataModule):
    """Six clients, every second one wants the same weights but for a little; few noisy examples each."""

    def __init__(
        self, dtype: torch.dtype = torch.float64, classes: bool = False, sizes: tuple[int, ...] = SIZES, noise: float = 2.0
    ) -> None:
        super().__init__()
        draw = np.random.default_rng(5)
        centres = np.array([[2.0, -1.0, 0.5, 0.0, 1.0, -2.0, 0.3, 1.0], [-1.0, 2.0, 1.5, -2.0, 0.0, 0.2, -1.0, 1.0]])
        self.truth = centres[GROUPS] + 0.1 * draw.standard_normal((6, 8))
        x = draw.standard_normal((sum(sizes), 8))
        owner = np.repeat(np.arange(6), sizes)
        y = (x * self.truth[owner]).sum(1) + noise * draw.standard_normal(sum(sizes))
        self.x, self.owner = torch.from_numpy(x).to(dtype), owner
        self.y = torch.from_numpy(y > 0).long() if classes else torch.from_numpy(y).to(dtype)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.x, self.y), batch_size=6, shuffle=True)

    def val_dataloader(self) -> Any:
        return TensorLoader((self.x, self.y), 64)


def task(lr: float = 0.05) -> fl.RegressionTask:
    torch.manual_seed(0)
    return fl.RegressionTask(
        nn.Linear(8, 1, bias=False, dtype=torch.float64), fl.HalfSquaredError(), lambda p: torch.optim.SGD(p, lr=lr)
    )


def run(rounds: int, route: Any, module: Any = None, *callbacks: Any, **more: Any) -> tuple[Tensor, fl.FederatedOrchestrator]:
    """The clients' models, shape (K, p), and the callback."""
    flags = {"precision": "64-true", **more.pop("flags", {})}
    local = fl.LocalTraining(**{"max_epochs": 5, "full_batch": True, "engine": "fabric", **more.pop("local", {})})
    federation = fl.FederatedOrchestrator(route=route, local=local, **more.pop("settings", {}))
    parts, split = Consecutive(more.pop("sizes", SIZES)), more.pop("split", {})
    data = fl.FederatedDataModule(more.pop("data", None) or Related(), parts, **split)
    trainer(rounds, federation, *callbacks, **flags).fit(module or task(), data)
    memory = federation._run.memory
    return torch.stack([memory.last_model(client).vector for client in range(6)]), federation


def of_clients(data: Related) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(data.x.numpy()[data.owner == k], data.y.numpy()[data.owner == k]) for k in range(6)]


@pytest.mark.slow
def test_without_relationships_everyone_solves_a_ridge_regression():
    """S stays the identity: client k minimises 1/2 mean residual^2 + n / n_k * (strength + l2) / 2 * |w|^2, n the mean size."""
    found, _ = run(15, fl.Mocha(0.2, 0.1, update_every=1000), task(0.2), local={"max_epochs": 20})
    for k, (x, y) in enumerate(of_clients(Related())):
        best = Ridge(alpha=0.3 * np.mean(SIZES), fit_intercept=False).fit(x, y)
        assert found[k].numpy() == pytest.approx(best.coef_, abs=1e-6)


@pytest.mark.slow
def test_it_ends_where_both_halves_of_the_alternation_agree():
    """W solves the joint normal equations for S, and S is scipy's matrix root of W W^T + eps I."""
    module = task(0.25)
    found, federation = run(50, fl.Mocha(0.1, 0.01, smoothing=0.2), module, local={"max_epochs": 10})
    torch.testing.assert_close(module.network.weight[0].detach(), found.mean(dim=0))
    w, s = found.numpy(), federation.route._relationships.numpy()
    root = linalg.sqrtm(w @ w.T + 0.2 * np.eye(6)).real
    assert s == pytest.approx(6 * root / np.trace(root), abs=1e-6)
    m = 0.1 * np.linalg.inv(s) + 0.01 * np.eye(6)
    system, right = np.kron(m, np.eye(8)), np.zeros(48)
    for k, (x, y) in enumerate(of_clients(Related())):
        block = slice(8 * k, 8 * k + 8)
        system[block, block] += x.T @ x / np.mean(SIZES)
        right[block] = x.T @ y / np.mean(SIZES)
    assert w.ravel() == pytest.approx(np.linalg.solve(system, right), abs=1e-5)


def objective(w: np.ndarray, s: np.ndarray, data: Related, route: fl.Mocha) -> float:
    fit = sum(((x @ w[k] - y) ** 2).sum() / 2 for k, (x, y) in enumerate(of_clients(data))) / np.mean(SIZES)
    inner = np.linalg.inv(s) @ (w @ w.T + route.smoothing * np.eye(6))
    return float(fit + route.strength / 2 * np.trace(inner) + route.l2 / 2 * (w**2).sum())


def test_the_joint_objective_never_rises():
    """Whatever part of the work is done, and whoever is absent."""
    values, route = [], fl.Mocha(0.3, 0.01)

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            federation = next(c for c in trainer.callbacks if isinstance(c, fl.FederatedOrchestrator))
            memory, start = federation._run.memory, torch.zeros(8, dtype=torch.float64)
            kept = [memory.last_model(k) for k in range(6)]
            w = torch.stack([start if own is None else own.vector for own in kept]).numpy()
            values.append(objective(w, route._relationships.numpy(), trainer.datamodule.datamodule, route))

    module = task()
    nn.init.zeros_(module.network.weight)
    work = {"partial_work": fl.PartialWork(0.5), "max_epochs": 3}
    run(12, route, module, Watch(), local=work, settings={"clients_per_round": 4, "availability": fl.Availability(0.2)})
    assert all(after <= before + 1e-9 for before, after in pairwise(values))
    assert values[-1] < 0.8 * values[0]


@pytest.mark.slow
def test_classification_by_the_squared_hinge(tmp_path):
    """With biases, in float32, each client's own model measured on its own test part; the correlations are written."""
    torch.manual_seed(0)
    module = fl.ClassificationTask(nn.Linear(8, 2), 2, fl.Hinge(), lambda p: torch.optim.SGD(p, lr=0.05))
    sizes = (40, 60, 50, 60, 40, 60)
    data = Related(torch.float32, classes=True, sizes=sizes)
    evaluation = fl.ClientEvaluation(1, "val_accuracy", compare_alone=True)
    flags = {"logger": CSVLogger(tmp_path), "default_root_dir": tmp_path, "precision": "32-true"}
    split = {"client_test": 0.4}
    settings = {"client_evaluation": evaluation}
    run(15, fl.Mocha(0.05), module, data=data, sizes=sizes, split=split, settings=settings, flags=flags)
    with (tmp_path / "client_comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["client", "test examples", "local only", "own", "gain"]
    assert float(rows[-1]["own"]) > 0.7
    with (tmp_path / "lightning_logs/version_0/relationships.csv").open() as file:
        matrix = list(csv.reader(file))
    assert matrix[0] == ["client", "0", "1", "2", "3", "4", "5"]
    assert [float(matrix[k + 1][k + 1]) for k in range(6)] == pytest.approx([1.0] * 6)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 10_000), st.floats(0.01, 10))
def test_the_bound_is_above_the_regularizer_and_touches_it(clients, features, seed, strength):
    """For any W and any other V: 1/2 tr(V^T M V) <= bound(V), with equality at W up to the constant."""
    draw = torch.Generator().manual_seed(seed)
    w, v = torch.randn(2, clients, features, generator=draw, dtype=torch.float64)
    m = coupling(learn_relationships(w, 0.1), strength, 0.01)
    anchors, strengths = pulls(w, m)

    def rise(at: Tensor) -> float:
        true = 0.5 * (at * (m @ at)).sum() - 0.5 * (w * (m @ w)).sum()
        bound = 0.5 * (strengths[:, None] * ((at - anchors) ** 2 - (w - anchors) ** 2)).sum()
        return float(bound - true)

    assert rise(v) >= -1e-6 * float(strengths.max())
    assert rise(w) == 0
    assert similarity(learn_relationships(w, 0.1)).diagonal().tolist() == pytest.approx([1.0] * clients)
