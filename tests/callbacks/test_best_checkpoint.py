"""Which round is the best: also in a copied folder, with a wrong mode, and without validation; and misspelled metrics."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest
import torch
from federations import Blobs, NoValidation, Plain, federate
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fl_lightning import (
    AdaFed,
    AdaptiveLoss,
    BestCheckpoint,
    ConfigurationError,
    LastCheckpoint,
    LocalOnly,
    LocalTraining,
)


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


# ------------------------------------------------------------------ monitors and metrics that do not exist

CHECKED = {"enable_checkpointing": True, "num_sanity_val_steps": 1}


class Follows(AdaptiveLoss):
    signal = "val_los"

    def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return outputs.mean()

    def adapt(self, signal: torch.Tensor) -> None:
        pass


class WithLoss(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.criterion = Follows()


MISSPELLED = {
    "'EarlyStopping.monitor' is 'val_los'": lambda: [EarlyStopping("val_acc", mode="max"), EarlyStopping("val_los")],
    "'ModelCheckpoint.monitor' is 'val_los'": lambda: [ModelCheckpoint(monitor="val_los"), ModelCheckpoint(monitor="val_loss")],
    "'best_checkpoint.monitor' is 'val_los'": lambda: [BestCheckpoint("val_los", "min")],
    "'federation.strategy.metric' is 'al_loss'": lambda: {"strategy": AdaFed("al_loss")},
    "'federation.route.metric' is 'loss'": lambda: {"route": LocalOnly("loss")},
    "'Follows.signal' is 'val_los'": lambda: {"module": WithLoss()},
}


@pytest.mark.parametrize("said", MISSPELLED)
def test_a_misspelled_metric_is_refused_before_the_first_round(said, tmp_path):
    given = MISSPELLED[said]()
    callbacks, more = (given, {}) if isinstance(given, list) else ([], given)
    module = more.pop("module", None) or Plain()
    trained: list[int] = []
    module.on_train_start = lambda: trained.append(0)
    with pytest.raises(ConfigurationError, match=rf"^{said}, which {type(module).__name__} .* Did you mean val_loss\?"):
        federate(module, 1, *callbacks, flags=CHECKED | {"default_root_dir": tmp_path}, **more)
    assert not trained


class Later(Plain):
    """Logs what the sanity check does not see."""

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.log(f"{'val'}_auroc", 0.5)
        if self.global_step:
            self.log("val_acd", 0.5)


@pytest.mark.parametrize("monitor", ["val_auroc", "val_acd", "train_loss", "federation/loss"])
def test_a_metric_that_is_logged_after_the_sanity_check_may_be_monitored(monitor, tmp_path):
    flags = CHECKED | {"default_root_dir": tmp_path}
    callbacks = [EarlyStopping(monitor), ModelCheckpoint(monitor=monitor), BestCheckpoint(monitor, "min")]
    assert federate(Later(), 2, *callbacks, flags=flags).global_step == 2


def test_a_monitor_that_may_be_missing_is_not_refused(tmp_path):
    flags = CHECKED | {"default_root_dir": tmp_path}
    callbacks = [EarlyStopping("val_los", strict=False), ModelCheckpoint(monitor="val_los", save_top_k=0)]
    assert federate(Plain(), 1, *callbacks, flags=flags).global_step == 1


def test_without_a_sanity_check_the_first_round_finds_a_misspelled_monitor(tmp_path):
    flags = CHECKED | {"default_root_dir": tmp_path, "num_sanity_val_steps": 0}
    with pytest.raises(MisconfigurationException, match="could not find the monitored key"):
        federate(Plain(), 1, ModelCheckpoint(monitor="val_los"), flags=flags)
