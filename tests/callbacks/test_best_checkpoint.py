"""Which round is the best: also in a copied folder, with a wrong mode, and without validation; and misspelled metrics."""

import copy
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from engine_runs import variant
from federations import Blobs, NoValidation, Plain, federate
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from fl_lightning import (
    AdaFed,
    AdaptiveLoss,
    BestCheckpoint,
    ConfigurationError,
    Focus,
    LastCheckpoint,
    LocalOnly,
    LocalTraining,
)


def falls(self) -> None:
    self.log("val_fall", 1.0 - 0.1 * self.trainer.current_epoch)


def run(folder: Path, rounds: int, resume: Path | None = None) -> None:
    torch.manual_seed(3)
    flags = {"default_root_dir": folder, "enable_checkpointing": True}
    callbacks = BestCheckpoint("val_fall", "max"), LastCheckpoint()
    module, ckpt_path = variant(on_validation_epoch_end=falls)(), resume and str(resume / "checkpoints" / "last.ckpt")
    federate(module, rounds, *callbacks, local=LocalTraining(), flags=flags, ckpt_path=ckpt_path)


def epoch_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["epoch"])


@pytest.mark.filterwarnings("ignore:Round .* goes beyond", "ignore:The dirpath has changed")
def test_a_copied_run_keeps_its_best_round_and_that_of_another_run_does_not_count(tmp_path):
    run(tmp_path / "first", 2)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    (tmp_path / "other" / "checkpoints" / "best.ckpt").write_bytes(b"something else")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The dirpath has changed")
        run(tmp_path / "copy", 4, tmp_path / "copy")
    assert epoch_of(tmp_path / "copy" / "checkpoints" / "best.ckpt") == 0
    assert epoch_of(tmp_path / "copy" / "checkpoints" / "last.ckpt") == 3
    run(tmp_path / "other", 4, tmp_path / "first")
    assert epoch_of(tmp_path / "other" / "checkpoints" / "best.ckpt") == 2  # the first round here


def test_a_mode_that_contradicts_the_metric_is_announced():
    with pytest.warns(UserWarning, match="mode' is max, but lower values of 'val_mae' are better .*Set it to min"):
        BestCheckpoint("val_mae", "max")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for metric, mode in (("val_mae", "min"), ("val_f1", "max"), ("anything", "min")):
            BestCheckpoint(metric, mode)


def test_a_run_without_validation_says_that_no_round_is_the_best(tmp_path):
    flags = {"default_root_dir": tmp_path, "enable_checkpointing": True}
    with pytest.warns(UserWarning, match="no examples to validate on, so no metric is logged, and only last.ckpt is written"):
        federate(Plain(), 1, BestCheckpoint("val_acc"), LastCheckpoint(), data=NoValidation(), flags=flags)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There are no examples to validate on")
        federate(Plain(), 1, BestCheckpoint("val_acc"), data=Blobs(), flags=flags | {"default_root_dir": tmp_path / "b"})


# ------------------------------------------------------------------ monitors and metrics that do not exist

CHECKED = {"enable_checkpointing": True, "num_sanity_val_steps": 1}


class Follows(AdaptiveLoss):
    signal = "val_los"
    forward = adapt = lambda self, *given: None


def with_loss() -> Plain:
    module = Plain()
    module.criterion = Follows()
    return module


MISSPELLED = {
    "'EarlyStopping.monitor' is 'val_los'": lambda: [EarlyStopping("val_acc", mode="max"), EarlyStopping("val_los")],
    "'ModelCheckpoint.monitor' is 'val_los'": lambda: [ModelCheckpoint(monitor="val_los"), ModelCheckpoint(monitor="val_loss")],
    "'best_checkpoint.monitor' is 'val_los'": lambda: [BestCheckpoint("val_los", "min")],
    "'federation.strategy.metric' is 'al_loss'": lambda: {"strategy": AdaFed("al_loss")},
    "'federation.strategy.loss' is 'val_los'": lambda: {"strategy": Focus("val_los")},
    "'federation.route.metric' is 'loss'": lambda: {"route": LocalOnly("loss")},
    "'Follows.signal' is 'val_los'": lambda: {"module": with_loss()},
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


def test_a_metric_that_is_logged_after_the_sanity_check_needs_a_fit_without_one(tmp_path):
    def logs_later(self) -> None:
        if not self.trainer.sanity_checking:
            self.log("val_auroc", 0.5)
        if self.global_step:
            self.log("val_acd", 0.5)

    callbacks = [EarlyStopping("val_los", strict=False), ModelCheckpoint(monitor="val_los", save_top_k=0)]
    for monitor in ("train_loss", "federation/loss"):
        callbacks += [EarlyStopping(monitor), ModelCheckpoint(monitor=monitor)]
    later = [EarlyStopping("val_auroc"), ModelCheckpoint(monitor="val_acd"), BestCheckpoint("val_auroc", "min")]
    module, flags = variant(on_validation_epoch_end=logs_later), CHECKED | {"default_root_dir": tmp_path}
    federate(module(), 1, *copy.deepcopy(callbacks), flags=flags)
    with pytest.raises(ConfigurationError, match=r"is 'val_auroc', .* set 'trainer.num_sanity_val_steps' to 0"):
        federate(module(), 2, *copy.deepcopy(later), flags=flags)
    assert federate(module(), 2, *callbacks, *later, flags=flags | {"num_sanity_val_steps": 0}).global_step == 2


def test_a_strategys_metric_that_comes_after_the_sanity_check_is_waited_for():
    def later(self, batch, batch_idx) -> None:
        if not self.trainer.sanity_checking:
            Plain.validation_step(self, batch, batch_idx)

    run = federate(variant(validation_step=later)(), 1, strategy=AdaFed("val_acc"), flags={"num_sanity_val_steps": 1})
    assert "val_acc" in run.callback_metrics
