"""Intervals by resampling persons, compared with scipy's bootstrap and with numpy's percentiles."""

import numpy as np
import pytest
import torch
from scipy import stats

from fl_lightning.functional.bootstrap import percentile_interval, resamples


def interval(values: np.ndarray, persons: np.ndarray, count: int = 4000) -> tuple[float, float]:
    given, rows = torch.tensor(values), resamples(torch.tensor(persons), count, seed=3)
    return percentile_interval(torch.stack([given[one].mean() for one in rows]), 0.95)


def test_the_interval_of_a_mean_is_that_of_scipy():
    values = np.random.default_rng(0).exponential(size=60)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=1).confidence_interval
    mine = interval(values, np.arange(60))
    assert mine == pytest.approx((theirs.low, theirs.high), abs=0.03)  # 4,000 draws move a bound by about 0.01


def test_persons_are_drawn_with_all_of_their_rows():
    """Twenty persons with ten equal rows are twenty numbers: the interval is that of their own."""
    own = np.random.default_rng(1).normal(size=20)
    theirs = stats.bootstrap((own,), np.mean, n_resamples=4000, method="percentile", rng=1).confidence_interval
    shuffled = np.random.default_rng(2).permutation(200)
    mine = interval(np.repeat(own, 10)[shuffled], np.repeat(np.arange(20) * 7, 10)[shuffled])
    assert mine == pytest.approx((theirs.low, theirs.high), abs=0.05)
    rows = interval(np.repeat(own, 10), np.arange(200))
    assert rows[1] - rows[0] < 0.5 * (mine[1] - mine[0])


def test_the_draws_follow_from_the_seed():
    one, again, other = (resamples(torch.arange(9), 3, seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, one, again))
    assert not all(map(torch.equal, one, other))
