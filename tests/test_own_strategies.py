"""Strategies that a user writes: mistakes are named, and none trains another model without a word."""

from __future__ import annotations

import pytest
import torch
from federations import Plain, federate

from fl_lightning import ConfigurationError, FedAvg, FedMedian

SIZE = 4 * 8 + 8 + 8 * 3 + 3
"""The numbers of Plain: two linear layers."""


class Answer(FedAvg):
    """Returns something else than the new state."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def aggregate(self, sums):
        return self.change(super().aggregate(sums))


class JointAnswer(FedMedian):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def combine(self, updates, scorer):
        state, weights = super().combine(updates, scorer)
        return self.change(state), weights


@pytest.mark.parametrize(("kind", "method"), [(Answer, "aggregate"), (JointAnswer, "combine")])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state[:-1], rf"a tensor of shape \({SIZE - 1},\) in float64"),
        (lambda state: torch.cat([state, state]), rf"a tensor of shape \({2 * SIZE},\) in float64"),
        (lambda state: state.mean(), r"a tensor of shape \(\) in float64"),
        (lambda state: state[None], rf"a tensor of shape \(1, {SIZE}\) in float64"),
        (lambda state: state.float(), rf"a tensor of shape \({SIZE},\) in float32"),
        (lambda state: None, "None"),
    ],
)
def test_a_new_state_of_another_shape_is_refused(kind, method, change, told):
    wanted = rf"{kind.__name__}\.{method} returned {told}, but a float64 tensor of shape \({SIZE},\) is needed\. Return"
    with pytest.raises(ConfigurationError, match=wanted):
        federate(Plain(), 1, strategy=kind(change))
