"""Inputs are scaled by the mean and the deviation of all clients' rows, to the bit the same wherever the rows are."""

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from algorithms import Scaled
from federations import SIZES, Blobs, Consecutive, federate, same_bits, trainer, weights
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import LocalTraining, SecureAggregation, Standardized
from fl_lightning.functional.exact_moments import moments_of, together
from fl_lightning.functional.small_counts import told, without_small

UNIT = 2**172


class Shifted(Blobs):
    """Points of which two columns are far from 0, and one has a missing number."""

    def __init__(self, missing: bool = True) -> None:
        super().__init__()
        for x, _ in (self.train, self.val):
            x[:, 1] = 1950 + 10 * x[:, 1]
            x[:, 2] *= 1e-6
        if missing:
            self.train[0][3, 1] = math.nan


floats = st.floats(width=32, allow_infinity=False)


@given(st.lists(floats, min_size=1, max_size=40), st.integers(0, 40))
def test_sums_are_those_of_fractions_also_of_parts(numbers, cut):
    there = [Fraction(x) for x in numbers if not math.isnan(x)]
    found = moments_of(torch.tensor(numbers, dtype=torch.float32))
    assert found.counts == (len(there),)
    assert Fraction(found.totals[0], UNIT) == sum(there)
    assert Fraction(found.squares[0], UNIT**2) == sum(x * x for x in there)
    parts = [numbers[cut:], numbers[:cut]]
    own = [moments_of(torch.tensor(part, dtype=torch.float32)) for part in parts if part]
    assert together(own) == found
    assert len(own) < 2 or found.without(own[0]) == own[1]


def test_means_and_deviations_are_numpys_of_the_joined_rows():
    """Birth years, of which sums of squares in float64 lose the digits of the variance."""
    rows = np.random.default_rng(0).normal(size=(3000, 5)).astype(np.float32) * [1, 1e-20, 30, 1e12, 1e-3] + [0, 0, 1950, 0, 7]
    rows = torch.tensor(rows, dtype=torch.float32)
    found = together(moments_of(part) for part in rows.split([1, 1999, 1000]))
    exact = rows.numpy().astype(np.longdouble)
    assert np.allclose(found.means(), exact.mean(0).astype(float), rtol=1e-12, atol=0)
    assert np.allclose(found.deviations(), exact.std(0).astype(float), rtol=1e-12, atol=0)


small = st.lists(st.integers(0, 9), min_size=2, max_size=4)


def views(total: int, cells: int, least: int) -> dict[tuple[int | None, ...], list[tuple[int, ...]]]:
    """Return the tables with this total by what is told of each."""
    found: dict[tuple[int | None, ...], list[tuple[int, ...]]] = {}
    for table in product(range(total + 1), repeat=cells):
        if sum(table) == total:
            seen = tuple(n if tells else None for n, tells in zip(table, told(table, least), strict=True))
            found.setdefault(seen, []).append(table)
    return found


@given(small, st.integers(2, 6))
def test_counts_of_few_rows_do_not_follow_from_those_that_are_told(counts, least):
    """Also for someone who knows the total and the rule, by trying all tables."""
    tells = told(counts, least)
    assert all(count >= least for count, tell in zip(counts, tells, strict=True) if tell)
    if not any(tells):
        return
    seen = tuple(n if tell else None for n, tell in zip(counts, tells, strict=True))
    possible = views(sum(counts), len(counts), least)[seen]
    for k, count in enumerate(counts):
        if 0 < count < least:
            assert len({table[k] for table in possible}) > 1, possible


@pytest.mark.parametrize(
    ("counts", "tells"),
    [
        ([40, 60], [True, True]),
        ([3, 60], [False, False]),  # the total would tell the 3
        ([3, 40, 60], [False, False, True]),
        ([3, 4, 40, 60], [False, False, False, True]),
        ([6, 7, 40, 60], [False, False, True, True]),
        ([9, 9, 40, 60], [False, False, False, True]),  # 18 are twice 9 if both are below 10
        ([0, 40, 60], [False, True, True]),
        ([10, 10, 8], [False, False, False]),  # 18 are 9 and 9 if only one of the tens is told
        ([3, 2], [False, False]),
        ([10, 10], [True, True]),
    ],
)
def test_which_counts_are_told(counts, tells):
    assert told(counts, 10) == tells


def test_columns_of_zeros_and_ones_are_left_out_if_few_rows_have_one_of_them():
    rows = torch.zeros(100, 7)
    rows[:3, 0] = rows[3:40, 1] = rows[40:, 2] = 1.0  # three categories
    rows[:97, 3] = 1.0
    rows[:50, 4] = 1.0
    rows[:, 5] = torch.arange(100.0)
    rows[:, 6] = 0.5  # of two codes, nobody has the other one
    found = without_small(moments_of(rows), [(0, 1, 2)], 10)
    assert found.counts == (0, 0, 100, 0, 100, 100, 0)
    assert found.totals[1] == found.squares[1] == 0
    assert without_small(moments_of(rows), [(0, 1, 2)], 1) == moments_of(rows)
    rows[:, 6] = math.nan
    assert without_small(moments_of(rows), [], 10).counts == (0, 100, 100, 0, 100, 100, 0)


@given(
    st.sampled_from([(0, 1), (1, 2), (0, 9), (-1, 1), (0.1, 0.3), (1e30, -1e-30), (5, 5)]), st.integers(0, 60), st.booleans()
)
def test_two_values_are_guarded_however_they_are_coded(codes, rare, batched):
    """A column of 0 and 1 with one patient was not told, and the same one as 1 and 2 was."""
    column = torch.tensor([codes[1]] * rare + [codes[0]] * (80 - rare) + [float("nan")])
    other = torch.linspace(0, 1, 81)
    rows = torch.stack([column, other], 1)[torch.randperm(81, generator=torch.Generator().manual_seed(rare))]
    found = without_small(together(map(moments_of, rows.split(7))) if batched else moments_of(rows), [], 10)
    few = codes[0] == codes[1] or rare < 10 or 80 - rare < 10
    assert found.counts == (0 if few else 80, 81)


def expected(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = np.nanmean(rows.double().numpy(), 0), np.nanstd(rows.double().numpy(), 0)
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)


@pytest.mark.filterwarnings("error:Standardized has not been measured")
@pytest.mark.parametrize(("engine", "sizes"), [("trainer", SIZES), ("stacked", (20, 20))])
def test_the_scale_is_that_of_all_clients_rows_also_under_masks(engine, sizes):
    finals = []
    for masks in (None, SecureAggregation()):
        torch.manual_seed(0)
        module, local = Scaled(), LocalTraining(engine=engine, max_epochs=2)
        federate(module, 2, data=Shifted(), partitioner=Consecutive(sizes), local=local, secure_aggregation=masks)
        finals.append(weights(module))
    assert same_bits(*finals)
    mean, std = expected(Shifted().train[0][: sum(sizes)])
    assert torch.allclose(module.net.mean, mean, rtol=1e-6)
    assert torch.equal(module.net.std, std)
    assert float(module.trainer.callback_metrics["val_acc"]) > 0.5
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(module).values())


@pytest.mark.slow
def test_more_clients_than_share_masks_in_pairs():
    module = Scaled()
    cohort = {"partitioner": Consecutive([1] * 101), "clients_per_round": 3, "data": Blobs(101)}
    federate(module, 1, secure_aggregation=SecureAggregation(), **cohort)
    assert torch.allclose(module.net.mean, expected(Blobs(101).train[0])[0], rtol=1e-6)


def test_one_client_is_plain_training_on_scaled_rows():
    data = Shifted(missing=False)
    federation, plain = Scaled(), Scaled()
    plain.load_state_dict(federation.state_dict())
    plain.net.measure(DataLoader(TensorDataset(*data.train), batch_size=7))
    rows = Shifted(missing=False)
    rows.shuffle = data.shuffle = False
    local = LocalTraining(max_epochs=1)
    federate(federation, 3, data=data, partitioner=Consecutive([sum(SIZES)]), local=local)
    trainer(3).fit(plain, rows)
    for name, tensor in weights(federation).items():
        assert torch.allclose(tensor.double(), weights(plain)[name].double(), atol=1e-5), name


def test_a_missing_number_becomes_the_mean():
    net = Standardized(torch.nn.Identity(), 2)
    net.measure([(torch.tensor([[1.0, 2.0], [3.0, math.nan]]), None)])
    assert net(torch.tensor([[math.nan, 4.0], [5.0, 2.0]])).tolist() == [[0.0, 2.0], [3.0, 0.0]]


def test_central_training_has_the_same_scale():
    federation, central = Scaled(), Scaled()
    federate(federation, 1, data=Shifted())
    federate(central, 1, data=Shifted(), enabled=False)
    assert torch.equal(federation.net.mean, central.net.mean)
    assert torch.equal(federation.net.std, central.net.std)


def test_a_loaded_scale_stays():
    """A model that goes on training elsewhere must scale as before."""
    first, second = Scaled(), Scaled()
    federate(first, 1, data=Shifted())
    second.load_state_dict(first.state_dict())
    federate(second, 1)
    assert torch.equal(first.net.mean, second.net.mean)


def test_a_training_that_nobody_measured_warns():
    with pytest.warns(UserWarning, match=r"has not been measured, so inputs pass unchanged\. .* call its 'measure'"):
        trainer(1).fit(Scaled(), Blobs())


class Augmented(Blobs):
    """Changes batches as a datamodule of images does: noise in training alone."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        noise = torch.randn(batch[0].shape) if self.trainer is not None and self.trainer.training else 0.0
        return [batch[0] * 100 + noise, batch[1]]


class Counting(Blobs):
    """Measures its inputs itself, each client's in a call of its own."""

    def statistics(self, batches: Any) -> Any:
        return together(moments_of(2 * rows) for rows, _ in batches)


@pytest.mark.parametrize(("kind", "factor"), [(Augmented, 100), (Counting, 2)])
def test_inputs_are_measured_as_the_datamodule_prepares_them_or_by_itself(kind, factor):
    module, data = Scaled(), kind()
    federate(module, 1, data=data)
    mean, std = expected(factor * data.train[0])
    assert torch.allclose(module.net.mean, mean, rtol=1e-6)
    assert torch.allclose(module.net.std, std, rtol=1e-6)
