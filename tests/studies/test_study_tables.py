"""Run tables, what repeated runs say, and the tables of a report: against numbers worked by hand, and scipy."""

import statistics
from pathlib import Path

import pytest
from study_tables import ACCURACY, cells, everything, table

from fl_lightning.studies import Row, RunTable, write_report
from fl_lightning.studies.layout import Bold, Table
from fl_lightning.studies.panels import Measure, Panel, panels
from fl_lightning.studies.tables import clients_table, cost_table, finals, late_table, paired_table

stats = pytest.importorskip("scipy.stats", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")


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


def paired(panel: Panel, measure: Measure) -> Table:
    made = paired_table(finals(table(), panel, measure), panel, measure)
    assert made is not None
    return made


# ------------------------------------------------------------------ tables of a report


def test_a_baseline_without_runs_is_said():
    (panel,) = panels(table(), baseline="FedProx")
    made = paired(panel, Measure())
    assert made.note == "There are no runs of FedProx here."
    assert [row[-1] for row in cells(made)] == ["too few seeds"] * 2


def test_costs_are_those_of_the_seed_that_got_there():
    """Seed 0 has no accuracy and costs 100 MB a round; seed 1 gets there in its first round, for 1 MB."""
    rows = [Row("r0", ("A",), 0, r, "federation/bytes_up", 100e6) for r in range(2)]
    rows += [Row("r1", ("A",), 1, r, "federation/bytes_up", 1e6) for r in range(2)]
    rows += [Row("r1", ("A",), 1, r, "val_accuracy", 0.9) for r in range(2)]
    made_of = RunTable(["strategy"], rows)
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
    made = cells(late_table(table(), panel, Measure(), after=2))
    assert made[1][1] == "*84.33 ± 4.93*"
    assert made[1][2] == f"*{statistics.fmean(mean):.2f} ± {statistics.stdev(mean):.2f}*"
    assert made[1][3].strip("*") == f"{statistics.fmean(variance):.2f} ± {statistics.stdev(variance):.2f}"
    assert late_table(table(), panel, Measure(), after=4) is None
    errors = RunTable([], [Row("a-0", (), 0, r, "val_mae", x) for r, x in enumerate((0.5, 0.02, 0.04))])
    (panel,) = panels(errors)
    (row,) = cells(late_table(errors, panel, Measure("val_mae", higher=False, percent=False), after=1))
    assert [cell.strip("*") for cell in row] == ["all", "0.0200", "0.0300", "0.000200"]


def test_better_is_said_only_where_it_holds():
    (panel,) = panels(table())
    finals = {name: [ACCURACY[name, seed][-1] for seed in range(3)] for name in panel.names}
    p = stats.ttest_rel(finals["AdaFed"], finals["FedAvg"]).pvalue
    made = cells(paired(panel, Measure()))
    assert made == [["AdaFed", "3", "+21.00 ± 2.48", f"{p:.3f}" if p >= 0.001 else "< 0.001", "better"]]
    (against_adafed,) = panels(table(), baseline="AdaFed")
    (other,) = cells(paired(against_adafed, Measure()))
    assert other[0] == "FedAvg"
    assert other[-1] == "worse"
    noisy = cells(paired(panel, Measure("val_accuracy", last=4)))
    assert noisy[0][-1] == "no significant difference"
    lower_is_better = cells(paired(panel, Measure(higher=False)))
    assert lower_is_better[0][-1] == "worse"


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
    (panel,) = panels(table())
    assert clients_table(table(), panel, Measure()) is None
