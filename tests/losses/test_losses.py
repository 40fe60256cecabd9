"""Losses against closed forms; ``val_loss`` is the plain one, and what clients trained with is ``val_adaptive_loss``."""

from typing import Any

import numpy as np
import pytest
import torch
from federations import Blobs, Consecutive, Plain, federate, trainer
from torch import nn
from torch.nn import functional as F

import fl_lightning as fl

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.3, -2.0], [1.0, 1.0, 1.0], [-3.0, 4.0, 0.1]])
LABELS = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_cross_entropy_is_equation_2(dtype):
    """Worked in numpy from AdaFed's eq. (2): divided by M = 4 samples."""
    loss = fl.F1WeightedCrossEntropy(3)
    loss.adapt(torch.tensor([0.9, 0.4, 0.0]))
    kappa = np.array([1 / 1.0, 1 / 0.5, 1 / 0.1])
    z = LOGITS.double().numpy()
    log_softmax = z - np.log(np.exp(z).sum(1, keepdims=True))
    expected = -sum(kappa[y] * log_softmax[m, y] for m, y in enumerate(LABELS.tolist())) / 4
    assert loss(LOGITS.to(dtype), LABELS).item() == pytest.approx(expected, rel=1e-6)


def test_it_is_not_torchs_weighted_mean_and_a_class_without_examples_weighs_one():
    loss = fl.F1WeightedCrossEntropy(3)
    assert loss(LOGITS, LABELS).item() == pytest.approx(fl.CrossEntropy()(LOGITS, LABELS).item())  # before it adapts
    loss.adapt(torch.tensor([0.9, 0.4, torch.nan]))
    assert loss.class_weights.tolist() == pytest.approx([1.0, 2.0, 1.0])
    loss.adapt(torch.tensor([0.9, 0.4, 0.0]))
    torchs = F.cross_entropy(LOGITS, LABELS, weight=loss.class_weights)
    sum_of_weights = loss.class_weights[LABELS].sum()
    assert loss(LOGITS, LABELS).item() == pytest.approx((torchs * sum_of_weights / 4).item())
    assert abs(loss(LOGITS, LABELS) - torchs) > 0.1
    other = fl.F1WeightedCrossEntropy(3)
    other.load_state_dict(loss.state_dict())
    assert other.class_weights.tolist() == pytest.approx([1.0, 2.0, 10.0])


@pytest.mark.parametrize("inner", [fl.CrossEntropy(), fl.F1WeightedCrossEntropy(3)])
def test_proximal_loss_adds_half_mu_times_the_squared_distance(inner):
    w = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    frozen = torch.nn.Parameter(torch.tensor([5.0]), requires_grad=False)
    loss = fl.ProximalLoss(inner, mu=0.5)
    loss.anchor([w, frozen])
    assert loss(LOGITS, LABELS).item() == pytest.approx(inner(LOGITS, LABELS).item())
    with torch.no_grad():
        w += torch.tensor([3.0, -4.0])
    total = loss(LOGITS, LABELS)
    assert (total - inner(LOGITS, LABELS)).item() == pytest.approx(0.5 / 2 * 25, rel=1e-5)
    total.backward()
    assert w.grad.tolist() == pytest.approx([1.5, -2.0])
    with torch.no_grad():
        assert loss(LOGITS, LABELS).item() == pytest.approx(inner(LOGITS, LABELS).item())


class Seen(fl.FederationCallback):
    """The class weights that a round begins with, and what is logged of it."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []
        self.logged: list[dict[str, float]] = []

    def on_round_start(self, trainer: Any, pl_module: Any, round_idx: int, cohort: tuple[int, ...]) -> None:
        part = next(part for part in pl_module.loss.modules() if isinstance(part, fl.F1WeightedCrossEntropy))
        self.weights.append(part.class_weights.clone())

    def on_round_end(self, trainer: Any, pl_module: Any, round_idx: int) -> None:
        self.logged.append({name: float(value) for name, value in trainer.callback_metrics.items()})
        x, y = Blobs().val
        logits = pl_module.network(x)
        log_p = F.log_softmax(logits, dim=1)[torch.arange(len(y)), y]
        self.logged[-1] |= {"plain": float(-log_p.mean()), "weighted": float(-(self.weights[-1][y] * log_p).mean())}


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: fl.ProximalLoss(loss, 0.1)])
def test_class_weights_do_not_enter_val_loss(wrap):
    torch.manual_seed(0)
    task, seen = fl.ClassificationTask(Plain().net, 3, wrap(fl.F1WeightedCrossEntropy(3))), Seen()
    federate(task, 3, seen)
    assert not torch.equal(seen.weights[0], seen.weights[2])
    for logged in seen.logged:
        assert logged["val_loss"] == pytest.approx(logged["plain"], rel=1e-5)
        assert logged["val_adaptive_loss"] == pytest.approx(logged["weighted"], rel=1e-5)
    assert seen.logged[2]["val_loss"] != pytest.approx(seen.logged[2]["val_adaptive_loss"], rel=0.05)


def test_fit_and_validate_agree():
    task = fl.ClassificationTask(Plain().net, 3, fl.F1WeightedCrossEntropy(3))
    run = federate(task, 2)
    fitted = {name: float(value) for name, value in run.callback_metrics.items() if name.startswith("val_")}
    data = fl.FederatedDataModule(Blobs(), Consecutive())
    (validated,) = trainer(1).validate(task, data, verbose=False)
    assert validated == pytest.approx({name: fitted[name] for name in validated}, rel=1e-6)
    assert fitted.keys() - validated.keys() == {"val_adaptive_loss"}
    (tested,) = trainer(1).test(task, data, verbose=False)
    assert tested["test_loss"] == pytest.approx(fitted["val_loss"], rel=1e-6)  # the same examples


class Line(Blobs):
    """Numbers with outliers; targets of one column."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("train", "val"):
            x, _ = getattr(self, name)
            noise = torch.randn(len(x), generator=torch.Generator().manual_seed(4))
            setattr(self, name, (x, (x.sum(1) + 5 * noise**3)[:, None]))


def test_a_robust_loss_is_measured_by_the_shape_and_scale_that_it_began_with():
    task = fl.RegressionTask(nn.Linear(4, 1), fl.RobustLoss(2.0, 2.0, adapt_scale=True))
    run = federate(task, 2, data=Line())
    assert float(task.loss.shape) < 2
    x, y = Line().val
    squared = float((((task.network(x) - y) / 2.0) ** 2 / 2).mean())  # shape 2, scale 2
    assert float(run.callback_metrics["val_loss"]) == pytest.approx(squared, rel=1e-5)
    assert float(run.callback_metrics["val_adaptive_loss"]) < squared


def test_examples_count_once_towards_what_a_loss_adapts_to(monkeypatch):
    counted = []
    monkeypatch.setattr(fl.RobustLoss, "adapt", lambda self, signal: counted.append(int(signal.sum())))
    federate(fl.RegressionTask(nn.Linear(4, 1), fl.RobustLoss()), 2, data=Line())
    assert counted == [len(Line().val[0])] * 2


def test_other_losses_have_one_name():
    run = federate(fl.ClassificationTask(Plain().net, 3, fl.CrossEntropy()), 1)
    assert "val_adaptive_loss" not in run.callback_metrics
