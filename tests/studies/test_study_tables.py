"""Run tables, what repeated runs say, and the tables of a report: against numbers worked by hand, and scipy."""

import math
import statistics
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from study_tables import ACCURACY, cells, everything, of_curves, table

from fl_lightning import DataError
from fl_lightning.studies import Row, RunTable, write_report
from fl_lightning.studies.page import Bold, Table
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.tables import (
    at_round,
    best,
    clients_table,
    cost_table,
    final_table,
    finals,
    holm,
    last_rounds,
    late_table,
    paired_table,
    paired_test,
    progress_table,
    rounds_to,
)

stats = pytest.importorskip("scipy.stats", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")

# ------------------------------------------------------------------ run tables


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz"])
def test_a_table_is_read_as_it_was_written(name, tmp_path):
    """Also one that a spreadsheet saved; half a packed one is refused."""
    path, written = tmp_path / name, table(("paper", "even, in 10 parts"))
    written.write(path)
    first, again = path.read_bytes(), RunTable.read(path)
    assert again.axes == ("strategy", "partition")
    assert list(again.rows()) == list(written.rows())
    assert again.curves(("AdaFed", "paper"), "val_accuracy")[1].to_list() == ACCURACY["AdaFed", 1]
    again.write(path)
    assert path.read_bytes() == first
    if path.suffix == ".gz":
        path.write_bytes(first[:-20])
        with pytest.raises(DataError, match="Cannot read the run table"):
            RunTable.read(path)
    else:
        path.write_bytes(b"\xef\xbb\xbf" + first.replace(b"\n", b"\r\n"))
        assert RunTable.read(path).settings == written.settings


def test_facts_are_beside_the_table_and_are_joined_with_it(tmp_path, capsys):
    """Of a run in both tables, the numbers and the facts of the last count; a table without facts is said to have none."""
    paths = [tmp_path / name / "table.csv" for name in ("one", "two")]
    for path, runs, length in zip(paths, (("a", "b"), ("b", "c")), (3, 2), strict=True):
        rows = [Row(run, (run,), 0, r, "x", float(length + r)) for run in runs for r in range(length)]
        known = {run: {"partition": path.parent.name, "settings": {"k": run}} for run in (*runs, "of another study")}
        RunTable(["name"], rows, known).write(path)
    both = RunTable.join(["name"], paths)
    assert {run: own["partition"] for run, own in both.facts.items()} == {"a": "one", "b": "two", "c": "two"}
    assert both.facts_of(("c",))["settings"] == {"k": "c"}
    assert [len(both.curves((run,), "x")) for run in "abc"] == [3, 2, 2]
    assert capsys.readouterr().err == ""
    (tmp_path / "two/study.json").unlink()
    assert RunTable.join(["name"], paths).facts["a"]["partition"] == "one"
    assert f"Note: '{tmp_path / 'two/study.json'}' is not there or is of other runs" in capsys.readouterr().err


HEADER = b"run,strategy,seed,round,metric,value\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Cannot read the run table"),
        (b"a,b,c\n1,2,3\n", "is not a run table: its columns are a, b, c, but it needs run, one for each axis"),
        (HEADER + b"r,A,zero,0,x,1\n", "Cannot read the run table"),
        (HEADER + b"r,A,0\n", "Cannot read the run table"),
    ],
)
def test_what_is_no_run_table_is_refused(content, message, tmp_path):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        RunTable.read(tmp_path / "table.csv")


# ------------------------------------------------------------------ statistics


def test_the_best_round_and_the_first_at_a_target_upward_and_downward():
    curves = pd.DataFrame({0: {0: 0.1, 1: 0.9, 2: 0.9}, 1: {0: 0.3, 1: 0.2, 2: 0.5}})
    for higher, tops, rounds, target, reached in (
        (True, [0.9, 0.5], [2, 3], 0.6, {0: 2}),
        (False, [0.1, 0.2], [1, 2], 0.25, {0: 1, 1: 2}),
    ):
        assert [own.to_list() for own in best(curves, higher)] == [tops, rounds]
        assert rounds_to(curves, target, higher).to_dict() == reached


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
    made_of = of_curves({"a": [[nan, nan], [0.2, nan]], "b": [[0.2, 0.3], [0.2, 0.3]]})
    tops, rounds = best(made_of.curves(("a",), "val_accuracy"), higher=True)
    assert (tops.to_dict(), rounds.to_dict()) == ({1: 0.2}, {1: 1})
    first, second = cells(progress_table(made_of, panels(made_of)[0], Measure(), every=1))
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


def test_equal_differences_are_no_evidence_and_some_tests_cannot_be_made():
    """Four points more in both seeds: rounding alone, also in the last digit of a table, must not make that certain."""
    some = [([0.84, 0.79], [0.80, 0.75]), ([0.812345, 0.5], [0.712346, 0.4]), ([0.84, 0.79], [0.80, 0.7501])]
    first, second, third = (paired_test(pd.Series(one), pd.Series(other)).p for one, other in some)
    assert math.isnan(first)
    assert math.isnan(second)
    assert third < 0.05
    assert paired_test(pd.Series([math.inf, 0.5]), pd.Series([0.1, 0.4])).pairs == 1
    alone = paired_test(pd.Series([1.0]), pd.Series([0.5]))
    assert (alone.difference, math.isnan(alone.p)) == (0.5, True)
    assert math.isnan(paired_test(pd.Series({0: 1.0}), pd.Series({1: 0.5})).difference)


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


# ------------------------------------------------------------------ tables of a report


def test_the_report_is_the_golden_one(tmp_path, monkeypatch):
    """Every kind of table, mark and note; the numbers of FedAvg and AdaFed are worked by hand below."""
    monkeypatch.setattr("fl_lightning.studies.report.draw_all", lambda *_: {"curves": "accuracy over rounds"})
    made, options = everything()
    write_report(made, options, tmp_path, "a study")
    picture = "\n![Accuracy over rounds](curves.png)\n\n*Accuracy over rounds.*\n"
    assert (tmp_path / "report.md").read_text() == Path(__file__).with_name("golden.md").read_text() + picture
    latex = (tmp_path / "report.tex").read_text()
    assert latex.count(r"\begin{table}") == latex.count(r"\label{tab:") == 20
    assert r"FedAvg & 62.00 $\pm$ 2.00 & 57.00 $\pm$ 2.00 \\" in latex
    assert r"FedBN, own layers \dag{} & 85.00" in latex


def test_cells_are_escaped():
    assert Table("t", ("a|b",), (("x\ny",),)).markdown().splitlines()[2:] == ["| a\\|b |", "|---|", "| x y |"]
    made = Table("A_title", ("x", "y"), (("a & b|c", Bold("1 ± 2")),), "≥ 3.").latex("a {b}")
    assert r"\caption{A\_title (a \{b\}). $\geq$ 3.}" in made
    assert r"a \& b$|$c & \textbf{1 $\pm$ 2} \\" in made


def test_costs_are_those_of_the_seed_that_got_there():
    """Seed 0 has no accuracy and costs 100 MB a round; seed 1 gets there in its first round, for 1 MB."""
    rows = [Row(f"r{k}", ("A",), k, r, "federation/bytes_up", x) for r in range(2) for k, x in enumerate((100e6, 1e6))]
    made_of = RunTable(["strategy"], rows + [Row("r1", ("A",), 1, r, "val_accuracy", 0.9) for r in range(2)])
    (panel,) = panels(made_of)
    assert cells(cost_table(made_of, panel, Measure(), [0.5]))[0][1:3] == ["1.0", "1.0"]
    bare = RunTable(["strategy", "partition"], [row for row in table().rows() if not row.metric.startswith("federation/")])
    (panel,) = panels(bare)
    assert cost_table(bare, panel, Measure(), targets=[]) is None
    made = cost_table(bare, panel, Measure(), targets=[0.8])
    assert cells(made)[1] == ["AdaFed", "3.3 ± 0.6", "-", "-", "-", "-"]  # the rounds to a target alone are known


def test_the_table_of_late_rounds():
    """Also of a metric that is not a share: errors of 0.02 and 0.04, whose variance, 0.0002, is not 0.00."""
    (panel,) = panels(table())
    late = [ACCURACY["AdaFed", seed][2:] for seed in range(3)]
    mean = [100 * statistics.fmean(values) for values in late]
    variance = [1e4 * statistics.variance(values) for values in late]
    texts = [f"{statistics.fmean(own):.2f} ± {statistics.stdev(own):.2f}" for own in (mean, variance)]
    made = cells(late_table(table(), panel, Measure(), after=2))
    assert [cell.strip("*") for cell in made[1][1:]] == ["84.33 ± 4.93", *texts]
    assert late_table(table(), panel, Measure(), after=4) is None
    errors = of_curves({"all": [[0.5, 0.02, 0.04]]}, "val_mae", ())
    (row,) = cells(late_table(errors, panels(errors)[0], Measure("val_mae", higher=False, percent=False), after=1))
    assert [cell.strip("*") for cell in row] == ["all", "0.0200", "0.0300", "0.000200"]


def paired(measure: Measure, **options: str) -> Table:
    (panel,) = panels(table(), **options)
    made = paired_table(finals(table(), panel, measure), panel, measure)
    assert made is not None
    return made


def test_better_is_said_only_where_it_holds():
    one, other = ([ACCURACY[name, seed][-1] for seed in range(3)] for name in ("AdaFed", "FedAvg"))
    assert stats.ttest_rel(one, other).pvalue < 0.001
    assert cells(paired(Measure())) == [["AdaFed", "3", "+21.00 ± 2.48", "< 0.001", "better"]]
    (other,) = cells(paired(Measure(), baseline="AdaFed"))
    assert (other[0], other[-1]) == ("FedAvg", "worse")
    assert cells(paired(Measure("val_accuracy", last=4)))[0][-1] == "no significant difference"
    assert cells(paired(Measure(higher=False)))[0][-1] == "worse"
    made = paired(Measure(), baseline="FedProx")
    assert made.note == "There are no runs of FedProx here."
    assert [row[-1] for row in cells(made)] == ["too few seeds"] * 2


def test_a_tie_is_one_in_float32_and_equal_differences_have_no_interval():
    made_of = of_curves({"a": [[0.5], [0.75]], "b": [[0.625 + 1e-8], [0.625]], "c": [[0.375], [0.625]]})
    (panel,) = panels(made_of)
    shown = final_table(made_of, panel, [Measure()])
    assert [row[1] for row in cells(shown)] == ["*62.50 ± 17.68*", "*62.50 ± 0.00*", "50.00 ± 17.68"]
    tested = paired_table(finals(made_of, panel, Measure()), panel, Measure())
    assert cells(tested)[1] == ["c", "2", "-12.50", "-", "no variance to test against"]


def test_the_table_of_clients():
    """Seeds 0 and 1: 0.5 and 0.7 have mean 0.6 and deviation 0.1414. Each panel has the clients of its data."""
    values = {"local only": (0.5, 0.7), "global": (0.6, 0.6), "personalised": (0.7, 0.8), "gain": (0.2, 0.1)}
    rows = [
        Row(f"r{seed}{data}", (name, data), seed, 9, f"client_comparison/{client}/{model}", x + (client == "b") / 10)
        for name in ("FedAvg", "Fed-Star")
        for client, data in (("a", "digits"), ("b", "digits"), ("c", "photos"))
        for model, by_seed in values.items()
        for seed, x in enumerate(by_seed)
    ]
    rows += [Row("r", ("Ditto", "photos"), 0, 9, "client_comparison/c/own", 0.5)]
    made_of = RunTable(["algorithm", "data"], rows)
    digits, photos = (clients_table(made_of, panel, Measure()) for panel in panels(made_of))
    assert digits.columns == photos.columns == ("client, algorithm", "local only", "global", "own", "personalised", "gain")
    assert [row[0] for row in cells(digits)] == ["a, FedAvg", "a, Fed-Star", "b, FedAvg", "b, Fed-Star"]
    assert cells(digits)[0][1:] == ["60.00 ± 14.14", "60.00 ± 0.00", "-", "75.00 ± 7.07", "15.00 ± 7.07"]
    assert cells(digits)[2][1] == "70.00 ± 14.14"
    assert [row[0] for row in cells(photos)] == ["c, FedAvg", "c, Fed-Star", "c, Ditto"]
    assert cells(photos)[2][1:] == ["-", "-", "50.00", "-", "-"]
    assert clients_table(table(), panels(table())[0], Measure()) is None


@pytest.mark.parametrize(("counts", "shown"), [([3.0, 3.0], "55.00 ± 7.07"), ([3.0, 4.0], "50.00")])
def test_different_clients_are_never_averaged(counts, shown):
    """Two seeds, whose client 'a' has these numbers of examples."""
    rows = []
    for seed, count in enumerate(counts):
        logged = {"partition/a/0": count, "client_comparison/a/global": 0.5 + seed / 10, "client_share/a": 0.2 + seed / 10}
        rows += [Row(f"r-{seed}", ("A",), seed, 0, metric, value) for metric, value in logged.items()]
    made_of = RunTable(["algorithm"], rows)
    made = clients_table(made_of, panels(made_of)[0], Measure())
    assert cells(made) == [["a, A", shown]]
    assert ("Seed 0: the others divide the data differently." in made.note) is (counts[0] != counts[1])
    assert made_of.of_clients(("A",), "client_share/a").shape[1] == (2 if counts[0] == counts[1] else 1)
