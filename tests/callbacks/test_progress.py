"""What a run says while it trains, where there is no terminal to draw a bar on."""

import re

import pytest
from command_line import ROOT
from engine_runs import variant
from federations import Plain, federate
from lightning.pytorch import Callback

from fl_lightning import Faults, LocalTraining

BAR = {"enable_progress_bar": True}


def said(capsys) -> list[str]:
    """Return the lines of the rounds, without their seconds."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Round ")]
    assert all(re.search(r", \d+\.\d s$", line) for line in lines)
    return [line.rpartition(", ")[0] for line in lines]


def test_a_line_for_each_round_unless_there_is_no_bar(capsys):
    """Rounds without validation show no old figures, and what the module shows in a bar comes alone."""
    figures = federate(Plain(), 4, flags=BAR | {"check_val_every_n_epoch": 2}).callback_metrics
    first, second, third, last = said(capsys)
    assert (first, third) == ("Round 0/3: 3 clients", "Round 2/3: 3 clients")
    assert second.startswith("Round 1/3: val_loss 0.")
    figures = f"val_loss {float(figures['val_loss']):.4f}, val_acc {float(figures['val_acc']):.4f}"
    assert last == f"Round 3/3: {figures}, 3 clients"
    federate(Plain(), 1)
    assert said(capsys) == []
    shows = variant(on_validation_epoch_end=lambda self: self.log("shown", 0.5, prog_bar=True))
    federate(shows(), 1, flags=BAR, clients_per_round=1)
    assert said(capsys) == ["Round 0/0: shown 0.5000, 1 client"]


def test_failed_clients_are_named(capsys):
    class OfClient(Callback):
        def on_train_start(self, trainer, pl_module) -> None:
            if trainer.num_training_batches == 4:  # the client with 20 examples
                raise RuntimeError("no power")

    with pytest.warns(UserWarning, match="no power"):
        federate(Plain(), 1, flags=BAR, local=LocalTraining(callbacks=[OfClient()]), faults=Faults("skip"))
    assert said(capsys)[0].endswith(", 3 clients, failed: 1")


@pytest.mark.slow
def test_a_notebook_has_one_line_that_changes_and_no_warning():
    """In a real kernel, without ipywidgets: not a line for each round, and no 'IProgress not found'."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    code = "import sys; sys.modules['ipywidgets'] = None; sys.path.append('tests/support')\nfrom federations import *\n"
    code += "run = federate(Plain(), 3, flags={'enable_progress_bar': True})"
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    client = nbclient.NotebookClient(made, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    outputs = client.execute().cells[0].outputs
    streams = "".join(found["text"] for found in outputs if found["output_type"] == "stream")  # what Lightning says
    assert "Warning" not in streams
    assert "Round" not in streams
    (shown,) = (found["data"] for found in outputs if found["output_type"] == "display_data")
    assert re.fullmatch(r"Round 2/2: val_loss 0\.\d+, val_acc \d\.\d+, 3 clients, \d+\.\d s", shown["text/plain"])
    assert '<progress max="3" value="3"' in shown["text/html"]
