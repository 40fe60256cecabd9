"""Run tables, and what repeated runs say: against numbers worked by hand, and scipy."""

import math

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from study_tables import ACCURACY, cells, table

from fl_lightning import DataError
from fl_lightning.studies import Row, RunTable
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.tables import Paired, at_round, best, holm, last_rounds, paired_test, progress_table, rounds_to

stats = pytest.importorskip("scipy.stats", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_table_is_read_as_it_was_written(name, tmp_path):
    written = table(("paper", "even, in 10 parts"))
    written.write(tmp_path / name)
    again = RunTable.read(tmp_path / name)
    assert again.axes == ("strategy", "partition")
    assert list(again.rows()) == list(written.rows())
    assert again.curves(("AdaFed", "paper"), "val_accuracy")[1].to_list() == ACCURACY["AdaFed", 1]
    first = (tmp_path / name).read_bytes()
    again.write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first


def test_facts_are_beside_the_table_and_are_joined_with_it(tmp_path, capsys):
    """Of a run in both tables, the numbers and the facts of the last count; a table without facts is said to have none."""
    for folder, runs in (("one", ("a", "b")), ("two", ("b", "c"))):
        rows = [Row(run, (run,), 0, r, "x", float(len(folder) + r)) for run in runs for r in range(3 if folder == "one" else 2)]
        RunTable(
            ["name"], rows, {run: {"partition": folder, "settings": {"k": run}} for run in (*runs, "of another study")}
        ).write(tmp_path / folder / "table.csv")
    both = RunTable.join(["name"], [tmp_path / "one/table.csv", tmp_path / "two/table.csv"])
    assert {run: own["partition"] for run, own in both.facts.items()} == {"a": "one", "b": "two", "c": "two"}
    assert both.facts_of(("c",))["settings"] == {"k": "c"}
    assert [len(both.curves((run,), "x")) for run in "abc"] == [3, 2, 2]
    assert capsys.readouterr().err == ""
    (tmp_path / "two/study.json").unlink()
    again = RunTable.join(["name"], [tmp_path / "one/table.csv", tmp_path / "two/table.csv"])
    assert again.facts["a"]["partition"] == "one"
    assert f"Note: '{tmp_path / 'two/study.json'}' is not there or is of other runs" in capsys.readouterr().err


def test_clients_are_sorted_by_their_numbers():
    assert table().families("client_share") == ["0", "2", "10"]


HEADER = b"run,strategy,seed,round,metric,value\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Cannot read the run table"),
        (b"", "Cannot read the run table"),
        (b"a,b,c\n1,2,3\n", "is not a run table: its columns are a, b, c, but it needs run, one for each axis"),
        (HEADER + b"r,A,zero,0,x,1\n", "is damaged"),
        (HEADER + b"r,A,0,0,study/partition/IID,1\n", "facts such as 'study/partition/IID' now stand in"),
        (HEADER + b"r,A,0\n", "is damaged"),
    ],
)
def test_what_is_no_run_table_is_refused(content, message, tmp_path):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        RunTable.read(path)


def test_half_a_packed_table_is_refused_and_one_that_a_spreadsheet_saved_is_read(tmp_path):
    half, saved = tmp_path / "table.csv.gz", tmp_path / "table.csv"
    for path in (half, saved):
        table().write(path)
    half.write_bytes(half.read_bytes()[:-20])
    with pytest.raises(DataError, match="Cannot read the run table"):
        RunTable.read(half)
    saved.write_bytes(b"\xef\xbb\xbf" + saved.read_bytes().replace(b"\n", b"\r\n"))
    assert RunTable.read(saved).settings == table().settings


# ------------------------------------------------------------------ statistics


CURVES = pd.DataFrame({0: {0: 0.1, 1: 0.9, 2: 0.9}, 1: {0: 0.3, 1: 0.2, 2: 0.5}})


def test_statistics_of_curves():
    assert at_round(CURVES, 0).to_list() == [0.1, 0.3]
    assert at_round(CURVES, 7).empty
    tops, rounds = best(CURVES, higher=True)
    assert (tops.to_list(), rounds.to_list()) == ([0.9, 0.5], [2, 3])
    lows, rounds = best(CURVES, higher=False)
    assert (lows.to_list(), rounds.to_list()) == ([0.1, 0.2], [1, 2])
    assert last_rounds(CURVES, 2).to_dict() == pytest.approx({0: 0.9, 1: 0.35})
    assert rounds_to(CURVES, 0.5, higher=True).to_dict() == {0: 2, 1: 3}
    assert rounds_to(CURVES, 0.6, higher=True).to_dict() == {0: 2}
    assert rounds_to(CURVES, 0.25, higher=False).to_dict() == {0: 1, 1: 2}


def test_what_a_resumed_run_logs_again_counts_and_seeds_end_in_their_own_last_rounds():
    """As of a run that goes on elsewhere: a missing round is no value, and is not that of another seed."""
    rows = [Row("r1", (), 1, 1, "x", 7.0)]
    rows += [Row(f"r{seed}", (), seed, r, "x", r + seed) for seed, length in ((0, 4), (1, 2)) for r in range(length)]
    curves = RunTable([], rows).curves((), "x")
    assert last_rounds(curves).to_dict() == {0: 3.0, 1: 2.0}
    assert last_rounds(curves, 2).to_dict() == {0: 2.5, 1: 1.5}
    assert at_round(curves, 3).to_dict() == {0: 3.0}


def test_a_run_that_diverged_is_never_the_best():
    nan = math.nan
    rows = [
        Row(f"r{name}{seed}", (name,), seed, r, "val_accuracy", x)
        for name, by_seed in (("a", ((nan, nan), (0.2, nan))), ("b", ((0.2, 0.3), (0.2, 0.3))))
        for seed, xs in enumerate(by_seed)
        for r, x in enumerate(xs)
    ]
    made_of = RunTable(["strategy"], rows)
    tops, rounds = best(made_of.curves(("a",), "val_accuracy"), higher=True)
    assert (tops.to_dict(), rounds.to_dict()) == ({1: 0.2}, {1: 1})
    (panel,) = panels(made_of)
    first, second = cells(progress_table(made_of, panel, Measure(), every=1))
    assert first == ["a", "nan ± nan", "nan ± nan", "20.00", "1.0"]
    assert second[1:4] == ["20.00 ± 0.00", "30.00 ± 0.00", "*30.00 ± 0.00*"]
    assert rounds_to(made_of.curves(("a",), "val_accuracy"), 0.1, higher=True).to_dict() == {1: 1}


def test_the_paired_test_is_scipys():
    generator = torch.Generator().manual_seed(0)
    one, other = (pd.Series(torch.randn(7, generator=generator).tolist()) for _ in range(2))
    ours, theirs = paired_test(one, pd.concat([other, pd.Series({99: 5.0})])), stats.ttest_rel(one, other)
    interval = theirs.confidence_interval(0.95)
    assert ours.pairs == 7
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.difference - ours.half_width, ours.difference + ours.half_width) == pytest.approx(tuple(interval), rel=1e-9)


def pair(one: dict[int, float], other: dict[int, float]) -> Paired:
    return paired_test(pd.Series(one), pd.Series(other))


def test_equal_differences_are_no_evidence_and_some_tests_cannot_be_made():
    """Four points more in both seeds: rounding alone must not make that certain."""
    assert math.isnan(pair({0: 0.84, 1: 0.79}, {0: 0.80, 1: 0.75}).p)
    assert math.isnan(pair({0: 0.812345, 1: 0.5}, {0: 0.712346, 1: 0.4}).p)  # differ in the last digit of a table
    assert pair({0: 0.84, 1: 0.79}, {0: 0.80, 1: 0.7501}).p < 0.05
    assert pair({0: math.inf, 1: 0.5}, {0: 0.1, 1: 0.4}).pairs == 1
    alone = pair({0: 1.0}, {0: 0.5})
    assert (alone.difference, math.isnan(alone.p)) == (0.5, True)
    assert math.isnan(pair({0: 1.0}, {1: 0.5}).difference)


def corrected(p_values: list[float]) -> list[float]:
    return holm(pd.Series(p_values, dtype=float)).to_list()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_corrected_p_values_keep_their_order_and_never_fall(p_values):
    """By hand: sorted 0.01, 0.03, 0.04 times 3, 2, 1 are 0.03, 0.06, 0.04; none below the one before it."""
    assert corrected([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert corrected([math.nan, 0.02]) == pytest.approx([math.nan, 0.02], nan_ok=True)
    found = corrected(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, found, strict=True))
    ordered = [q for _, q in sorted(zip(p_values, found, strict=True))]
    assert ordered == sorted(ordered)
