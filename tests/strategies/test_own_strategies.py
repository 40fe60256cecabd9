"""Strategies that a user writes: mistakes are named, and none trains another model without a word."""

import pytest
import torch
from federations import Plain, federate, same_bits, weights

from fl_lightning import FedAvg, RunningStrategy, SecureAggregation, WeightedAverage


class Scaled(WeightedAverage):
    """FedAvg with all weights multiplied by a power of two, which is exact."""

    def __init__(self, exponent=0):
        self.factor = 2.0**exponent

    def weight(self, update):
        return self.factor * update.num_examples


def averaged_by(strategy, **settings):
    torch.manual_seed(3)
    module = Plain()
    federate(module, 2, strategy=strategy, **settings)
    return weights(module)


def test_the_scale_of_weights_cancels():
    """Weights of 1e-16 used to be off by 1e-4, and weights of 1e-19 made all parameters multiples of 0.5."""
    expected = averaged_by(Scaled())
    assert same_bits(averaged_by(FedAvg()), expected)
    for exponent in (-30, -63, -800):
        found = averaged_by(Scaled(exponent))
        assert all(torch.allclose(found[name], expected[name], 0, 1e-6) for name in expected), exponent


def test_a_light_weight_beside_a_heavy_one_counts_by_its_share():
    class Unequal(Scaled):
        def weight(self, update):
            return 1.0 if update.client else 1e-300

    class Without(Scaled):
        def weight(self, update):
            return float(update.client > 0)

    assert same_bits(averaged_by(Unequal()), averaged_by(Without()))


def test_small_weights_cancel_under_masks_as_well():
    """Those that are too small are in the table of refusals."""
    masked, plain = averaged_by(Scaled(-30), secure_aggregation=SecureAggregation()), averaged_by(Scaled())
    assert all(torch.allclose(masked[name], plain[name], 0, 1e-6) for name in plain)


class TensorWeight(WeightedAverage):
    def weight(self, update):
        return torch.tensor(float(update.num_examples))


class TensorSums(RunningStrategy):
    def accumulate(self, update, sums):
        weight = torch.tensor(float(update.num_examples))
        sums.add("state", update.state, weight=weight)
        sums.add("weight", 1.0, weight=weight)
        return weight

    def aggregate(self, sums):
        return sums.take("state") / sums.scalar("weight")


@pytest.mark.parametrize("strategy", [TensorWeight(), TensorSums()])
def test_weights_may_be_tensors(strategy):
    found, expected = averaged_by(strategy), averaged_by(FedAvg())
    assert all(torch.allclose(found[name], expected[name], 0, 1e-6) for name in expected)
