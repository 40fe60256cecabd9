"""Defences against hostile models: each against another library's rule, in a federation of five clients and by itself."""

import math

import byzfl
import numpy as np
import pytest
import torch
from against_hand import assert_follows, clients_of, combine, divided
from by_hand import build, flat
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean
from sklearn.metrics.pairwise import cosine_similarity

from fl_lightning import ClientError, CosineFilter, GeometricMedian, Krum, TrimmedMean
from fl_lightning.functional.robust import expected_attackers

SIZES = (7, 9, 8, 12, 4)


def follow(rule, strategy, tolerance=1e-11):
    """``rule(changes, examples)`` gives the clients' shares from their changes of the parameters, by another library."""
    kept = []

    def step(net, world, t):
        states = [flat(client) for client in clients_of(net, world)]
        w = flat(net)[0]
        shares = rule(np.stack([s[0] - w for s in states]), np.array(SIZES))
        kept.append(shares)
        parameters, floats = (np.einsum("k,kd->d", shares, np.stack([s[i] for s in states])) for i in (0, 1))
        return build(net, parameters, floats, np.max([s[2] for s in states], axis=0))

    _, rounds = assert_follows(torch.float64, step, **divided(SIZES), strategy=strategy, tolerance=tolerance)
    for shares, updates in zip(kept, rounds, strict=True):
        np.testing.assert_allclose([update.share for update in updates], shares, rtol=1e-4)


def chosen_by(result, changes):
    """The one change that a rule has given back, as shares."""
    shares = np.all(np.isclose(changes, result, rtol=1e-9, atol=0), axis=1).astype(float)
    assert shares.sum() == 1
    return shares


@pytest.mark.parametrize("attackers", [0, 0.2])
def test_krum_is_byzfls(attackers):
    """byzfl sums over one neighbour more than the paper's m - f - 2: its f is ours and one."""
    follow(lambda x, n: chosen_by(byzfl.Krum(int(attackers > 0) + 1)(x), x), Krum(attackers))


def test_multi_krum_is_byzfls():
    def rule(x, n):
        mean = byzfl.MultiKrum(2)(x)  # of 5 - 2
        shares = np.linalg.lstsq(x.T, mean, rcond=None)[0]
        return np.where(shares > 1e-6, 1 / 3, 0.0)

    follow(rule, Krum(1, selected=3))


def test_geometric_median_is_byzfls():
    """The shares that give its point are those in proportion to 1 / distance."""

    def rule(x, n):
        distances = np.linalg.norm(x - byzfl.GeometricMedian(nu=1e-9, T=3000)(x), axis=1)
        return 1 / distances / np.sum(1 / distances)

    follow(rule, GeometricMedian(), 1e-7)


def test_a_weighted_geometric_median_is_one_of_repeated_models():
    """n_k models in one place pull like one with weight n_k."""
    states = [torch.randn(6, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in range(4)]
    sizes = (2, 3, 1, 3)
    weighed, shares = combine(GeometricMedian(examples=True), states, sizes)
    many = np.stack([state.numpy() for state, size in zip(states, sizes, strict=True) for _ in range(size)])
    np.testing.assert_allclose(weighed, byzfl.GeometricMedian(nu=1e-9, T=3000)(many), rtol=1e-6)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("examples", [True, False])
def test_the_cosine_filter_keeps_who_agrees(examples):
    seen = []

    def rule(x, n):
        cosines = (cosine_similarity(x).sum(axis=1) - 1) / (len(x) - 1)
        shares = (cosines > 0.3) * (n if examples else 1)
        seen.append(int((cosines > 0.3).sum()))
        return shares / shares.sum()

    follow(rule, CosineFilter(0.3, examples))
    assert min(seen) < 5  # somebody was left out


def test_the_trimmed_mean_is_scipys_and_byzfls():
    def step(net, world, t):
        states = [flat(client) for client in clients_of(net, world)]
        parameters, floats = (trim_mean([state[i] for state in states], 0.2, axis=0) for i in (0, 1))
        np.testing.assert_allclose(parameters, byzfl.TrMean(1)(np.stack([s[0] for s in states])), rtol=1e-9)
        return build(net, parameters, floats, np.max([s[2] for s in states], axis=0))

    assert_follows(torch.float64, step, **divided(SIZES), strategy=TrimmedMean(0.2))


RULES = [TrimmedMean(2), Krum(2), Krum(2, selected=None), GeometricMedian(), GeometricMedian(examples=True), CosineFilter()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@given(data=st.data())
def test_two_of_nine_cannot_move_the_result_far(rule, data):
    """Seven honest models around a point, two hostile ones anywhere: nobody leaves the neighbourhood of the honest."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    honest = [torch.full((20,), 5.0) + torch.randn(20, generator=generator) for _ in range(7)]
    far = data.draw(st.floats(10, 1e6))
    sign = -1.0 if isinstance(rule, CosineFilter) else data.draw(st.sampled_from([-1.0, 1.0]))
    hostile = [sign * far * torch.rand(20, generator=generator) for _ in range(2)]
    order = data.draw(st.permutations(range(9)))
    states = [(honest + hostile)[k] for k in order]
    sizes = [(4, 4, 4, 4, 4, 4, 4, 5, 5)[k] for k in order]
    result, weights = combine(rule, states, sizes)
    center = torch.stack(honest).mean(dim=0).numpy()
    assert np.linalg.norm(result - center) < 2 * np.sqrt(20)
    if not isinstance(rule, TrimmedMean | GeometricMedian):
        assert [weights[order.index(k)] for k in (7, 8)] == [0, 0]
    in_order, _ = combine(rule, honest + hostile, [4] * 7 + [5] * 2)
    np.testing.assert_allclose(result, in_order, rtol=1e-5, atol=1e-5)


def test_equal_models_come_back():
    state = torch.randn(10, generator=torch.Generator().manual_seed(0))
    for rule in RULES:
        result, _ = combine(rule, [state.clone() for _ in range(7)])
        np.testing.assert_allclose(result, state.numpy(), rtol=1e-6)
    result, weights = combine(CosineFilter(), [state])
    assert weights == [3]
    np.testing.assert_allclose(result, state.numpy())


def test_pieces_do_not_matter(monkeypatch):
    states = [torch.randn(101, generator=torch.Generator().manual_seed(k)) for k in range(7)]
    whole = [combine(rule, states)[0] for rule in RULES]
    monkeypatch.setattr("fl_lightning.functional.robust._PIECE", 70)
    for rule, before in zip(RULES, whole, strict=True):
        np.testing.assert_allclose(combine(rule, states)[0], before, rtol=1e-9)


def test_shares_of_attackers_are_rounded_up():
    assert [expected_attackers(share, 10) for share in (0.25, 0.2, 0.3, 0.0, 3)] == [3, 2, 3, 0, 3]


@pytest.mark.parametrize("size", [3, 4, 7, 11])
def test_krum_lowers_a_share_to_what_a_small_round_can_bear(size):
    """f is at most the largest with m >= 2 f + 3 (Blanchard et al., Proposition 1); by ``selected`` null m - f are kept."""
    bearable = max(f for f in range(size) if size >= 2 * f + 3)
    states = [torch.randn(5, generator=torch.Generator().manual_seed(k), dtype=torch.float64) for k in range(size)]
    for share in (0.25, 0.49):
        attackers = min(math.ceil(share * size), bearable)
        assert sum(combine(Krum(share, selected=None), states)[1]) == size - attackers
        if attackers:  # byzfl counts one neighbour more than the paper: its f is ours and one
            expected = byzfl.Krum(attackers + 1)(np.stack(states))
            np.testing.assert_allclose(combine(Krum(share), states)[0], expected, rtol=1e-12)


def test_a_trimmed_mean_bears_as_many_broken_models_as_it_trims():
    states = [torch.full((3,), float(k)) for k in range(5)]
    broken = [torch.full((3,), value) for value in (float("nan"), float("inf"))]
    assert combine(TrimmedMean(2), states + broken)[0].tolist() == [3, 3, 3]
    with pytest.raises(ClientError, match="more than 1 have diverged"):
        combine(TrimmedMean(1), states + broken)
