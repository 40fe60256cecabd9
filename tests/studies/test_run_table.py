"""Run tables, and what repeated runs say: against numbers worked by hand, and scipy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from study_tables import ACCURACY, cells, table

from fl_lightning import DataError
from fl_lightning.studies import Row, RunTable
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.statistics import at_round, best, holm, last_rounds, paired_test, rounds_to
from fl_lightning.studies.tables import (
    progress_table,
)

stats = pytest.importorskip("scipy.stats", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_table_is_read_as_it_was_written(name, tmp_path):
    written = table(("paper", "even, in 10 parts"))
    written.write(tmp_path / name)
    again = RunTable.read(tmp_path / name)
    assert again.axes == ("strategy", "partition")
    assert list(again.rows()) == list(written.rows())
    assert again.curves(("AdaFed", "paper"), "val_accuracy")[1] == dict(enumerate(ACCURACY["AdaFed", 1]))
    first = (tmp_path / name).read_bytes()
    again.write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_what_a_resumed_run_logs_again_counts():
    rows = [Row("a", (), 0, 0, "x", 1.0), Row("a", (), 0, 1, "x", 2.0), Row("a", (), 0, 1, "x", 3.0)]
    assert RunTable([], rows).curves((), "x") == {0: {0: 1.0, 1: 3.0}}


def test_clients_are_sorted_by_their_numbers():
    assert table().families("client_share") == ["0", "2", "10"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Cannot read the run table"),
        (b"", "is not a run table: its columns are none, but it needs run, one for each axis, and seed, round, metric, value"),
        (b"a,b,c\n1,2,3\n", "is not a run table: its columns are a, b, c"),
        (b"run,strategy,seed,round,metric,value\nr,A,zero,0,x,1\n", "is damaged"),
        (b"run,strategy,seed,round,metric,value\nr,A,0\n", "a row has 3 cells, but the header has 6"),
    ],
)
def test_what_is_no_run_table_is_refused(content, message, tmp_path):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        RunTable.read(path)
    half = tmp_path / "table.csv.gz"
    table().write(half)
    half.write_bytes(half.read_bytes()[:-20])
    with pytest.raises(DataError, match="Cannot read the run table"):
        RunTable.read(half)


def test_a_table_that_a_spreadsheet_saved_is_read(tmp_path):
    path = tmp_path / "table.csv"
    table().write(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert RunTable.read(path).settings == table().settings


# ------------------------------------------------------------------ statistics


CURVES = {0: {0: 0.1, 1: 0.9, 2: 0.9}, 1: {0: 0.3, 1: 0.2, 2: 0.5}}


def test_statistics_of_curves():
    assert at_round(CURVES, 0).values == (0.1, 0.3)
    tops, rounds = best(CURVES, higher=True)
    assert (tops.values, rounds.values) == ((0.9, 0.5), (2.0, 3.0))
    lows, rounds = best(CURVES, higher=False)
    assert (lows.values, rounds.values) == ((0.1, 0.2), (1.0, 2.0))
    assert last_rounds(CURVES, 2) == pytest.approx({0: 0.9, 1: 0.35})
    assert rounds_to(CURVES, 0.5, higher=True) == [2, 3]
    assert rounds_to(CURVES, 0.6, higher=True) == [2, None]
    assert rounds_to(CURVES, 0.25, higher=False) == [1, 2]


def test_a_run_that_diverged_is_never_the_best():
    nan = math.nan
    tops, rounds = best({0: {0: nan, 1: 0.4, 2: nan, 3: 0.4}, 1: {0: nan}}, higher=True)
    assert (tops.values, rounds.values) == ((0.4,), (2.0,))
    rows = [
        Row(f"r{name}", (name,), 0, r, "val_accuracy", x)
        for name, xs in (("a", (nan, nan)), ("b", (0.2, 0.3)))
        for r, x in enumerate(xs)
    ]
    made_of = RunTable(["strategy"], rows)
    (panel,) = panels(made_of)
    made = cells(progress_table(made_of, panel, Measure(), every=2))
    assert made == [["a", "nan", "-", "-"], ["b", "30.00", "30.00", "2.0"]]
    assert rounds_to(made_of.curves(("a",), "val_accuracy"), 0.1, higher=True) == [None]


def test_the_paired_test_is_scipys():
    generator = torch.Generator().manual_seed(0)
    one, other = ({seed: float(x) for seed, x in enumerate(torch.randn(7, generator=generator))} for _ in range(2))
    ours, theirs = paired_test(one, {**other, 99: 5.0}), stats.ttest_rel(list(one.values()), list(other.values()))
    interval = theirs.confidence_interval(0.95)
    assert ours.pairs == 7
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.difference - ours.half_width, ours.difference + ours.half_width) == pytest.approx(tuple(interval), rel=1e-9)


def test_equal_differences_are_no_evidence():
    """Four points more in both seeds: rounding alone must not make that certain."""
    assert math.isnan(paired_test({0: 0.84, 1: 0.79}, {0: 0.80, 1: 0.75}).p)
    assert math.isnan(paired_test({0: 0.812345, 1: 0.5}, {0: 0.712346, 1: 0.4}).p)  # differ in the last digit of a table
    assert paired_test({0: 0.84, 1: 0.79}, {0: 0.80, 1: 0.7501}).p < 0.05


def test_tests_that_cannot_be_made():
    assert paired_test({0: math.nan, 1: 0.5}, {0: 0.1, 1: 0.4}).pairs == 1
    assert math.isnan(paired_test({0: 1.0}, {0: 0.5}).p)
    assert paired_test({0: 1.0}, {0: 0.5}).difference == 0.5
    assert math.isnan(paired_test({0: 1.0}, {1: 0.5}).difference)
    assert math.isnan(paired_test({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5}).p)  # the same difference in every seed


def test_holm_as_worked_by_hand():
    """Sorted 0.01, 0.03, 0.04 times 3, 2, 1 are 0.03, 0.06, 0.04; none below the one before it."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    corrected = holm([math.nan, 0.02])
    assert math.isnan(corrected[0])
    assert corrected[1] == 0.02


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrected_p_values_keep_their_order_and_never_fall(p_values):
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    ordered = [q for _, q in sorted(zip(p_values, corrected, strict=True))]
    assert ordered == sorted(ordered)
