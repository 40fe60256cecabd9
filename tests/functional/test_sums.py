"""Exact sums of any number of summands, on grids that are chosen before the round."""

import math
from fractions import Fraction
from random import Random

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fl_lightning import AdaFed, ClientError, ClientUpdate, FedAvg, FedLoss
from fl_lightning.functional.exact_sum import ExactSum, magnitudes
from fl_lightning.functional.sums import Grid, Sums, grid_of
from fl_lightning.types import Snapshot

single = st.floats(-2, 2, width=32)
leaving = st.floats(-1e6, 1e6, width=32)
weight = st.floats(1e-9, 4)


def grid(size: int, largest: float = 4.0) -> Grid:
    return Grid(((size, 2.0),), largest)


def ranks_total(shares: list[list[tuple[list[float], float]]], chosen: Grid) -> torch.Tensor:
    """What so many ranks make of their shares of the summands: as in a process group, integers are added one by one."""
    ranks = [Sums(grids={"x": chosen}) for _ in shares]
    for sums, share in zip(ranks, shares, strict=True):
        for vector, factor in share:
            sums.add("x", torch.tensor(vector), factor)
    loads = [sums.loads() for sums in ranks]
    everyone = [list(sums.integers(loads)) for sums in ranks]
    assert len({len(integers) for integers in everyone}) == 1
    for same in zip(*everyone, strict=True):
        same[0].copy_(torch.stack(same).sum(0))
    return ranks[0].value("x")


@pytest.mark.parametrize("ranks", [1, 3])
@given(
    terms=st.lists(st.tuples(st.lists(single, min_size=3, max_size=3), weight), min_size=1, max_size=10),
    outlier=st.tuples(st.lists(leaving, min_size=3, max_size=3), weight),
    random=st.randoms(),
)
@example(terms=[([0.0, 0.0, 0.0], 1e-9)], outlier=([0.0, 0.0, 0.5], 0.001), random=Random(0))  # hardly above a tier's limit
def test_a_rank_that_leaves_the_grid_alone_changes_no_bit(ranks, terms, outlier, random):
    terms = [*terms, outlier]
    once = ranks_total([terms], grid(3))
    shuffled = list(terms)
    random.shuffle(shuffled)
    shares = [shuffled[rank::ranks] for rank in range(ranks)]
    assert torch.equal(ranks_total(shares, grid(3)), once)
    for column in range(3):
        exact = math.fsum(vector[column] * factor for vector, factor in terms)
        # Each of 11 summands is rounded by at most 2**-37 of its own weight times the expected magnitude 2.
        allowed = sum(2.0**-36 * factor for _, factor in terms) + 1e-15 * abs(exact)
        assert abs(once[column].item() - exact) <= allowed


@pytest.mark.parametrize("largest", [1.0, 60_000.0])
def test_errors_are_those_of_the_grid(largest):
    """2**-50 of the bound for each summand, against exact rationals."""
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.rand(200, generator=generator) * 2 - 1 for _ in range(30)]
    weights = (torch.rand(30, generator=generator, dtype=torch.float64) * 0.9 + 0.1) * largest
    sums = Sums(grids={"x": grid_of([(200, 0.9)], 0, largest)})
    for vector, factor in zip(vectors, weights.tolist(), strict=True):
        sums.add("x", vector, factor)
    got = sums.value("x")
    for column in range(200):
        exact = sum(Fraction(float(v[column])) * Fraction(w) for v, w in zip(vectors, weights.tolist(), strict=True))
        assert abs(Fraction(got[column].item()) - exact) <= Fraction(30 * largest) * Fraction(1, 2**50) + abs(exact) / 2**52


@pytest.mark.parametrize("fraction", [None, 40])
@pytest.mark.parametrize("value", [-(2.0**-15), 0.75])
def test_two_hundred_thousand_summands_of_many_ranks_do_not_wrap(fraction, value):
    rank, total = ExactSum(2, fraction=fraction), ExactSum(2, fraction=fraction)
    for _ in range(200):
        rank.add(torch.tensor([value, -value]))
    for _ in range(1000):
        total.merge(rank)
    assert total.value().tolist() == [200_000 * value, -200_000 * value]


@pytest.mark.parametrize("first", [True, False])
def test_buffers_of_any_size_keep_their_digits(first):
    """A running variance of 1e-8 beside one of 1e8, and a parameter that starts at zero."""
    sums = Sums(grids={"state": grid_of([(1, 0.0)], 2, 10.0)})
    states = [torch.tensor([1e-3, 1e8, 1e-8]), torch.tensor([3e-3, 3e8, 3e-8])]
    for state in states if first else reversed(states):
        sums.add("state", state, 10.0)
    mean = sums.take("state") / 20
    expected = torch.stack(states).double().mean(0)
    assert torch.allclose(mean, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_before_it_becomes_an_integer(bad):
    sums = Sums(grids={"x": Grid(((2, 2.0), (1, None)), 1.0)})
    sums.add("x", torch.tensor([1.0, 2.0, 3.0]))
    for position in range(3):
        vector = torch.ones(3)
        vector[position] = bad
        with pytest.raises(ClientError, match="not finite"):
            sums.add("x", vector)
    assert sums.value("x").tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("strategy", [AdaFed("val_loss", power=200.0), FedLoss(examples=10.0)])
def test_a_power_that_leaves_the_numbers_expects_the_largest_weight_that_is_accepted(strategy):
    grids = strategy.grids([1000, 2000], lambda largest: None if largest is None else Grid(((1, 1.0),), largest))
    assert {grid.largest for grid in grids.values()} == {2.0**36}


@pytest.mark.parametrize(
    ("strategy", "weigh", "scores"),
    [
        (AdaFed(power=30.0), lambda score: score**30, [0.05, 0.06, 0.07]),
        (AdaFed("val_loss", power=12.0), lambda score: (score + Fraction(1e-3)) ** -12, [2.0, 2.3, 2.4]),
        (AdaFed("val_loss", power=60.0), lambda score: (score + Fraction(1e-3)) ** -60, [2.0, 2.3, 2.4]),
    ],
)
def test_a_high_power_of_the_score_weighs_as_it_says(strategy, weigh, scores):
    """Weights of 1e-4 where a score of 0 would weigh 1e36, and weights of 1e-39: against exact rationals."""
    grids = strategy.grids([10, 10, 10], lambda largest: grid_of([(2, 1.0)], 0, largest))
    sums, states = Sums(grids=grids), torch.tensor([[0.1, -0.2], [0.3, 0.4], [-0.7, 0.9]])
    for client, (state, score) in enumerate(zip(states, scores, strict=True)):
        model = Snapshot(state, torch.zeros(0, dtype=torch.int64))
        strategy.accumulate(ClientUpdate(client, 0, 10, 1, model=model, score=score), sums)
    weights = [weigh(Fraction(score)) for score in scores]
    expected = [sum(w * Fraction(float(x)) for w, x in zip(weights, column, strict=True)) / sum(weights) for column in states.T]
    assert strategy.aggregate(sums).tolist() == pytest.approx([float(value) for value in expected], rel=1e-9)


@given(st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(-900, 900)), min_size=1, max_size=8))
def test_weights_of_any_size_keep_their_digits(terms):
    """From 2**-900 to 2**900, far on both sides of the expected weight of 1."""
    sums = Sums(grids={"state": grid_of([(1, 1.0)], 0, 1.0), "weight": Grid(((1, None),), 1.0)})
    for value, exponent in terms:
        sums.add("state", torch.tensor([value]), 2.0**exponent)
        sums.add("weight", 1.0, 2.0**exponent)
    total = sum(Fraction(2) ** exponent for _, exponent in terms)
    exact = sum(Fraction(value) * Fraction(2) ** exponent for value, exponent in terms) / total
    assert abs(sums.value("state").item() / sums.scalar("weight") - float(exact)) < 2.0**-36


def test_the_aggregate_lies_in_the_memory_of_the_sum():
    sums = Sums(grids={"state": grid_of([(4, 1.0)], 0, 10.0)})
    strategy = FedAvg()
    update = ClientUpdate(0, 0, 10, 1, model=Snapshot(torch.arange(4.0), torch.zeros(0, dtype=torch.int64)))
    strategy.accumulate(update, sums)
    memory = next(sums.integers([sums.loads()])).data_ptr()
    aggregate = strategy.aggregate(sums)
    assert aggregate.data_ptr() == memory
    assert aggregate.tolist() == [0.0, 1.0, 2.0, 3.0]


@example(terms=[(2.0**41, 1.0), (1e12 + 0.1, -1.0 / 3)], ranks=[0] * 12, largest=None)
@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e3)), min_size=1, max_size=12),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    st.sampled_from([None, 1e3]),
)
def test_numbers_add_up_exactly_on_one_rank_or_more(terms, ranks, largest):
    """Each product is rounded to a multiple of 2**-62, or a finer one for light weights; the rest is exact."""
    grids = {} if largest is None else {"n": Grid(((1, None),), largest)}
    alone, several = Sums(grids=grids), [Sums(grids=grids) for _ in range(3)]
    for (value, weight), rank in zip(terms, ranks, strict=False):
        alone.add("n", value, weight)
        several[rank].add("n", torch.tensor([value], dtype=torch.float64), weight)  # as a tensor: the other way of adding
    total = Sums(grids=grids)
    for theirs in several:
        total.merge(theirs)
    exact = float(sum(Fraction(value * weight) for value, weight in terms))
    assert alone.scalar("n") == pytest.approx(exact, rel=2**-50, abs=len(terms) * 2**-62)
    assert alone.scalar("n") == total.scalar("n") == float(alone.value("n"))


def test_magnitudes_of_tensors_of_any_kind():
    values = [[1.0, -3.0], [], [math.nan, 2.0], [-math.inf, 1.0], [0.1, -0.2], [5.0, 1e300]]
    kinds = [torch.float32, torch.float32, torch.float16, torch.float64, torch.bfloat16, torch.float64]
    tensors = [torch.tensor(own, dtype=kind) for own, kind in zip(values, kinds, strict=True)]
    expected = [3.0, 0.0, math.nan, math.inf, float(tensors[4].abs().max()), 1e300]
    assert magnitudes(tensors) == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert magnitudes([]) == []
