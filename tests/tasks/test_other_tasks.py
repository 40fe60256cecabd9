"""The configurations beyond image classification: each is fitted, and resumed to the same bits."""

from pathlib import Path

import pytest
import torch
from command_line import OTHER_TASKS, QUIET, undocumented
from small_tables import bring_data


@pytest.mark.slow
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


WRONG = [
    (
        "cell_counting",
        ["--data.datamodule.density_scale=10"],
        "'model.readout.scale' is 100.0, but 'data.datamodule.density",
    ),
    ("linear_regression_simulated", ["--best_checkpoint.monitor=val_accuracy"], "It logs: val_loss, val_mae, val_mape"),
    ("kmeans_simulated", ["--model.num_clusters=5000"], "must be at most the clients' 352 training examples, but is 5000"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wrong", "message"), WRONG)
def test_a_wrong_setting_ends_in_one_message(name, wrong, message, fl):
    files, more = OTHER_TASKS[name]
    configs = [f"--config={file}" for file in files]
    status, text = fl("fit", *configs, *more, *QUIET, "--trainer.max_epochs=1", "--trainer.logger=false", *wrong)
    assert status == 1
    assert "Traceback" not in text
    assert message in text
