"""RegressionTask: what it logs against scikit-learn, and linear models against their pooled optimum."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Consecutive, federate, trainer
from scipy import optimize
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import mean_absolute_error, mean_absolute_percentage_error, r2_score
from sklearn.svm import SVC, LinearSVC
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError, R2Score
from torchmetrics.classification import BinaryF1Score

from fl_lightning import (
    MLP,
    AdaFed,
    ClassificationTask,
    ConfigurationError,
    F1WeightedCrossEntropy,
    FedAvg,
    FedAvgM,
    HalfSquaredError,
    Hinge,
    LocalTraining,
    PercentageError,
    RegressionTask,
    ShapleyValues,
)
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
    settings = {"strategy": FedAvgM(0.8), "local": LocalTraining(**STEP), **settings}
    """By default with one gradient per client and round, and momentum at the server: gradient descent on the union."""
    return federate(task, rounds, data=Pairs(x, y), partitioner=Consecutive(SIZES), **settings)


def test_what_is_logged_is_scikit_learns():
    x, y = linear_data()
    task = RegressionTask(nn.Linear(3, 1), mape_floor=1e-6)
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
    metric = PercentageError(1.0)
    metric.update(torch.tensor([3.0, 2.0]), torch.tensor([0.0, -4.0]))
    metric.update(torch.tensor([1.0]), torch.tensor([0.5]))
    assert float(metric.compute()) == pytest.approx((3 + 1.5 + 0.5) / 3)
    assert metric.higher_is_better is False


def test_a_readout_is_what_is_measured_and_predicted():
    class Total(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.sum(dim=1)

    x = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 4.0]])
    task = RegressionTask(nn.Identity(), readout=Total())
    task.network.weight = nn.Parameter(torch.zeros(1))
    run = trainer(1)
    scores = run.validate(task, Pairs(x, x + 1), verbose=False)[0]
    assert scores["val_mae"] == pytest.approx(2.0)
    assert scores["val_loss"] == pytest.approx(1.0)
    predicted = run.predict(task, DataLoader(TensorDataset(x), batch_size=3))
    assert predicted[0].tolist() == x.sum(dim=1).tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-5)])
def test_linear_regression_ends_at_the_pooled_optimum(dtype, tolerance):
    """Least squares in closed form."""
    x, y = linear_data(dtype)
    task = RegressionTask(nn.Linear(3, 1, dtype=dtype), HalfSquaredError(), sgd(0.2))
    fit(task, 120, x, y, flags={"precision": "64-true"} if dtype == torch.float64 else None)
    best = LinearRegression().fit(x, y)
    found = np.append(task.network.weight.detach().numpy(), task.network.bias.item())
    assert found == pytest.approx(np.append(best.coef_, best.intercept_), abs=tolerance)


def test_with_its_l2_term_it_is_ridge_regression():
    """Ridge minimises sum of squares + alpha * |w|^2: alpha = lambda * n, and the bias is not in it."""
    x, y = linear_data(torch.float64)
    task = RegressionTask(nn.Linear(3, 1, dtype=torch.float64), HalfSquaredError(), sgd(0.2), l2=0.25)
    fit(task, 120, x, y, flags={"precision": "64-true"})
    best = Ridge(alpha=0.25 * len(x)).fit(x, y)
    found = np.append(task.network.weight.detach().numpy(), task.network.bias.item())
    assert found == pytest.approx(np.append(best.coef_, best.intercept_), abs=1e-5)


def test_several_local_steps_on_skewed_clients_do_not_end_there():
    """FedAvg's fixed point is another: what theory says, and why the configs take one step."""
    x, y = linear_data(torch.float64)
    task = RegressionTask(nn.Linear(3, 1, dtype=torch.float64), HalfSquaredError(), sgd(0.1))
    local = LocalTraining(max_epochs=20, full_batch=True, engine="fabric")
    fit(task, 15, x, y, strategy=FedAvg(), local=local, flags={"precision": "64-true"})
    assert abs(task.network.weight.detach().numpy() - LinearRegression().fit(x, y).coef_).max() > 1e-3


def test_a_network_with_mse_learns_what_no_line_can():
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(60, 1, generator=draw) * 4 - 2
    torch.manual_seed(0)
    task = RegressionTask(MLP(1, (32,), 1), optimizer=lambda p: torch.optim.Adam(p, lr=0.06))
    run = fit(task, 12, x, x[:, 0].square(), strategy=FedAvg(), local=LocalTraining(max_epochs=4))
    assert float(run.callback_metrics["val_r2"]) > 0.9
    assert r2_score(x.square(), LinearRegression().fit(x, x.square()).predict(x)) < 0.3


def svm(
    squared: bool, bias: bool, rounds: int, lr: float, l2: float = 0.05, decay: float = 1.0
) -> tuple[np.ndarray, float, Tensor, Tensor]:
    x, y = linear_data(torch.float64)
    labels = (y > y.median()).long()
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=bias, dtype=torch.float64)
    task = ClassificationTask(network, 2, Hinge(squared), sgd(lr), l2=l2)
    fit(task, rounds, x, labels, local=LocalTraining(**STEP, lr_decay=decay), flags={"precision": "64-true"})
    offset = float(network.bias[1].detach()) if bias else 0.0
    torch.testing.assert_close(network.weight[0], -network.weight[1], rtol=0, atol=1e-3 if squared else 0.1)
    return network.weight[1].detach().numpy(), offset, x, labels


def test_the_squared_hinge_is_linear_svc():
    """LinearSVC minimises 1/2 |w|^2 + C * sum of squared hinges: C = 1 / (lambda n). Without a bias, which it would shrink."""
    weight, _, x, labels = svm(True, False, 150, 0.2)
    best = LinearSVC(loss="squared_hinge", C=1 / (0.05 * len(x)), fit_intercept=False, tol=1e-10, max_iter=100_000)
    assert weight == pytest.approx(best.fit(x, labels).coef_[0], abs=1e-5)


def test_the_squared_hinge_with_its_bias_is_the_minimum_that_scipy_finds():
    weight, offset, x, labels = svm(True, True, 100, 0.2)
    sign, inputs = labels.numpy() * 2 - 1, x.numpy()

    def cost(w: np.ndarray) -> float:
        return float((np.maximum(0, 1 - sign * (inputs @ w[:3] + w[3])) ** 2).mean() + 0.05 / 2 * w[:3] @ w[:3])

    best = optimize.minimize(cost, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    assert np.append(weight, offset) == pytest.approx(best.x, abs=1e-4)


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
    loss = Hinge(squared)(torch.tensor([[0.5, -2.0, 1.5]]), torch.tensor([0]))
    assert float(loss) == pytest.approx(0.25 + 6.25 if squared else 0.5 + 2.5)


def test_the_hinge_wants_classes():
    with pytest.raises(ConfigurationError, match=r"one class per example, but got \(4, 1\) and targets of torch.float32"):
        Hinge()(torch.zeros(4, 1), torch.zeros(4))


def test_outputs_of_another_shape():
    x, y = linear_data()
    with pytest.raises(ConfigurationError, match=r"outputs of shape \(\d+, 2\), but the targets have shape \(\d+,\)"):
        fit(RegressionTask(nn.Linear(3, 2)), 1, x, y)
    with pytest.raises(ConfigurationError, match=r"Linear cannot take inputs of shape"):
        fit(RegressionTask(nn.Linear(5, 1)), 1, x, y)


def test_a_server_with_a_single_number():
    class One(Pairs):
        def val_dataloader(self) -> Any:
            return TensorLoader((self.x[:1], self.y[:1]), 16)

    task = RegressionTask(nn.Linear(3, 1))
    run = federate(task, 1, data=One(*linear_data()), partitioner=Consecutive(SIZES))
    x, y = linear_data()
    assert torch.isnan(run.callback_metrics["val_r2"])
    assert float(run.callback_metrics["val_mae"]) == pytest.approx(abs(float(task(x[:1])[0, 0].detach() - y[0])), rel=1e-5)


@pytest.mark.parametrize("metric", [PercentageError(1e-6), MeanAbsoluteError(), R2Score()])
def test_a_metric_of_a_strategy_sees_what_the_task_measures(metric):
    """Outputs (N, 1) against targets (N,) would be broadcast to (N, N)."""
    x, y = linear_data()
    names = {"PercentageError": "val_mape", "MeanAbsoluteError": "val_mae", "R2Score": "val_r2"}
    scores = []
    for chosen in (metric, names[type(metric).__name__]):
        torch.manual_seed(1)
        strategy = ShapleyValues(chosen, "max", exact_up_to=5)
        fit(RegressionTask(nn.Linear(3, 1)), 1, x, y, strategy=strategy)
        scores.append(strategy.figures())
    assert len(scores[0]) > 3
    assert scores[0] == pytest.approx(scores[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            lambda: RegressionTask(nn.Linear(3, 1), nn.CrossEntropyLoss()),
            "must be a loss of numbers, .* but is 'CrossEntropyLoss'",
        ),
        (lambda: RegressionTask(nn.Linear(3, 1), F1WeightedCrossEntropy(3)), r"'model.loss' must be a loss of numbers"),
        (
            lambda: ClassificationTask(nn.Linear(3, 2), 2, nn.MSELoss()),
            "MSELoss cannot compare outputs of shape",
        ),
    ],
)
def test_a_loss_for_other_data(task, message):
    x, y = linear_data()
    with pytest.raises(ConfigurationError, match=message):
        fit(task(), 1, x, (y > 0).long())


def test_a_metric_for_other_data():
    x, y = linear_data()
    with pytest.raises(
        ConfigurationError, match=r"BinaryF1Score cannot compare predictions of torch.float32.*'federation.strategy.metric'"
    ):
        fit(RegressionTask(nn.Linear(3, 1)), 1, x, y, strategy=AdaFed(BinaryF1Score()))


def test_data_without_a_target():
    class Alone(Pairs):
        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(self.x), batch_size=7)

        def val_dataloader(self) -> Any:
            return TensorLoader((self.x,), 16)

    with pytest.raises(
        ConfigurationError, match=r"RegressionTask learns from batches of \(input, target\), but the data return only inputs"
    ):
        federate(RegressionTask(nn.Linear(3, 1)), 1, data=Alone(*linear_data()), partitioner=Consecutive(SIZES))


def test_half_the_squared_error_of_other_shapes():
    with pytest.raises(ConfigurationError, match=r"HalfSquaredError needs .* of the same shape, but got \(3, 1\) and \(3,\)"):
        HalfSquaredError()(torch.zeros(3, 1), torch.zeros(3))
    with pytest.raises(ConfigurationError, match=r"PercentageError needs .* of the same shape, but got \(3, 1\) and \(3,\)"):
        PercentageError().update(torch.zeros(3, 1), torch.zeros(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"l2": -1.0}, r"'model.l2' must be 0 or above, but is -1.0"),
        ({"mape_floor": 0.0}, r"mape_floor' must be above 0, in units of the target, but is 0.0"),
    ],
)
def test_settings_outside_their_range(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        RegressionTask(nn.Linear(3, 1), **settings)
