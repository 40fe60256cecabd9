"""Which round is the best: also in a copied folder, with a mode that contradicts the metric, and without validation."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from federations import Blobs, NoValidation, Plain, federate

from fl_lightning import BestCheckpoint, LastCheckpoint, LocalTraining


class Worse(Plain):
    """Its accuracy falls in each epoch."""

    def on_validation_epoch_end(self) -> None:
        self.log("val_fall", 1.0 - 0.1 * self.trainer.current_epoch)


def run(folder: Path, rounds: int, **more: object) -> None:
    torch.manual_seed(3)
    best = BestCheckpoint("val_fall", "max")
    flags = {"default_root_dir": folder, "enable_checkpointing": True}
    federate(Worse(), rounds, best, LastCheckpoint(), local=LocalTraining(), flags=flags, **more)


def epoch_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["epoch"])


@pytest.mark.filterwarnings("ignore:Round .* goes beyond")
def test_a_copied_run_keeps_its_best_round(tmp_path):
    run(tmp_path / "first", 2)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The dirpath has changed")
        run(tmp_path / "copy", 4, ckpt_path=str(tmp_path / "copy" / "checkpoints" / "last.ckpt"))
    assert epoch_of(tmp_path / "copy" / "checkpoints" / "best.ckpt") == 0
    assert epoch_of(tmp_path / "copy" / "checkpoints" / "last.ckpt") == 3


@pytest.mark.filterwarnings("ignore:Round .* goes beyond", "ignore:The dirpath has changed")
def test_another_runs_best_round_does_not_count(tmp_path):
    """A folder with a checkpoint that is not the run's: the first round here is the best so far."""
    run(tmp_path / "first", 2)
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other" / "checkpoints" / "best.ckpt").write_bytes(b"something else")
    run(tmp_path / "other", 4, ckpt_path=str(tmp_path / "first" / "checkpoints" / "last.ckpt"))
    assert epoch_of(tmp_path / "other" / "checkpoints" / "best.ckpt") == 2


def test_a_mode_that_contradicts_the_metric_is_announced():
    with pytest.warns(UserWarning, match="mode' is max, but lower values of 'val_mae' are better .*Set it to min"):
        BestCheckpoint("val_mae", "max")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BestCheckpoint("val_mae", "min")
        BestCheckpoint("val_f1", "max")
        BestCheckpoint("anything", "min")


def test_a_run_without_validation_says_that_no_round_is_the_best(tmp_path):
    flags = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    with pytest.warns(UserWarning, match="no examples to validate on, so no metric is logged, and only last.ckpt is written"):
        federate(Plain(), 1, BestCheckpoint("val_acc"), LastCheckpoint(), data=NoValidation(), flags=flags)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There are no examples to validate on")
        federate(Plain(), 1, BestCheckpoint("val_acc"), data=Blobs(), flags={"default_root_dir": tmp_path / "b"} | flags)
