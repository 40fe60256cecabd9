"""Strategies that a user writes: mistakes are named, and none trains another model without a word."""

from __future__ import annotations

import pytest
import torch
from federations import Plain, federate, same_bits, weights

from fl_lightning import (
    ClientError,
    ConfigurationError,
    FedAvg,
    FedMedian,
    RunningStrategy,
    SecureAggregation,
    ServerRoute,
    WeightedAverage,
)
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.filtering import FilteringStrategy

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
    for exponent in (-30, -40, -53, -63, -100, -400, -800):
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


@pytest.mark.parametrize("values", [3.0, torch.tensor([3.0, -1.25])])
@pytest.mark.parametrize("weight", [1e-7, 1e-11, 1.4e-11, 1e-20, 1e-40, -1e-20, 1e-250])
def test_sums_with_a_light_weight_keep_their_digits(values, weight):
    sums, other = Sums(), Sums()
    for one in (sums, other):
        one.add("n", values, weight)
    sums.add("n", values, 2 * weight)
    sums.merge(other)
    expected = torch.as_tensor(values, dtype=torch.float64).reshape(-1) * 4 * weight
    assert torch.allclose(sums.value("n"), expected, rtol=2.0**-25, atol=0)


def test_masked_weights_that_are_too_small_are_refused():
    """Masks need the same sums from all clients, so weights of another size cannot have sums of their own."""
    message = r"The weight \S+ in the sum 'state' is too far from what its grid expects.* Multiply the weights of all clients"
    with pytest.raises(ClientError, match=message):
        averaged_by(Scaled(-50), secure_aggregation=SecureAggregation())
    masked, plain = averaged_by(Scaled(-30), secure_aggregation=SecureAggregation()), averaged_by(Scaled())
    assert all(torch.allclose(masked[name], plain[name], 0, 1e-6) for name in plain)


SAVES = {"state_dict": lambda self: {"momentum": 1.0}}
LOADS = {"load_state_dict": lambda self, state: None}


@pytest.mark.parametrize(("setting", "base"), [("strategy", FedAvg), ("strategy", FedMedian), ("route", ServerRoute)])
@pytest.mark.parametrize(("methods", "missing"), [(SAVES, "load_state_dict"), (LOADS, "state_dict")])
def test_half_of_a_saved_state_is_refused(setting, base, methods, missing):
    half = type("Half", (base,), methods)()
    with pytest.raises(ConfigurationError, match=f"Half defines '{next(iter(methods))}' but not '{missing}', so a resumed run"):
        federate(Plain(), 1, **{setting: half})


def test_a_state_that_is_saved_and_restored_is_accepted():
    assert same_bits(averaged_by(type("Whole", (FedAvg,), SAVES | LOADS)()), averaged_by(FedAvg()))


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


def filtering(answer):
    return type("Filter", (FilteringStrategy,), {"weights": lambda self, products, examples: answer(examples)})()


@pytest.mark.parametrize("strategy", [TensorWeight(), TensorSums(), filtering(lambda examples: examples.tolist())])
def test_weights_may_be_tensors_or_lists(strategy):
    found, expected = averaged_by(strategy), averaged_by(FedAvg())
    assert all(torch.allclose(found[name], expected[name], 0, 1e-6) for name in expected)


def with_method(base, name, change):
    own = getattr(base, name)
    return type("Own", (base,), {name: lambda self, *args: change(own(self, *args))})()


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (with_method(FedAvg, "weight", lambda _: torch.ones(2)), r"Own\.weight returns a tensor of shape \(2,\) in float32"),
        (with_method(FedAvg, "weight", lambda _: "much"), r"Own\.weight returns an object of the class str, but"),
        (with_method(FedAvg, "accumulate", lambda _: None), r"Own\.accumulate returned None, .* Return the update's weight"),
        (with_method(FedMedian, "combine", lambda both: both[0]), r"Own\.combine returned a tensor .* Return both"),
        (with_method(FedMedian, "combine", lambda both: None), r"Own\.combine returned None, but a new state and a list"),
        (filtering(lambda examples: examples[1:]), r"Filter\.weights returned a tensor of shape \(2,\) .* \(3,\) is needed"),
        (filtering(lambda examples: None), r"Filter\.weights returned None, but a tensor of shape \(3,\)"),
    ],
)
def test_weights_that_are_missing_are_named(strategy, message):
    with pytest.raises(ConfigurationError, match=message):
        federate(Plain(), 1, strategy=strategy)


@pytest.mark.parametrize(
    ("sent", "told"),
    [(torch.zeros(3), r"a tensor of shape \(3,\) in float32"), (1.0, "an object of the class float"), (None, "None")],
)
def test_a_broadcast_of_another_length_is_named(sent, told):
    own = type("Own", (FedAvg,), {"broadcast": lambda self: {"control": sent}})()
    with pytest.raises(ConfigurationError, match=rf"Own\.broadcast returned {told} as 'control', but .* \({SIZE},\) is needed"):
        federate(Plain(), 1, strategy=own)


def test_a_constructor_that_skips_its_base_is_named():
    own = type("Own", (FedAvg,), {"__init__": lambda self: None})()
    with pytest.raises(AttributeError, match=r"'Own' object has no attribute .* call 'super\(\)\.__init__\(\)' in it"):
        federate(Plain(), 1, strategy=own)
