"""RegressionTask: what it logs against scikit-learn, and linear models against their pooled optimum."""

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Consecutive, federate, trainer
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_absolute_error, mean_absolute_percentage_error, r2_score
from sklearn.svm import SVC, LinearSVC
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import R2Score

import fl_lightning as fl
from fl_lightning.data import TensorLoader

SIZES = (9, 30, 21)
STEP = {"full_batch": True, "max_epochs": 1, "engine": "fabric"}


class Pairs(L.LightningDataModule):
    """Inputs and targets as they are."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__()
        self.x, self.y = x, y

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(self.x, self.y), batch_size=7, shuffle=True)

    def val_dataloader(self) -> Any:
        return TensorLoader((self.x, self.y), 40)

    test_dataloader = val_dataloader


def linear_data(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Clients whose inputs lie elsewhere: the pooled optimum is nobody's own."""
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(60, 3, generator=draw) + torch.arange(3).repeat_interleave(torch.tensor(SIZES))[:, None] * 0.3
    y = x @ torch.tensor([1.5, -2.0, 0.3]) - 0.8 + 0.5 * torch.randn(60, generator=draw)
    return x.to(dtype), y.to(dtype)


def sgd(lr: float) -> Any:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def fit(task: L.LightningModule, rounds: int, x: Tensor, y: Tensor, **settings: Any) -> L.Trainer:
    """By default with one gradient per client and round, and momentum at the server: gradient descent on the union."""
    settings = {"strategy": fl.FedAvgM(0.8), "local": fl.LocalTraining(**STEP), **settings}
    return federate(task, rounds, data=Pairs(x, y), partitioner=Consecutive(SIZES), **settings)


def test_what_is_logged_is_scikit_learns():
    x, y = linear_data()
    task = fl.RegressionTask(nn.Linear(3, 1), mape_floor=1e-6)
    run = fit(task, 2, x, y)
    with torch.no_grad():
        found = task(x)[:, 0]
    logged = run.callback_metrics
    assert float(logged["val_mae"]) == pytest.approx(mean_absolute_error(y, found), rel=1e-5)
    assert float(logged["val_mape"]) == pytest.approx(mean_absolute_percentage_error(y, found), rel=1e-5)
    assert float(logged["val_r2"]) == pytest.approx(r2_score(y, found), rel=1e-4)
    assert float(logged["val_loss"]) == pytest.approx(float(((found - y) ** 2).mean()), rel=1e-5)
    scores = trainer(1).test(task, Pairs(x, y), verbose=False)[0]
    assert scores["test_mae"] == pytest.approx(float(logged["val_mae"]))


def test_an_image_without_cells_is_measured_as_if_it_held_one():
    """|0 - 3| / 1 and |-4 - 2| / 4 and |0.5 - 1| / 1, worked by hand; the order of batches does not matter."""
    metric = fl.PercentageError(1.0)
    metric.update(torch.tensor([3.0, 2.0]), torch.tensor([0.0, -4.0]))
    metric.update(torch.tensor([1.0]), torch.tensor([0.5]))
    assert float(metric.compute()) == pytest.approx((3 + 1.5 + 0.5) / 3)
    assert metric.higher_is_better is False


def test_a_readout_is_what_is_measured_and_predicted():
    class Total(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.sum(dim=1)

    x = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 4.0]])
    task = fl.RegressionTask(nn.Identity(), readout=Total())
    task.network.weight = nn.Parameter(torch.zeros(1))
    run = trainer(1)
    scores = run.validate(task, Pairs(x, x + 1), verbose=False)[0]
    assert scores["val_mae"] == pytest.approx(2.0)
    assert scores["val_loss"] == pytest.approx(1.0)
    predicted = run.predict(task, DataLoader(TensorDataset(x), batch_size=3))
    assert predicted[0].tolist() == x.sum(dim=1).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("l2", "best"),
    [(0.0, LinearRegression()), (0.25, Ridge(alpha=0.25 * sum(SIZES)))],
    ids=["least squares", "ridge"],
)
def test_linear_regression_ends_at_the_pooled_optimum(l2, best):
    """In closed form; Ridge minimises sum of squares + alpha * |w|^2: alpha = lambda * n, and the bias is not in it."""
    x, y = linear_data(torch.float64)
    task = fl.RegressionTask(nn.Linear(3, 1, dtype=torch.float64), fl.HalfSquaredError(), sgd(0.2), l2=l2)
    fit(task, 120, x, y, flags={"precision": "64-true"})
    best.fit(x, y)
    found = np.append(task.network.weight.detach().numpy(), task.network.bias.item())
    assert found == pytest.approx(np.append(best.coef_, best.intercept_), abs=1e-5)


def svm(squared: bool, bias: bool, rounds: int, lr: float, decay: float = 1.0) -> tuple[np.ndarray, float, Tensor, Tensor]:
    x, y = linear_data(torch.float64)
    labels = (y > y.median()).long()
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=bias, dtype=torch.float64)
    task = fl.ClassificationTask(network, 2, fl.Hinge(squared), sgd(lr), l2=0.05)
    fit(task, rounds, x, labels, local=fl.LocalTraining(**STEP, lr_decay=decay), flags={"precision": "64-true"})
    offset = float(network.bias[1].detach()) if bias else 0.0
    torch.testing.assert_close(network.weight[0], -network.weight[1], rtol=0, atol=1e-3 if squared else 0.1)
    return network.weight[1].detach().numpy(), offset, x, labels


@pytest.mark.slow
def test_the_squared_hinge_is_linear_svc():
    """LinearSVC minimises 1/2 |w|^2 + C * sum of squared hinges: C = 1 / (lambda n). Without a bias, which it would shrink."""
    weight, _, x, labels = svm(True, False, 150, 0.2)
    best = LinearSVC(loss="squared_hinge", C=1 / (0.05 * len(x)), fit_intercept=False, tol=1e-10, max_iter=100_000)
    assert weight == pytest.approx(best.fit(x, labels).coef_[0], abs=1e-5)


@pytest.mark.slow
def test_the_plain_hinge_is_svc():
    """Subgradients of a falling rate end near the optimum: its objective within 1 %, as does no other line."""
    weight, offset, x, labels = svm(False, True, 200, 0.1, decay=0.97)
    best = SVC(kernel="linear", C=1 / (0.05 * len(x)), tol=1e-8).fit(x, labels)
    sign, inputs = labels.numpy() * 2 - 1, x.numpy()

    def cost(w: np.ndarray, b: float) -> float:
        return float(np.maximum(0, 1 - sign * (inputs @ w + b)).mean() + 0.05 / 2 * w @ w)

    least = cost(best.coef_[0], float(best.intercept_[0]))
    assert least <= cost(weight, offset) <= 1.01 * least
    assert weight == pytest.approx(best.coef_[0], abs=0.15)


@pytest.mark.parametrize("squared", [True, False])
def test_the_hinge_of_many_classes_by_hand(squared):
    """Outputs 0.5, -2, 1.5 for class 0: 1 - 0.5, 0 for -2 (on the right side by more than 1), 1 + 1.5."""
    loss = fl.Hinge(squared)(torch.tensor([[0.5, -2.0, 1.5]]), torch.tensor([0]))
    assert float(loss) == pytest.approx(0.25 + 6.25 if squared else 0.5 + 2.5)


@pytest.mark.parametrize("metric", [fl.PercentageError(1e-6), R2Score()])
def test_a_metric_of_a_strategy_sees_what_the_task_measures(metric):
    """Outputs (N, 1) against targets (N,) would be broadcast to (N, N)."""
    x, y = linear_data()
    names = {"PercentageError": "val_mape", "R2Score": "val_r2"}
    scores = []
    for chosen in (metric, names[type(metric).__name__]):
        torch.manual_seed(1)
        strategy = fl.ShapleyValues(chosen, "max", exact_up_to=5)
        fit(fl.RegressionTask(nn.Linear(3, 1)), 1, x, y, strategy=strategy)
        scores.append(strategy.figures())
    assert len(scores[0]) > 3
    assert scores[0] == pytest.approx(scores[1], rel=1e-4, abs=1e-5)
