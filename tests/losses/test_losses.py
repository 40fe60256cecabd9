"""Losses against closed forms and other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fl_lightning import CrossEntropy, F1WeightedCrossEntropy, ProximalLoss

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.3, -2.0], [1.0, 1.0, 1.0], [-3.0, 4.0, 0.1]])
LABELS = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weighted_cross_entropy_is_equation_2(dtype):
    """Worked in numpy from AdaFed's eq. (2): divided by M = 4 samples."""
    loss = F1WeightedCrossEntropy(3)
    loss.adapt(torch.tensor([0.9, 0.4, 0.0]))
    kappa = np.array([1 / 1.0, 1 / 0.5, 1 / 0.1])
    z = LOGITS.double().numpy()
    log_softmax = z - np.log(np.exp(z).sum(1, keepdims=True))
    expected = -sum(kappa[y] * log_softmax[m, y] for m, y in enumerate(LABELS.tolist())) / 4
    assert loss(LOGITS.to(dtype), LABELS).item() == pytest.approx(expected, rel=1e-6)


def test_it_is_not_torchs_weighted_mean_and_a_class_without_examples_weighs_one():
    loss = F1WeightedCrossEntropy(3)
    assert loss(LOGITS, LABELS).item() == pytest.approx(CrossEntropy()(LOGITS, LABELS).item())  # before it adapts
    loss.adapt(torch.tensor([0.9, 0.4, torch.nan]))
    assert loss.class_weights.tolist() == pytest.approx([1.0, 2.0, 1.0])
    loss.adapt(torch.tensor([0.9, 0.4, 0.0]))
    torchs = F.cross_entropy(LOGITS, LABELS, weight=loss.class_weights)
    sum_of_weights = loss.class_weights[LABELS].sum()
    assert loss(LOGITS, LABELS).item() == pytest.approx((torchs * sum_of_weights / 4).item())
    assert abs(loss(LOGITS, LABELS) - torchs) > 0.1
    other = F1WeightedCrossEntropy(3)
    other.load_state_dict(loss.state_dict())
    assert other.class_weights.tolist() == pytest.approx([1.0, 2.0, 10.0])


@pytest.mark.parametrize("inner", [CrossEntropy(), F1WeightedCrossEntropy(3)])
def test_proximal_loss_adds_half_mu_times_the_squared_distance(inner):
    w = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    frozen = torch.nn.Parameter(torch.tensor([5.0]), requires_grad=False)
    loss = ProximalLoss(inner, mu=0.5)
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
