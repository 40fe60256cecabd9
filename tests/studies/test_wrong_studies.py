"""What a user of ``fl-lightning compare`` gets for a study that cannot be run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from command_line import ADAFED

from fl_lightning.studies.commands import main

for package in ("mlxtend", "matplotlib", "scipy"):
    pytest.importorskip(package, reason="an extra: pip install 'fl_lightning[compare,digits]'")


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["compare", *arguments])
    assert end.value.code in (1, 2)
    text = capsys.readouterr().err
    assert text.startswith("fl-lightning compare: error: ")
    assert "Traceback" not in text
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: base"),
        (["--base", "nowhere.yaml"], "There is no configuration 'nowhere.yaml': no file 'nowhere.yaml' in"),
        (["--base", "adafed_mnst"], "Did you mean adafed_mnist?"),
        (["--config", "strategies_on_skw"], "Did you mean studies/strategies_on_skew?"),
        (["--config", "mine.yaml"], "'mine.yaml', line 2: "),
        (["--config", "mine.yaml"], "Did you mean --seeds?"),
        (["--base", ADAFED, "--seeds", "0"], "'seeds' must be at least 1, or numbers of at least 0, but is 0"),
        (["--base", ADAFED, "--seeds", "many"], "'seeds' must be a number of seeds, or the seeds themselves, such as 3,5"),
        (["--base", ADAFED, "--seeds", "3,5,3"], "'seeds' must be numbers that differ, but is '3,5,3'"),
        (["--base", ADAFED, "--known", "nowhere.csv"], "Cannot read the run table 'nowhere.csv'"),
        (["--base", ADAFED, "--jobs", "0"], "'jobs' must be at least 1, or auto"),
        (["--base", ADAFED, "--over.strategy", "FedAvg,FedAvg"], "has 'FedAvg' more than once"),
        (["--base", ADAFED, "--over.strategy", "FedAvgg"], "Cannot configure the run 'strategy=FedAvgg,seed=0'"),
        (["--base", ADAFED, "--over.federation.stratgy", "[1]"], "federation.strategy"),
        (["--base", ADAFED, "--over.mu", "0,high"], "Cannot configure the run 'mu=high,seed=0'"),
        (["--base", ADAFED, "--report.compare", "x"], "--report.compare"),
        (
            ["--base", ADAFED, "--over.strategy", "FedAvg", "--report.baseline", "x"],
            "the choices of the axis 'strategy' are: FedAvg",
        ),
        (["--base", "[]"], "'base' must be a configuration of 'fl-lightning fit'"),
        (["--base", ADAFED, "--over.strategi", "FedAvg"], "Short names: strategy, route"),
        (["--base", ADAFED, "--sweep", "bayes"], "unrecognized arguments: --sweep bayes"),
        (["--base", ADAFED, "--jobs", "many"], "All settings: fl-lightning compare --help; examples: docs/studies.md."),
        (["--base", ADAFED, "--settings.trainer.max_epochs"], "expected"),
        (["--config", "null.yaml"], "'seeds' is null, but needs a whole number or a list or text. Set it, or"),
        (["--config", "gone.yaml"], "Group 'report' does not accept option 'families.a'"),
        (["--config", "nested.yaml"], "Cannot configure the run 'trainer=max_epochs,seed=0': 'trainer' must contain settings"),
        (["--config", "every.yaml"], "'report.every' is null, but needs a whole number."),
    ],
)
def test_wrong_studies_are_refused_before_anything_runs(arguments, message, capsys):
    texts = {"mine": "sedes: 3", "null": "seeds: null", "every": "report: {every: null}"}
    texts |= {"gone": "report: {families: {a: [FedAvg]}}", "nested": "over: {trainer: {max_epochs: [1, 2]}}"}
    for name, text in texts.items():
        Path(f"{name}.yaml").write_text(f"base: adafed_mnist\n{text}\n")
    assert message in refused(capsys, *arguments)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_choices_that_change_nothing(capsys):
    over = {"strategy": ["FedAvg", "AdaFed"], "algorithm": {"same": {"strategy": "FedAvg"}}}
    Path("mine.yaml").write_text(yaml.safe_dump({"base": ADAFED, "over": over, "seeds": 1}, sort_keys=False))
    assert "have the same settings" in refused(capsys, "--config", "mine.yaml")


def test_a_missing_extra_is_named_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    text = refused(capsys, "--base", ADAFED)
    assert "pip install 'fl_lightning[compare]'" in text
    assert not Path("runs").exists()


def test_a_report_without_a_table(capsys):
    with pytest.raises(SystemExit) as end:
        main(["report"])
    assert end.value.code == 1
    text = capsys.readouterr().err
    assert "fl-lightning report: error: Cannot read the run table 'runs/studies/study/table.csv'" in text
