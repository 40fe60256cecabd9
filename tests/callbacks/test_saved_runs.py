"""Checkpoints of a run: whose they are, who reads them, and what a run must share to resume."""

from pathlib import Path

import pytest
import torch
from federations import Blobs, Consecutive, Plain, every_round, federate, same_bits, trainer, weights
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import (
    BestCheckpoint,
    CheckpointError,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LastCheckpoint,
    LocalTraining,
)

SAVING = {"enable_checkpointing": True}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a run of two rounds, its module, and its last checkpoint."""
    path, module = tmp_path_factory.mktemp("saved") / "last.ckpt", Plain(lr=0.3)
    best = ModelCheckpoint(path.parent, filename="best-{epoch}", monitor="val_acc", mode="max")
    return federate(module, 2, best, every_round(path.parent), flags=SAVING), module, path


def test_best_and_last_checkpoint(saved):
    run, module, path = saved
    last = torch.load(path, weights_only=True)  # refuses any class that is not plain
    assert (last["epoch"], last["global_step"]) == (1, 2)
    assert last["callbacks"]["FederatedOrchestrator"]["settings"]["federation"]["seed"] == 0
    best = run.checkpoint_callback
    assert best.best_model_score == pytest.approx(max(run.callback_metrics["val_acc"], best.best_model_score))
    assert torch.load(best.best_model_path, weights_only=True)["global_step"] >= 1
    loaded = Plain.load_from_checkpoint(path)
    assert loaded.hparams.lr == 0.3
    assert same_bits(weights(loaded), weights(module))


def test_validate_and_test_read_a_federations_checkpoint(saved):
    run, _, path = saved
    other = trainer(1, FederatedOrchestrator(FedAvg("uniform"), seed=9))  # what a run must share to resume is not asked for
    data = FederatedDataModule(Blobs(), IIDPartitioner(3))
    for verb in (other.validate, other.test):
        (result,) = verb(Plain(), data, ckpt_path=str(path), verbose=False)
        assert result["val_acc"] == pytest.approx(float(run.callback_metrics["val_acc"]))


def test_resuming_with_other_threads_warns(saved):
    with pytest.warns(UserWarning, match="written with 1 threads per client, but this run has 2"):
        federate(Plain(lr=0.3), 3, ckpt_path=str(saved[2]), local=LocalTraining(max_epochs=2, threads=2))
    assert torch.get_num_threads() == 1  # put back


def test_a_checkpoint_in_another_format_is_refused(saved, tmp_path):
    checkpoint = torch.load(saved[2], weights_only=True)
    checkpoint["callbacks"]["FederatedOrchestrator"]["format"] = 99
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match="has format 99, but this version of fl_lightning reads format 7"):
        federate(Plain(lr=0.3), 3, ckpt_path=str(tmp_path / "last.ckpt"))


def test_last_is_found_again_by_the_two_checkpoints_and_missing_ones_are_said(tmp_path):
    def run(rounds: int, ckpt_path: str | None = None) -> int:
        begun: list[int] = []
        module = Plain()
        module.on_validation_epoch_start = lambda: begun.append(0)
        callbacks = BestCheckpoint("val_acc"), LastCheckpoint()
        federate(module, rounds, *callbacks, flags=SAVING | {"default_root_dir": str(tmp_path)}, ckpt_path=ckpt_path)
        return len(begun)

    with pytest.raises(CheckpointError, match=r"'ckpt_path' is 'last', but .* has no checkpoint to resume from"):
        run(2, "last")
    assert run(2) == 2
    assert run(3, "last") == 1
    assert {path.name for path in Path(tmp_path / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


def test_python_predicts_with_the_module_in_memory(tmp_path):
    module = Plain()
    torch.nn.init.constant_(module.net[-1].bias, 5.0)
    module.predict_step = lambda batch, batch_idx: module(batch[0])
    data = Blobs()
    run = trainer(1, FederatedOrchestrator(), default_root_dir=tmp_path)
    predictions = run.predict(module, FederatedDataModule(data, Consecutive()))
    module.eval()
    with torch.no_grad():
        assert torch.equal(torch.cat(predictions), module(data.val[0]))
