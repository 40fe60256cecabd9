"""What a user of ``fl-lightning compare`` gets for a study that cannot be run."""

import sys
from pathlib import Path

import pytest
from refusing import holds
from study_tables import typed

for package in ("mlxtend", "matplotlib", "scipy"):
    pytest.importorskip(package, reason="an extra: pip install 'fl_lightning[compare,digits]'")


def refused(*arguments: str) -> str:
    status, text = typed("compare", *arguments)
    assert status in (1, 2)
    assert text.startswith("fl-lightning compare: error: ")
    assert "Traceback" not in text
    return text


WRONG = """
 => required: base
--base nowhere.yaml => There is no configuration 'nowhere.yaml': no file 'nowhere.yaml' in
--base adafed_mnst => Did you mean adafed_mnist?
--base [] => 'base' must be a configuration of 'fl-lightning fit'
--base adafed_mnist --seeds 0 => 'seeds' must be at least 1, or numbers of at least 0, but is 0
--base adafed_mnist --seeds many => 'seeds' must be a number of seeds, or the seeds themselves, such as 3,5
--base adafed_mnist --seeds 3,5,3 => 'seeds' must be numbers that differ, but is '3,5,3'
--base adafed_mnist --known nowhere.csv => Cannot read the run table 'nowhere.csv'
--base adafed_mnist --jobs 0 => 'jobs' must be at least 1, or auto
--base adafed_mnist --jobs many => All settings: fl-lightning compare --help; examples: docs/studies.md.
--base adafed_mnist --over.strategy FedAvg,FedAvg => 'over.strategy' has 'FedAvg' more than once
--base adafed_mnist --over.strategy [] => 'over.strategy' has no choices. Give at least one choice, each once
over: {strategy: 3} => 'over.strategy' must be a list or names with settings, but is 3. An axis is a list
--base adafed_mnist --over.seed [1,2] => 'seed' is a column of every run table. Rename it.
--base adafed_mnist --over.partition nowhere.yaml => There is no configuration 'nowhere.yaml'
--base adafed_mnist --over.partition iid.yaml,FedAvg => 'over.partition' mixes configuration files with 'FedAvg'
--base adafed_mnist --over.partition {"a":{1:2}} => 'over.partition.a' must name settings
--base adafed_mnist --over.strategy FedAvgg => Cannot configure the run 'strategy=FedAvgg,seed=0'
--base adafed_mnist --over.strategi FedAvg => Short names: strategy, route
--base adafed_mnist --over.federation.stratgy [1] => federation.strategy
--base adafed_mnist --over.mu 0,high => Cannot configure the run 'mu=high,seed=0'
--base adafed_mnist --over.strategy FedAvg --report.baseline x => the choices of the axis 'strategy' are: FedAvg
--base adafed_mnist --report.compare x => --report.compare
--base adafed_mnist --sweep bayes => unrecognized arguments: --sweep bayes
--base adafed_mnist --settings.trainer.max_epochs => expected
--config strategies_on_skw => Did you mean studies/strategies_on_skew?
sedes: 3 => Option 'sedes' is not accepted. Did you mean --seeds?
seeds: null => 'seeds' is null. Set it, or leave it out for its default
report: {every: null} => 'report.every' is null. Set it, or leave it out for its default, 10.
report: {families: {a: [FedAvg]}} => Group 'report' does not accept option 'families.a'
--base adafed_mnist --over.strategy FedAvg --report.names {"FedOpt":"x"} => 'report.names' has 'FedOpt', but the choices of
over: {trainer: {max_epochs: [1, 2]}} => Cannot configure the run 'trainer=max_epochs,seed=0': 'trainer' must contain settings
over: {strategy: [FedAvg, AdaFed], algorithm: {same: {strategy: FedAvg}}} => have the same settings
"""


@pytest.mark.slow
@pytest.mark.parametrize(("given", "words"), [row.split(" => ") for row in WRONG.strip("\n").splitlines()])
def test_wrong_studies_are_refused_before_anything_runs(given, words):
    Path("mine.yaml").write_text(f"base: adafed_mnist\n{given}\n")
    said = refused(*(given.split() if given.startswith("-") or not given else ("--config", "mine.yaml")))
    assert holds(said, words), said
    assert not Path("runs").exists()


def test_a_missing_extra_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    text = refused("--base", "adafed_mnist")
    assert "pip install 'fl_lightning[compare]'" in text
    assert not Path("runs").exists()


def test_a_report_without_a_table():
    status, text = typed("report")
    assert status == 1
    assert "fl-lightning report: error: Cannot read the run table 'runs/studies/study/table.csv'" in text
