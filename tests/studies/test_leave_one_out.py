"""Studies that leave one site out: tables worked by hand and with scipy, and a study as a user runs it."""

import statistics
from pathlib import Path

import pytest
import yaml
from client_sites import CONFIG as CLIENTS
from scipy import stats
from study_tables import typed

from fl_lightning import ConfigurationError
from fl_lightning.studies import ReportOptions, Row, RunTable, Study
from fl_lightning.studies.leave_one_out import LEFT_OUT, METRIC, leave_one_out_tables
from fl_lightning.studies.panels import panels

SCORES = {  # by strategy, then by site: the final scores of seeds 0 and 1
    "FedAvg": {"a": (0.70, 0.74), "b": (0.60, 0.60), "c": (0.50, 0.54)},
    "AdaFed": {"a": (0.80, 0.82), "b": (0.65, 0.69), "c": (0.51, 0.55)},
}


def table(axes: tuple[str, ...] = ("strategy", LEFT_OUT), drop: tuple[str, str] | None = None) -> RunTable:
    rows = []
    for strategy, sites in SCORES.items():
        for site, values in sites.items():
            setting = (strategy, site) if len(axes) == 2 else (strategy, "iid", site)
            for seed, value in enumerate(values):
                if (strategy, site) != drop:
                    run = f"{strategy}-{site}-{seed}"
                    rows += [Row(run, setting, seed, 0, METRIC, 0.1), Row(run, setting, seed, 1, METRIC, value)]
    return RunTable(axes, rows)


def made(found: RunTable, **options: str) -> list[tuple[str, list[list[str]], list[list[str]]]]:
    """The title, and the texts of both tables."""
    chosen = ReportOptions(METRIC, mode="max", **options)
    sections = leave_one_out_tables(found, panels(found, chosen.names, chosen.baseline), chosen.measure)
    return [(title, *([list(row) for row in one.rows] for one in tables)) for title, tables in sections]


def test_means_worst_site_and_spread_by_hand_and_sites_paired_as_by_scipy():
    ((title, sites, (row,)),) = made(table())
    assert title == ""
    spread = f"{statistics.stdev([72.0, 60.0, 52.0]):.2f}"
    assert sites[0] == ["FedAvg", "72.00 ± 2.83", "60.00 ± 0.00", "52.00 ± 2.83", "61.33", "52.00", spread]
    assert sites[1][4:] == ["67.00", "53.00", f"{statistics.stdev([81.0, 67.0, 53.0]):.2f}"]
    ours, theirs = [0.81, 0.67, 0.53], [0.72, 0.60, 0.52]
    test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(0.95)
    expected = f"{100 * (statistics.fmean(ours) - statistics.fmean(theirs)):+.2f} ± {50 * (high - low):.2f}"
    assert row == ["AdaFed", "3", expected, f"{test.pvalue:.3f}", "no significant difference"]
    ((_, sites, (row,)),) = made(table(drop=("AdaFed", "c")))  # a site that one of both lacks is not paired
    assert row[1] == "2"
    assert sites[1][3:5] == ["-", "74.00"]


def test_other_axes_are_sections_and_one_algorithm_is_one_row():
    assert [title for title, *_ in made(table(("strategy", "partition", LEFT_OUT)))] == ["iid"]
    alone = RunTable((LEFT_OUT,), [Row(site, (site,), 0, 0, METRIC, x) for site, x in (("a", 0.5), ("b", 0.75))])
    (section,) = made(alone)
    assert section[1] == [["all", "50.00", "75.00", "62.50", "50.00", "17.68"]]
    assert len(section) == 2  # nothing to test
    assert made(RunTable(("strategy",), [Row("a", ("FedAvg",), 0, 0, METRIC, 0.5)])) == []


# ---------------------------------------------------------------- a study


def base() -> None:
    Path("own.yaml").write_text(
        CLIENTS.replace("out}", "out, logger: false}")
        + "    hospital_c: {class_path: client_sites.Images, init_args: {seed: 2, size: 10}}\n"
        + "federation: {client_evaluation: {metric: val_loss}}\nbest_checkpoint: {monitor: val_loss}\n"
    )


@pytest.mark.slow
def test_a_study_leaves_each_client_out(monkeypatch):
    monkeypatch.setattr("fl_lightning.studies.report.draw_all", lambda *_: {})
    base()
    study = {"base": "own.yaml", "over": {"strategy": ["FedAvg", "FedMedian"]}, "seeds": 1, "leave_one_out": True}
    Path("mine.yaml").write_text(yaml.safe_dump(study))
    status, said = typed("compare", "--config", "mine.yaml")
    assert not status, said
    folder = Path("runs/studies/mine")
    found = RunTable.read(folder / "table.csv")
    assert found.axes == ("strategy", LEFT_OUT)
    names = ["hospital_a", "hospital_b", "hospital_c"]
    assert list(dict.fromkeys(site for _, site in found.settings)) == names
    settings = yaml.safe_load((folder / "runs/strategy=FedAvg,left_out=hospital_b,seed=0/settings.yaml").read_text())
    assert settings["data"]["held_out_clients"] == ["hospital_b"]
    written = (folder / "report.md").read_text()
    scores = [found.curves(("FedAvg", name), METRIC).at[0, 0] for name in names]
    row = next(line for line in written.splitlines() if line.startswith("| FedAvg |") and line.count("|") == 8)
    cells = [cell.strip(" *") for cell in row.split("|")[2:-1]]
    expected = [*scores, statistics.fmean(scores), max(scores), statistics.stdev(scores)]  # the worst loss is the highest
    assert [float(cell) / 100 for cell in cells] == pytest.approx(expected, abs=1e-4)
    assert "paired over sites" in written
    typed("report", "--name=mine", "--out=again")
    assert Path("again/report.md").read_text() == written


WRONG = """
leave_one_out: [hospital_a] => 'leave_one_out' must be true, or the names of two or more clients, which differ
leave_one_out: true, settings: {data.held_out_clients: 1} => sets 'data.held_out_clients' itself. Remove it
leave_one_out: true, over: {left_out: {x: null}} => 'over.left_out' is the axis that 'leave_one_out' adds
leave_one_out: true, settings: {federation.pool: FlowerPool} => the sites of 'federation.pool' are not known here. Name them
leave_one_out: [hospital_a, hospital_b], over: {mode: {x: {federation.enabled: false}}} => The run 'mode=x,left_out=hospital_a
"""


@pytest.mark.slow
@pytest.mark.parametrize(("given", "words"), [row.split(" => ") for row in WRONG.strip().splitlines()])
def test_wrong_studies_are_refused(given, words):
    base()
    with pytest.raises(ConfigurationError) as told:
        _ = Study(base="own.yaml", **yaml.safe_load(f"{{{given}}}")).configurations
    assert words in str(told.value)


@pytest.mark.slow
def test_the_clients_of_a_partition_are_found_and_the_evaluation_can_be_set():
    settings = {"data.datamodule": {"source": "embedded"}, "federation.client_evaluation.every_n_rounds": 3}
    study = Study(base="adafed_mnist", settings=settings, seeds=1, leave_one_out=True)
    assert [run.setting for run in study.runs] == [(str(k),) for k in range(6)]
    assert study.report.measure.name == METRIC
    assert study.report.measure.higher
    config, _ = study.configurations[study.runs[2].name]
    assert (config.data.held_out_clients, config.federation.client_evaluation.every_n_rounds) == (["2"], 3)
