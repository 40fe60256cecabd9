"""The configurations beyond image classification: each is fitted, and resumed to the same bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from command_line import OTHER_TASKS, QUIET, ROOT, undocumented
from launching import launch


def bring_data(name: str) -> None:
    """What a user brings: a folder of images with dots, or a table."""
    if name == "cells":
        tool = [str(ROOT / "tools" / "simulate_cells.py"), "--out=data/cells", "--images=5", "--image_size=40"]
        launch(tool, 120, Path.cwd())
    if name == "hospital_tables":
        Path("data/hospitals").mkdir(parents=True)
        page = (ROOT / "docs" / "schema.md").read_text()
        Path("data/schema.yaml").write_text(re.search(r":caption: schema.yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1])
        for hospital, classes in (("a", ["healthy"]), ("b", ["healthy", "cancer"])):
            rows = [
                f"{classes[k % len(classes)]},{20 + k},{k / 10 + 0.5},male,{k % 2},2021-03-{k % 28 + 1:02d}" for k in range(20)
            ]
            text = "\n".join(["outcome,age,creatinine,sex,smoker,admitted", *rows])
            Path(f"data/hospitals/{hospital}.csv").write_text(text)
    if name == "table":
        Path("data").mkdir()
        rows = (f"{k % 7},{'xyz'[k % 3]},{-k},{k % 5 - 0.5 * k}" for k in range(60))
        Path("data/table.csv").write_text("\n".join(["a,client,b,target", *rows]))


@pytest.mark.usefixtures("_disabled_wandb")
@pytest.mark.parametrize("name", OTHER_TASKS)
def test_every_config_is_fitted_and_resumed_bit_for_bit(name, fl):
    bring_data(name)
    files, more = OTHER_TASKS[name]
    configs = [f"--config={file}" for file in files]

    def run(folder: str, rounds: int, *flags: str) -> dict:
        own = [f"--trainer.default_root_dir={folder}", f"--trainer.max_epochs={rounds}", "--federation.local.threads=1"]
        status, text = fl("fit", *configs, *more, *QUIET, *own, *flags)
        assert status == 0, text
        assert f"Rounds: {rounds}." in text
        assert (Path(folder) / "checkpoints" / "best.ckpt").exists()
        return torch.load(f"{folder}/checkpoints/last.ckpt", weights_only=True)

    rounds = 3 if name == "transfer_learning_mnist" else 2  # its layers thaw in the third
    whole = run("whole", rounds)
    run("parts", 1)
    resumed = run("parts", rounds, "--ckpt_path=last")
    assert whole["state_dict"].keys() == resumed["state_dict"].keys()
    for key, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, resumed["state_dict"][key]), key
    (log,) = Path("whole").glob("csv/version_*/metrics.csv")
    assert not undocumented(log.read_text().splitlines()[0].split(","))


MLP = ["--model.network=fl_lightning.MLP", "--model.network.in_features=10", "--model.network.num_classes=1"]
WRONG = [
    (
        "cell_counting",
        ["--data.datamodule.density_scale=10"],
        "'model.readout.scale' is 100.0, but 'data.datamodule.density_scale' is 10",
    ),
    (
        "linear_regression_simulated",
        ["--best_checkpoint.monitor=val_accuracy"],
        "does not log in validation. It logs: val_loss, val_mae, val_mape",
    ),
    ("linear_regression_simulated", ["--model.loss=CrossEntropy"], "'model.loss' must be a loss of numbers"),
    ("kmeans_simulated", ["--model.num_clusters=5000"], "must be at most the clients' 352 training examples, but is 5000"),
    ("kmeans_simulated", ["--federation.strategy=FedAvg"], "Set 'federation.strategy' to FederatedKMeans"),
    ("mocha_simulated", MLP, "Mocha is defined only for linear models"),
]


@pytest.mark.parametrize(("name", "wrong", "message"), WRONG)
def test_a_wrong_setting_ends_in_one_message(name, wrong, message, fl):
    files, more = OTHER_TASKS[name]
    configs = [f"--config={file}" for file in files]
    status, text = fl("fit", *configs, *more, *QUIET, "--trainer.max_epochs=1", "--trainer.logger=false", *wrong)
    assert status == 1
    assert "Traceback" not in text
    assert message in text
