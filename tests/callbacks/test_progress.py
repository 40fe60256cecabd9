"""What a run says while it trains, where there is no terminal to draw a bar on."""

from __future__ import annotations

import re

import lightning as L
import pytest
from command_line import ROOT
from federations import Plain, blobs, federate
from lightning.pytorch import LightningModule
from torch.utils.data import TensorDataset

from fl_lightning import Faults, FederatedDataModule, FederatedOrchestrator, LocalTraining


def lines(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("Round ")]


def without_seconds(lines: list[str]) -> list[str]:
    assert all(re.search(r", \d+\.\d s$", line) for line in lines)
    return [line.rpartition(", ")[0] for line in lines]


def test_a_line_for_each_round(capsys):
    run = federate(Plain(), 2, flags={"enable_progress_bar": True})
    figures = run.callback_metrics
    last = f"Round 1/1: val_loss {float(figures['val_loss']):.4f}, val_acc {float(figures['val_acc']):.4f}, 3 clients"
    said = without_seconds(lines(capsys))
    assert len(said) == 2
    assert said[0].startswith("Round 0/1: val_loss 0.")
    assert said[1] == last


def test_what_the_module_shows_in_a_bar_comes_alone(capsys):
    class Shows(Plain):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("shown", 0.5, prog_bar=True)

    federate(Shows(), 1, flags={"enable_progress_bar": True}, clients_per_round=1)
    assert without_seconds(lines(capsys)) == ["Round 0/0: shown 0.5000, 1 client"]


def test_failed_clients_are_named(capsys):
    class OfClient(L.Callback):
        """Fails where the client has 20 examples."""

        def on_train_start(self, trainer: L.Trainer, pl_module: LightningModule) -> None:
            if trainer.num_training_batches == 4:
                raise RuntimeError("no power")

    local = LocalTraining(callbacks=[OfClient()])
    with pytest.warns(UserWarning, match="no power"):
        federate(Plain(), 1, flags={"enable_progress_bar": True}, local=local, faults=Faults("skip"))
    (line,) = without_seconds(lines(capsys))
    assert line.endswith(", 3 clients, failed: 1")


def test_clients_with_names_are_shown_by_them(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    sets = {name: TensorDataset(*blobs(10, 1)) for name in ("north", "south")}
    run = L.Trainer(
        max_epochs=1, callbacks=[FederatedOrchestrator()], logger=False, enable_checkpointing=False, accelerator="cpu"
    )
    run.fit(Plain(), FederatedDataModule.from_clients(sets))
    assert "training=south" in capsys.readouterr().err


def test_rounds_without_validation_show_no_old_figures(capsys):
    federate(Plain(), 2, flags={"enable_progress_bar": True, "check_val_every_n_epoch": 2})
    said = without_seconds(lines(capsys))
    assert said[0] == "Round 0/1: 3 clients"
    assert "val_acc" in said[1]


def test_without_a_bar_nothing_is_said(capsys):
    federate(Plain(), 1)
    assert lines(capsys) == []


def outputs_of(code: str) -> list[dict]:
    """What a notebook holds below a cell after it ran in a real kernel, without ipywidgets."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    start = "import sys; sys.modules['ipywidgets'] = None; sys.path.append('tests/support')\n"
    cells = [nbformat.v4.new_code_cell(start + code)]
    made = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(made, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    return client.execute().cells[0].outputs


def test_a_notebook_has_one_line_that_changes_and_no_warning():
    """Not a line for each round, and no 'IProgress not found'."""
    federate = "from federations import *\nrun = federate(Plain(), 3, flags={'enable_progress_bar': True})"
    outputs = outputs_of(federate)
    said = "".join(found["text"] for found in outputs if found["output_type"] == "stream")  # what Lightning says
    assert "Warning" not in said
    assert "Round" not in said
    (shown,) = (found["data"] for found in outputs if found["output_type"] == "display_data")
    assert re.fullmatch(r"Round 2/2: val_loss 0\.\d+, val_acc \d\.\d+, 3 clients, \d+\.\d s", shown["text/plain"])
    assert '<progress max="3" value="3"' in shown["text/html"]
