"""The configurations beyond image classification: each is fitted."""

from pathlib import Path

import pytest
from command_line import OTHER_TASKS, QUIET, undocumented
from small_tables import bring_data


@pytest.mark.slow
@pytest.mark.usefixtures("_disabled_wandb")
@pytest.mark.parametrize("name", OTHER_TASKS)
def test_every_config_is_fitted(name, fl):
    bring_data(name)
    files, more = OTHER_TASKS[name]
    rounds = 3 if name == "transfer_learning_mnist" else 1  # its layers thaw in the third
    own = ("--trainer.default_root_dir=run", f"--trainer.max_epochs={rounds}", "--federation.local.threads=1")
    status, text = fl("fit", *(f"--config={file}" for file in files), *more, *QUIET, *own)
    assert status == 0, text
    assert f"Rounds: {rounds}." in text
    assert Path("run/checkpoints/best.ckpt").exists()
    (log,) = Path("run").glob("csv/version_*/metrics.csv")
    assert not undocumented(log.read_text().splitlines()[0].split(","))
