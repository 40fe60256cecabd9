"""Sums of columns with the noise of differential privacy: how much of it, and who draws it."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from three_hospitals import SCHEMA, SETTINGS, clean, expected, write_exports

from fl_lightning import (
    MLP,
    ClassificationTask,
    FederatedDataModule,
    FederatedOrchestrator,
    SecureAggregation,
    Standardized,
    TableDataModule,
)
from fl_lightning.functional.exact_moments import Moments, moments_of
from fl_lightning.functional.noisy_moments import BoundedField, bounded_sums, discrete_laplace, noisy_moments

FIELDS = (
    BoundedField((0,), -10.0, 30.0),
    BoundedField((1,), 0.0, 1.0, gaps=True),
    BoundedField((2, 3, 4), is_binary=True, gaps=True),
    BoundedField((5,), is_binary=True),
)
STEPS = 2**24


# ------------------------------------------------------------------ the noise


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(2), Fraction(25, 2)])
def test_the_noise_is_discrete_laplace(scale):
    """Against the closed form (1 - p) / (1 + p) * p^|k| with p = exp(-1 / scale)."""
    draw, count, p = random.Random(1).randrange, 20_000, math.exp(-1 / scale)
    found = Counter(discrete_laplace(scale, draw) for _ in range(count))
    exact = {k: (1 - p) / (1 + p) * p ** abs(k) for k in range(-60, 61)}
    tested = [k for k, share in exact.items() if share * count >= 10]
    distance = sum((found[k] - exact[k] * count) ** 2 / (exact[k] * count) for k in tested)
    assert distance < len(tested) + 5 * math.sqrt(2 * len(tested))


def row(draw: Any) -> list[float]:
    numbers = st.floats(-50, 50, width=32)
    one_hot = draw(st.sampled_from([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [math.nan] * 3]))
    share = draw(st.one_of(st.just(math.nan), st.floats(0, 1, width=32)))
    return [draw(numbers), share, *one_hot, draw(st.sampled_from([0.0, 1.0]))]


@st.composite
def rows(draw: Any) -> list[list[float]]:
    return [row(draw) for _ in range(draw(st.integers(2, 5)))]


@given(rows(), st.data())
def test_a_replaced_row_changes_all_sums_together_by_no_more_than_the_noise_is_for(table, data):
    other = [row(data.draw), *table[1:]]
    (_, one), (_, two) = (bounded_sums([torch.tensor(each)], FIELDS) for each in (table, other))
    for field, before, after in zip(FIELDS, one, two, strict=True):
        step = 1 if len(field.channels) > 1 else STEPS
        assert sum(abs(a - b) for a, b in zip(before, after, strict=True)) <= field.sensitivity * step


@given(rows(), st.sampled_from([1e-3, 0.1, 1.0, 1e3]), st.integers(0, 9))
def test_numbers_with_the_noisy_sums_exist(table, epsilon, seed):
    found = noisy_moments([torch.tensor(table)], FIELDS, 7, epsilon, random.Random(seed).randrange)
    assert Moments.of_texts(found.texts()) == found
    assert found.counts[0] == len(table)
    assert found.counts[6] == 0  # it has no range
    assert all(-10 <= mean <= 30 for mean in found.means()[:1])


def test_with_little_noise_the_sums_are_the_exact_ones():
    draw = np.random.default_rng(0)
    table = torch.tensor(
        np.c_[draw.uniform(-10, 30, 500), draw.random(500), np.eye(3)[draw.integers(0, 3, 500)], draw.random(500) < 0.3]
    )
    table[:40, 1] = table[100:120, 2:5] = math.nan
    found = noisy_moments(table.float().split(64), FIELDS, 6, 1e9, random.Random(0).randrange)
    exact = moments_of(table)
    assert found.counts == exact.counts
    assert np.allclose(found.means(), exact.means(), atol=1e-5)
    assert np.allclose(found.deviations(), exact.deviations(), atol=1e-5)


def test_the_noise_has_the_size_that_epsilon_says():
    """Eight units of sums, so a scale of 8 / epsilon: its standard deviation is sqrt(2) times as much."""
    assert sum(one.sensitivity for one in FIELDS) == 8
    table = torch.tensor([[10.0, 0.5, 1.0, 0.0, 0.0, 1.0]] * 1000)
    found = [noisy_moments([table], FIELDS, 6, 2.0, random.Random(k).randrange).means()[0] for k in range(300)]
    assert np.std(found) == pytest.approx(40 * math.sqrt(2) * 8 / 2 / 1000, rel=0.15)


# ------------------------------------------------------------------ in a simulation


def scale_of(epsilon: float | None, seed: int = 0, rows: int = 600, schema: str = SCHEMA, masks: Any = None) -> Standardized:
    """Return the scale of a fit on the tables of three hospitals."""
    pytest.importorskip("pyarrow")
    Path("schema.yaml").write_text(schema)
    paths = write_exports(Path("exports"), clean(rows))
    own = {"schema": "schema.yaml", "test_share": 0.0, "standardize": False}
    clients = {name: TableDataModule(path, **own, **SETTINGS[name]) for name, path in paths.items()}
    L.seed_everything(0, verbose=False)
    module = ClassificationTask(Standardized(MLP(14, [4], 3), 14, epsilon=epsilon), num_classes=3)
    federation = FederatedOrchestrator(seed=seed, secure_aggregation=masks)
    trainer(1, federation, limit_val_batches=0).fit(module, FederatedDataModule.from_clients(clients))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(module).values())
    return module.network


def test_simulated_clients_add_the_noise_that_the_seed_draws():
    one, same, other = (scale_of(5.0, seed) for seed in (0, 0, 1))
    assert torch.equal(one.mean, same.mean)
    masked = scale_of(5.0, masks=SecureAggregation())
    assert torch.equal(one.mean, masked.mean)
    assert torch.equal(one.std, masked.std)
    assert not torch.equal(one.mean, other.mean)
    exact = expected(clean(600))[0].to_numpy()[:, :3].mean(0)
    assert np.allclose(one.mean[:3], exact, rtol=0.3, atol=0.1)


def test_columns_without_a_range_are_not_told():
    with pytest.warns(
        UserWarning, match=r"These inputs are not scaled, because no client tells their sums: admitted. They would"
    ):
        found = scale_of(5.0, rows=90)
    assert (found.mean[13], found.std[13]) == (0, 1)
