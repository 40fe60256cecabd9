"""What a reader needs to repeat a study: its set-up, the set it is measured on, and names; and what is not comparable."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from command_line import ADAFED, ROOT, small
from federations import SIZES, Blobs, Consecutive, Plain, trainer
from shared_runs import rows_of
from study_tables import of_curves

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback
from fl_lightning.reporting.run_facts import run_facts
from fl_lightning.strategies import ALGORITHMS
from fl_lightning.studies import ReportOptions, Study, write_report
from fl_lightning.studies.names import family, partition_in_words, readable
from fl_lightning.studies.panels import panels
from fl_lightning.studies.set_up import code_of, facts, named_settings, set_up
from fl_lightning.utilities.source_version import source_version

pytest.importorskip("matplotlib", reason="figures are an extra: pip install 'fl_lightning[compare]'")
pytest.importorskip("scipy", reason="paired tests are an extra: pip install 'fl_lightning[compare]'")

# ------------------------------------------------------------------ the set-up


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
    made = of_curves({"A": [[0.5]], "B": [[0.6]]}, facts={key: {"selection": "test set"} for key in "AB"})
    write_report(made, ReportOptions(also=[]), tmp_path, "S")
    text = (tmp_path / "report.md").read_text()
    assert "- Names: test accuracy is `val_accuracy`." in text
    assert "- The server has validated on the test set" in text
    assert "validation accuracy" not in text.lower().replace("'data.datamodule.validation_share'", "")


def numbers(folder: Path, metric: str) -> list[float]:
    logs = sorted(folder.glob("csv/version_*/metrics.csv"))
    return [float(row[metric]) for path in logs for row in rows_of(path) if row.get(metric)]


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


# ------------------------------------------------------------------ axes of numbers


def test_choices_that_are_numbers_have_the_name_of_their_axis():
    mus = ("0", "0.01", "1")
    (panel,) = panels(of_curves({key: [[0.5]] for key in mus}, axes=("mu",)))
    assert panel.rows("val_accuracy") == ["mu = 0", "mu = 0.01", "mu = 1"]
    pairs = [f"{mu}|{n}" for mu in mus for n in ("5", "10")]
    two = panels(of_curves({key: [[0.5]] for key in pairs}, axes=("federation.local.proximal_mu", "num_clients")))
    assert [panel.title for panel in two] == ["num clients = 5", "num clients = 10"]
    assert two[0].axis == "proximal mu"


@pytest.mark.slow
def test_a_grid_on_the_test_set_warns(tmp_path, capsys):
    for over, warns in (({"mu": [0, 0.1]}, True), ({"strategy": ["FedAvg", "FedMedian"]}, False)):
        study = Study("adafed_mnist", over, seeds=1, folder=str(tmp_path / "s"))
        choices = [choice.name for choice in study.axes[0].choices]
        facts = {key: {"selection": "test set"} for key in choices}
        of_curves({key: [[0.5]] for key in choices}, axes=(study.axes[0].name,), facts=facts).write(study.table_path)
        study._show()
        assert ("Warning: The server has validated on the test set" in capsys.readouterr().out) is warns


# ------------------------------------------------------------------ names


def test_a_file_of_an_algorithm_has_its_name_and_one_that_the_user_wrote_stays():
    for group, one in ((group, one) for group, algorithms in ALGORITHMS.items() for one in algorithms):
        assert readable(one.config) == one.name
        assert family(one.name) == family(f"{one.name}, half of it") == group
    for own in ("FedAvg", "AdaFed, weights only", "none", "8 bits", "clients, 0.1", "SGD(lr=0.1)", "0.5", "KRUM"):
        assert readable(own) == own


def test_partitions_in_words():
    counts = {"class_path": "TablePartitioner", "init_args": {"counts": [[1, 2], [3, 4], [5, 6]], "seed": 3}}
    assert partition_in_words(counts) == "given counts of each class, 3 clients"
    own = {"class_path": "my.Halves", "init_args": {"share": 0.5, "seed": 1, "names": None, "strict": True}}
    assert partition_in_words(own) == "Halves, share 0.5"
    assert partition_in_words(None) == "one dataset for each client"


# ------------------------------------------------------------------ what is not comparable


@pytest.mark.slow
def test_the_facts_of_a_run_come_from_its_configuration():
    kinds = ("centralized", "local only", "last client")
    files = {name: str(ROOT / "configs" / f"{name.replace(' ', '_')}_mnist.yaml") for name in (*kinds, "fedper")}
    choices = {
        "base": None,
        "embedded": {"data.datamodule.source": "embedded", "data.datamodule.batch_size": 3},
        "limited": {"trainer.limit_val_batches": 2},
        "skew": str(ROOT / "configs" / "data" / "label_skew.yaml"),
        **files,
    }
    study = Study(ADAFED, {"only": choices}, seeds=1)
    found = {run.setting[0]: facts(study.configurations[run.name][0].as_dict()) for run in study.runs}
    partition, server = "given counts of each class, 6 clients", "the validation set of MNISTDataModule"
    assert found["base"] == {"partition": partition, "training": "100 %", "server_set": f"{server} (source auto)"}
    assert found["embedded"]["server_set"] == f"{server} (source embedded)"
    assert found["limited"]["server_set"] == f"{server} (source auto), limited to 2 batches"
    parts = "the clients' own test parts (20 % each; Dirichlet, beta 0.5, 10 clients)"
    skew = {"training": "80 %", "client_set": parts, "server_set": f"{parts}, together"}
    assert found["skew"] == {"partition": found["skew"]["partition"], **skew}
    complete = f"the clients' own test parts (20 % each; {partition}), each with its client's complete model"
    assert found["fedper"]["server_set"] == complete
    assert [found[kind].get("reference") for kind in (*kinds, "fedper")] == [*kinds, None]


def test_the_code_of_a_run_is_what_it_wrote_into_its_configuration(tmp_path):
    assert code_of(tmp_path) == {}
    for first, code in (("# fl_lightning==0.2.0 (commit 60b2303)", {"code": "0.2.0 (commit 60b2303)"}), ("seed: 1", {})):
        (tmp_path / "config.yaml").write_text(f"{first}\ntrainer: {{}}\n")
        assert code_of(tmp_path) == code


def test_the_commit_of_a_checkout(tmp_path):
    """What git itself says; without a checkout, the release alone."""

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def version() -> str:
        source_version.cache_clear()
        return source_version("1.2.3", tmp_path)

    assert version() == "1.2.3"
    git("init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "--quiet", "-m", "first")
    commit = git("rev-parse", "HEAD")[:7]
    assert version() == f"1.2.3 (commit {commit})"
    (tmp_path / "code.py").write_text("2")
    assert version() == f"1.2.3 (commit {commit}-dirty)"
    (tmp_path / ".git" / "HEAD").write_text("no reference")
    assert version() == "1.2.3"
    source_version.cache_clear()
