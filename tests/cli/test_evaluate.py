"""``fl-lightning evaluate`` in a simulation: what it writes, and what it says about wrong settings."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import wandb
import yaml
from sites_over_bytes import configuration, prepare, simulate
from sklearn.metrics import accuracy_score, recall_score
from wandb_file import history

from fl_lightning import MLP, ClassificationTask, DomainPartitioner, FederatedDataModule, TableDataModule
from fl_lightning.cli.federation_cli import main
from fl_lightning.evaluation.matrix import Cell
from fl_lightning.evaluation.tables import draw, in_words, markdown, points_of_curves, rows_of
from fl_lightning.messages import EvalReport

PARTS = ("--data.client_validation", "0.25", "--data.client_test", "0.25")
ACCURACY = ("--metrics+", "torchmetrics.classification.MulticlassAccuracy", "--metrics.num_classes", "3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        prepare(folder, patch)
        simulate(configuration(), "run", *PARTS, "--trainer.max_epochs", "2")
    return folder


@pytest.fixture
def run(trained, monkeypatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def evaluate(run: Path, *more: str, metrics: tuple[str, ...] = ACCURACY) -> list[dict[str, str]]:
    base = ("--config", "config.yaml", *PARTS, "--trainer.default_root_dir", "run", "--resamples", "20")
    main(["evaluate", *base, *metrics, *more])
    with (run / "run/evaluation/evaluation.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_cells_are_those_of_scikit_learn_on_each_clients_rows(run):
    """Predicted by a plain module from the checkpoint, on rows chosen by the datamodule."""
    rows = evaluate(run, metrics=(*ACCURACY, "--metrics.average", "micro", *ACCURACY))
    data = FederatedDataModule(
        TableDataModule("all", target="digit", kind="classification", standardize=False, test_path="test.csv", test_share=0),
        DomainPartitioner(),
        client_validation=0.25,
        client_test=0.25,
    )
    data.setup("fit")
    module = ClassificationTask(MLP(6, [5], 3, dropout=0.1), 3)
    module.load_state_dict(torch.load("run/checkpoints/best.ckpt", weights_only=True)["state_dict"])
    module.eval()
    inputs, labels = data.datamodule.train_set.tensors
    found: dict[str, Any] = {}
    for client in range(3):
        own = data.splits.test[client]
        found[data.client_name(client)] = labels[own].numpy(), module(inputs[own]).argmax(1).numpy()
    found["all"] = tuple(np.concatenate(one) for one in zip(*found.values(), strict=True))
    for row in rows:
        true, predicted = found[row["site"]]
        oracle = (
            accuracy_score if row["metric"].endswith("1") else lambda y, p: recall_score(y, p, average="macro", zero_division=0)
        )
        assert float(row["value"]) == pytest.approx(oracle(true, predicted), abs=1e-6)
        assert int(row["n"]) == len(true)
    assert {row["metric"] for row in rows} == {"MulticlassAccuracy 1", "MulticlassAccuracy 2"}


@pytest.mark.slow
def test_settings_may_be_in_a_file_and_few_examples_are_left_out_if_asked(run):
    Path("metrics.yaml").write_text(
        "metrics:\n- class_path: torchmetrics.classification.MulticlassROC\n  init_args: {num_classes: 3, thresholds: 4}\n"
        "- class_path: fl_lightning.DiagnosticOddsRatio\n  init_args: {num_classes: 3}\npart: validation\n"
    )
    rows = evaluate(run, "--config", "metrics.yaml", "--checkpoints", "run/checkpoints/last.ckpt", metrics=())
    assert {row["metric"] for row in rows} == {"MulticlassROC", "DiagnosticOddsRatio"}
    assert "On the validation examples" in Path("run/evaluation/evaluation.md").read_text()
    rows = evaluate(run, "--min_examples", "10")
    assert [row["reason"] for row in rows][:2] == ["fewer than 10 examples or persons"] * 2  # 6 and 9 rows


@pytest.mark.slow
@pytest.mark.parametrize("command", [("evaluate", *ACCURACY, "--resamples", "0"), ("describe",), ("partition",)])
def test_the_configuration_that_a_fit_has_written_is_read(run, command, capsys):
    assert yaml.safe_load(Path("run/config.yaml").read_text())["ckpt_path"] is None
    main([command[0], "--config", "run/config.yaml", *command[1:]])
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_table_is_in_wandb(run, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = ("--trainer.logger", "WandbLogger", "--trainer.logger.save_dir", "run", "--trainer.logger.offline", "true")
    evaluate(run, *logger)
    wandb.finish()
    (file,) = (run / "run").rglob("*.wandb")
    assert any("evaluation" in row for row in history(file))


BEST = "--checkpoints run/checkpoints/best.ckpt"
WRONG = f"""
--checkpoints run/checkpoints/none.ckpt => 'run/checkpoints/none.ckpt' is not a readable checkpoint
--checkpoints other.pt => 'other.pt' was not written by a federation
{BEST} other.pt => 'other.pt' does not fit ClassificationTask
{BEST} list.pt => 'list.pt' holds no 'state_dict' of tensors by name
{BEST} code.pt => can run arbitrary code and cannot be trusted
--trainer.default_root_dir other => 'evaluate' needs a checkpoint of a federation
--metrics [] => 'evaluate' needs a metric, but 'metrics' is empty.
--metrics+ torchmetrics.classification.BinaryAccuracy => BinaryAccuracy cannot compare
--resamples 10001 => 'resamples' must be from 0 to 10000, but is 10001
--level 1.5 => 'level' must be above 0 and below 1, but is 1.5
--min_examples 0 => 'min_examples' must be 1 or above, but is 0
--data.client_test 0 --part test => the clients have no test parts
--trainer.devices 2 => 'evaluate' runs in one process, but the Trainer has 2
--data.partitioner IIDPartitioner --data.partitioner.num_clients 2 => is of a federation of 3 clients
--federation.secure_aggregation SecureAggregation => but with 'federation.secure_aggregation' the server
"""


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "said"), [row.split(" => ") for row in WRONG.strip().splitlines()])
def test_wrong_settings_are_told_in_one_message(typed, said, run, capsys):
    torch.save({"network.weight": torch.zeros(3)}, "other.pt")
    torch.save([torch.zeros(3)], "list.pt")
    torch.save({"state_dict": Evil()}, "code.pt")
    with pytest.raises(SystemExit) as ended:
        evaluate(run, *typed.split())
    error = capsys.readouterr().err
    assert ended.value.code == 1
    assert said in " ".join(error.split())
    assert "Traceback" not in error
    assert not Path("executed").exists()


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


# ---------------------------------------------------------------- tables

CELLS = [
    Cell("global", "AUROC", "a|b", EvalReport(0, 0.8125, 40, (0.7, 0.9))),
    Cell("global", "AUROC", "c", EvalReport(1, float("nan"), reason="too few")),
    Cell("global", "ROC", "c", EvalReport(1, float("nan"), 20, points=(torch.tensor([0.0, float("nan"), 1.0]),))),
]


def test_tables_leave_what_is_not_told_empty_and_a_heat_map_is_of_values(tmp_path):
    lines = markdown(CELLS, "test", 0.95).splitlines()
    assert lines[:3] == ["## AUROC", "", "On the test examples; in brackets the 95% bootstrap interval."]
    assert r"| model | a\|b | c |" in lines
    assert "| global | 0.812 [0.700, 0.900] (n=40) | [1] |" in lines
    assert "[1]: too few  " in lines
    assert in_words(CELLS[2].report) == "curve (n=20)"
    assert rows_of(CELLS)[1] == ["global", "AUROC", "c", None, None, None, None, "too few"]
    header, rows = points_of_curves(CELLS)
    assert header[-1] == "value 0"
    assert [row[4:] for row in rows] == [[0, 0.0], [1, None], [2, 1.0]]
    assert points_of_curves(CELLS[:1]) == (["model", "metric", "site", "n", "point"], [])
    assert draw(CELLS, "AUROC", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert not draw(CELLS, "ROC", tmp_path / "b.png")
