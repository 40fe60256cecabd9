"""Reports and W&B's page of a run from Python, read back from offline files."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import numpy as np
import pytest
import wandb
from engine_runs import variant
from federations import Blobs, Consecutive, Plain, blobs, every_round, federate, trainer
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from shared_runs import rows_of
from torch.utils.data import TensorDataset
from wandb_file import charts, configuration, declared_axes, history, panels, summary

from fl_lightning import (
    AdaFed,
    ConfigurationError,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationReport,
    FederationWandbLogger,
)
from fl_lightning.reporting.client_charts import chart_rows
from fl_lightning.reporting.wandb import where_to_look


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


def measure(self) -> None:
    self.log_dict({"val/mae": 0.25 + self.trainer.current_epoch / 100, "val/f1/3": 0.5})


def reported(folder: str, *callbacks, rounds=2, **flags):
    L.seed_everything(3, verbose=False)
    loggers = [FederationWandbLogger(save_dir=folder, offline=True), CSVLogger(folder, name="csv")]
    federation = FederatedOrchestrator(AdaFed("val_acc"), clients_per_round=2)
    run = trainer(rounds, federation, *callbacks, logger=loggers, default_root_dir=folder, **flags)
    run.fit(variant(on_validation_epoch_end=measure)(), FederatedDataModule(Blobs(), Consecutive()))
    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return what six rounds said and wrote, with a monitor of Lightning's."""
    home, said = tmp_path_factory.mktemp("page"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.chdir(home)
        run = reported("run", FederationReport(), LearningRateMonitor(), rounds=6)
        text = said.getvalue()
        run.test(run.lightning_module, run.datamodule)
    path = file_of(home / "run")
    return SimpleNamespace(text=text, path=path, rows=history(path), folder=home / "run", figures=run.callback_metrics)


@pytest.mark.slow
def test_python_reports_what_the_command_line_reports(page):
    assert "3 clients, 40 training examples" in page.text
    *_, rounds, files, origin, sync = page.text.splitlines()
    assert origin.startswith("Data: ")
    assert rounds.startswith("Rounds: 6. val_loss ")
    assert "val/mae 0.3000" in rounds
    assert files == "Run: run (partition.csv, clients.csv, client_rounds.csv, wandb, csv/version_0)"
    assert sync.startswith("wandb sync run/wandb/offline-run-")
    config = configuration(page.path)
    assert config["federation"]["strategy"]["class_path"] == "fl_lightning.strategies.adafed.AdaFed"
    assert config["federation"]["strategy"]["init_args"]["metric"] == "val_acc"
    assert config["federation"]["local"]["max_epochs"] == 1
    assert config["data"]["partitioner"]["class_path"] == "federations.Consecutive"
    assert config["model"]["class_path"].endswith(".Variant")
    assert {"fl_lightning", "torch"} <= config["versions"].keys()
    assert all(any(name in row for row in page.rows) for name in ("partition", "clients", "client_rounds"))
    assert {"val_loss", "val_acc"} <= summary(page.path).keys()
    assert (page.folder / "client_rounds.csv").read_text().count("\n") == 1 + 6 * 2


def test_the_page_shows_rounds_costs_and_charts(page):
    """Also of ``self.log("val/mae")``, and of Lightning's monitor, which logs without the key ``round``."""
    shown = panels(page.path)
    for section in ("by_megabytes", "by_seconds"):
        assert shown[section] == {f"{section}/{name}" for name in ("val_loss", "val_acc", "val/mae")}
    assert summary(page.path)["val/mae"].keys() == {"min", "max", "last"}
    assert {row["round"]: row["lr-SGD"] for row in page.rows if "lr-SGD" in row} == dict.fromkeys(range(6), 1)
    assert [row["round"] for row in page.rows if "client_charts" in row] == [0, 1, 3, 5]


def fitted(rounds: int, *callbacks, names=("north", "south"), kind=FederationWandbLogger) -> Path:
    logger = kind(save_dir="run", offline=True)
    sets = {name: TensorDataset(*blobs(10, seed)) for seed, name in enumerate(names)}
    run = trainer(rounds, FederatedOrchestrator(), *callbacks, logger=logger, default_root_dir="run")
    run.fit(Plain(), FederatedDataModule.from_clients(sets))
    return file_of("run")


def test_with_more_clients_than_columns_charts_show_quantiles():
    path = fitted(1, FederationReport(), names=[str(k) for k in range(21)])
    found = charts(path)["by_client/loss"]
    assert found.keys() == {"min", "p10", "median", "p90", "max"}
    losses = [float(line["loss"]) for line in rows_of(Path("run/client_rounds.csv"))]
    assert found["p90"] == [pytest.approx((0, np.quantile(losses, 0.9)))]


def test_without_the_table_of_clients_each_client_keeps_its_panel():
    """Otherwise nothing would show the clients."""
    assert panels(fitted(1, FederationReport(clients=False)))["client_loss"] == {"client_loss/north", "client_loss/south"}


def test_lightnings_own_logger_has_a_panel_for_each_figure_and_the_tables():
    path = fitted(2, FederationReport(), kind=WandbLogger)
    assert declared_axes(path)["*"] == "trainer/global_step"
    assert {"client_loss", "client_steps", "federation"} < panels(path).keys()
    assert {"clients", "client_rounds", "partition"} <= {name for row in history(path) for name in row}
    assert not charts(path)


def test_a_chart_has_as_many_rows_as_wandb_draws():
    rows = [[r, str(k), 0.5] for r in range(1700) for k in range(20)]
    columns, lines = chart_rows(["round", "client", "loss"], rows, by_client=True)
    assert columns == ["round", "line", "loss"]
    rounds = range(3, 1700, 4)  # 34,000 rows in steps of 4, which end with the last: 8,500, below 10,000
    assert [line[0] for line in lines] == [r for r in rounds for _ in range(20)]


def test_a_figure_that_a_client_lacks_has_quantiles_over_the_others():
    rows = [[0, "0", 1.0, None], [0, "1", 3.0, None], [1, "0", 2.0, 5.0], [1, "1", 4.0, None]]
    _, lines = chart_rows(["round", "client", "loss", "score"], rows, by_client=False)
    first, second = ([line[2:] for line in lines if line[0] == r and line[1] in ("min", "median", "max")] for r in (0, 1))
    assert first == [[1.0, None], [2.0, None], [3.0, None]]
    assert second == [[2.0, 5.0], [3.0, 5.0], [4.0, 5.0]]


def test_the_command_to_upload_is_shown_although_wandb_also_prints_one_and_not_for_uploaded_parts(monkeypatch):
    """In Python, W&B is not silent; it names only the last part of a resumed run."""
    monkeypatch.setenv("WANDB_SILENT", "false")
    wandb.setup(wandb.Settings(silent=False))
    logger = WandbLogger(save_dir=".", offline=True, settings=wandb.Settings(silent=False))
    assert where_to_look(logger) is None  # not begun
    run = logger.experiment
    assert not run.settings.silent
    assert where_to_look(logger) == f"wandb sync {Path(run.dir).parent.absolute().relative_to(Path.cwd())}"
    earlier = Path(run.dir).parent.parent / f"offline-run-20200101_000000-{run.id}"
    earlier.mkdir()
    assert where_to_look(logger).count("offline-run-") == 2
    (earlier / f"run-{run.id}.wandb.synced").touch()
    assert where_to_look(logger).count("offline-run-") == 1
    assert where_to_look(CSVLogger(".")) is None


# ------------------------------------------------------------------ reports


def report(rounds: int, *callbacks, **flags) -> None:
    run = trainer(rounds, *callbacks, FederationReport(), **{"default_root_dir": "run", **flags})
    run.fit(Plain(), FederatedDataModule(Blobs(), Consecutive()))


def test_logs_outside_of_the_runs_folder(capsys):
    report(1, FederatedOrchestrator(), logger=CSVLogger("logs", name="a"))
    assert "Run: run (partition.csv, clients.csv, client_rounds.csv)\nLogs: logs/a/version_0\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_report_of_training_without_a_federation_says_so(capsys):
    """The orchestrator is forgotten: tables of an earlier federation in the folder stay, and are not this run's."""
    report(2, FederatedOrchestrator())
    tables = {name: Path("run", name).read_text() for name in ("clients.csv", "client_rounds.csv")}
    assert "Run: run (partition.csv, clients.csv, client_rounds.csv)" in capsys.readouterr().out
    report(3)
    text = capsys.readouterr().out
    assert "Epochs on the examples of all clients: 3. val_loss " in text
    assert "Run: run (partition.csv)\n" in text
    assert text.endswith("No federation was trained: the callbacks lack a FederatedOrchestrator.\n")
    assert tables == {name: Path("run", name).read_text() for name in tables}
    report(1, FederatedOrchestrator(enabled=False))
    text = capsys.readouterr().out
    assert "Epochs on the examples of all clients: 1." in text
    assert "No federation" not in text


def test_a_quick_run_saves_nothing_and_a_second_report_is_refused(capsys):
    reported("quick", FederationReport(), fast_dev_run=True)
    text = capsys.readouterr().out
    assert "Ran one round with one batch per client and saved nothing" in text
    assert "wandb sync" not in text
    assert not Path("quick").exists()
    with pytest.raises(ConfigurationError, match=r"has two FederationReports, .* Remove one\."):
        report(1, FederatedOrchestrator(), FederationReport())


def test_a_resumed_run_writes_a_round_once(tmp_path):
    """Half a line of a process that was killed, and rounds that are done again, are taken out; a new fit begins anew."""
    flags = {"default_root_dir": str(tmp_path), "enable_checkpointing": True}
    federate(Plain(), 2, FederationReport(), every_round(tmp_path), flags=flags)
    path = tmp_path / "client_rounds.csv"
    path.write_text(path.read_text() + "2,0,7,2\n5,0,7,2")
    federate(Plain(), 3, FederationReport(), ckpt_path=str(tmp_path / "last.ckpt"), flags=flags)
    lines = rows_of(path)
    assert [(line["round"], line["client"]) for line in lines] == [(str(r), str(k)) for r in range(3) for k in range(3)]
    assert all(float(line["loss"]) > 0 and float(line["update_norm"]) > 0 and line["train_acc"] for line in lines)
    table = FederationReport()
    for _ in range(2):
        federate(Plain(), 1, table, flags=flags)
        assert [(row["rounds"], row["last score"]) for row in rows_of(tmp_path / "clients.csv")] == [("1", "")] * 3
    assert path.read_text().count("\n") == 1 + 3
