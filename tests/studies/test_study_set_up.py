"""What a reader needs to repeat a study: its set-up, the set it is measured on, and axes of numbers."""

import csv
import json
from pathlib import Path

import pytest
import torch
from command_line import small
from federations import SIZES, Blobs, Consecutive, Plain, trainer
from study_tables import cells
from study_tables import runs_of as table

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback
from fl_lightning.reporting.run_facts import run_facts
from fl_lightning.studies import ReportOptions, Row, RunTable, Study, write_report
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.set_up import named_settings, set_up, set_up_tables
from fl_lightning.studies.tables import clients_table

pytest.importorskip("matplotlib", reason="figures are an extra: pip install 'fl_lightning[compare]'")
pytest.importorskip("scipy", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")


# ------------------------------------------------------------------ the set-up


def test_an_axis_that_is_named_by_its_values_needs_no_table():
    runs = {mu: (0.5, [f"setting federation.local.proximal_mu/{float(mu)}"]) for mu in ("0", "0.1")}
    assert [one.title for one in set_up_tables(table(runs, ("mu",)))] == ["Set-up"]
    assert list(set_up_tables(table({"A": (0.5, [])}))) == []  # nothing is known of its runs


@pytest.mark.slow
def test_the_set_up_is_read_from_the_settings_of_the_runs(tmp_path):
    over = {"algorithm": {"FedAvg": {"strategy": "FedAvg"}, "FedProx": {"strategy": "FedAvg", "mu": 0.1}}}
    settings = {"learning_rate": 0.5, "trainer.max_epochs": 7, "data.datamodule.validation_share": 0.1}
    study = Study("adafed_mnist", over, seeds=1, settings=settings)
    configs = [config.as_dict() for config, _ in study.configurations.values()]
    names = named_settings(configs, study._reader.defaults().as_dict())
    (tmp_path / "run.json").write_text(json.dumps({"parameters": "44,426", "selection": "validation set"}))
    found = [set_up(config, names, tmp_path) for config in configs]
    settings = found[0]["settings"]
    assert settings["model.optimizer"] == "Adadelta(lr=0.5, rho=0.95, eps=1e-07)"
    assert settings["model.loss"] == "F1WeightedCrossEntropy"  # its epsilon is the default
    assert settings["data.partitioner"] == "given counts of each class, 6 clients"
    assert (settings["trainer.max_epochs"], settings["federation.clients_per_round"]) == ("7", "all")
    assert settings["data.datamodule.validation_share"] == "0.1"
    assert (settings["parameters"], found[0]["selection"]) == ("44,426", "validation set")
    assert [own["settings"]["federation.local.proximal_mu"] for own in found] == ["0.0", "0.1"]
    assert not {"trainer.default_root_dir", "federation.seed", "data.datamodule.root"} & settings.keys()


class Facts(FederationCallback):
    def on_train_start(self, trainer, pl_module) -> None:
        self.found = run_facts(trainer, pl_module)


def test_the_facts_of_a_run():
    """The weights of Plain's network are 4 x 8 + 8 + 8 x 3 + 3; its first layer is frozen."""
    module, facts = Plain(), Facts()
    module.net[0].requires_grad_(False)
    data = FederatedDataModule(Blobs(), Consecutive(), client_test=0.3)
    trainer(1, FederatedOrchestrator(), facts).fit(module, data)
    assert facts.found["parameters"] == "67, of which 27 are trained"
    held = sum(round(0.3 * size) for size in SIZES)
    examples = f"{sum(SIZES) - held} training at 3 clients, {held} test at 3 clients, 61 validation at the server"
    assert facts.found["examples"] == examples
    assert facts.found["selection"] == "test set"  # Blobs has one set for both
    assert (facts.found["precision"], facts.found["device"][:3]) == ("32-true", "CPU")
    assert f"torch {torch.__version__}" in facts.found["versions"]


# ------------------------------------------------------------------ validation and test


def test_figures_of_the_test_set_are_called_so(tmp_path):
    made = table({name: (x, ["selection/test set"]) for name, x in (("A", 0.5), ("B", 0.6))})
    write_report(made, ReportOptions(also=[]), tmp_path, "S")
    text = (tmp_path / "report.md").read_text()
    assert "- Names: test accuracy is `val_accuracy`." in text
    assert "- The server has validated on the test set" in text
    assert "validation accuracy" not in text.lower().replace("'data.datamodule.validation_share'", "")


def numbers(folder: Path, metric: str) -> list[float]:
    found = []
    for path in sorted(folder.glob("csv/version_*/metrics.csv")):
        with path.open() as file:
            found += [float(row[metric]) for row in csv.DictReader(file) if row.get(metric)]
    return found


@pytest.mark.slow
def test_a_fit_tests_its_best_checkpoint(fl, tmp_path, adafed_run):
    """Oracle: the command ``test``, which reads the same checkpoint later. A fit that validates on the test set says so."""
    folder = tmp_path / "run"
    logger = json.dumps([{"class_path": "CSVLogger", "init_args": {"save_dir": str(folder), "name": "csv"}}])
    more = [f"--trainer.default_root_dir={folder}", f"--trainer.logger={logger}", "--data.datamodule.validation_share=0.2"]
    status, said = small(fl, *more, "--test_best=true", rounds=2)
    assert status == 0, said
    (own,) = numbers(folder, "test_loss")
    assert fl("test", "--config", str(folder / "config.yaml"))[0] == 0
    assert numbers(folder, "test_loss") == [pytest.approx(own), pytest.approx(own)]
    found = json.loads((adafed_run.folder / "run.json").read_text())
    assert (found["selection"], found["validated on"]) == ("test set", "the 1,000 test images")


# ------------------------------------------------------------------ clients of different seeds


def of_clients(counts: list[float]) -> RunTable:
    """Two seeds, whose client 'a' has these numbers of examples."""
    rows = []
    for seed, count in enumerate(counts):
        logged = {"partition/a/0": count, "client_comparison/a/global": 0.5 + seed / 10, "client_share/a": 0.2 + seed / 10}
        rows += [Row(f"r-{seed}", ("A",), seed, 0, metric, value) for metric, value in logged.items()]
    return RunTable(["algorithm"], rows)


@pytest.mark.parametrize(("counts", "shown"), [([3.0, 3.0], "55.00 ± 7.07"), ([3.0, 4.0], "50.00")])
def test_different_clients_are_never_averaged(counts, shown):
    made_of = of_clients(counts)
    (panel,) = panels(made_of)
    made = clients_table(made_of, panel, Measure())
    assert cells(made) == [["a, A", shown]]
    assert ("Seed 0: the others divide the data differently." in made.note) is (counts[0] != counts[1])
    assert made_of.of_clients(("A",), "client_share/a").shape[1] == (2 if counts[0] == counts[1] else 1)


# ------------------------------------------------------------------ axes of numbers


def test_choices_that_are_numbers_have_the_name_of_their_axis():
    mus = ("0", "0.01", "1")
    (panel,) = panels(table(dict.fromkeys(mus, (0.5, [])), ("mu",)))
    assert panel.rows("val_accuracy") == ["mu = 0", "mu = 0.01", "mu = 1"]
    pairs = {f"{mu}|{n}": (0.5, []) for mu in mus for n in ("5", "10")}
    two = panels(table(pairs, ("federation.local.proximal_mu", "num_clients")))
    assert [panel.title for panel in two] == ["num clients = 5", "num clients = 10"]
    assert two[0].axis == "proximal mu"


@pytest.mark.slow
def test_a_grid_on_the_test_set_warns(tmp_path, capsys):
    for over, warns in (({"mu": [0, 0.1]}, True), ({"strategy": ["FedAvg", "FedMedian"]}, False)):
        study = Study("adafed_mnist", over, seeds=1, folder=str(tmp_path / "s"))
        choices = [choice.name for choice in study.axes[0].choices]
        made = table({name: (0.5, ["selection/test set"]) for name in choices}, (study.axes[0].name,), seeds=1)
        study.folder.mkdir(exist_ok=True)
        made.write(study.table_path)
        study._show()
        assert ("Warning: The server has validated on the test set" in capsys.readouterr().out) is warns
