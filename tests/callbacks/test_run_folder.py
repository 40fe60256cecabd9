"""The folder of a run: one run at a time in it, what evaluations read from it, and what is said when it cannot be used."""

import argparse
import errno
import logging
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from command_line import ADAFED, SMALL, small
from federations import Plain, every_round, federate
from launching import SCRIPT, launch
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import FederationCallback, LastCheckpoint
from fl_lightning.cli import command
from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.execution import Job
from fl_lightning.utilities.folder_lock import lock_folder

EVALUATE = ["--config", ADAFED, *[a for a in SMALL if "limit" not in a], "--trainer.logger=false"]
SAVING = {"enable_checkpointing": True}

# ------------------------------------------------------------------ one at a time


@pytest.mark.slow
def test_a_second_command_in_the_folder_of_a_running_one_is_refused(fl, copied_run):
    """Nothing in the folder changes; what the first has saved so far does not matter."""
    with lock_folder(copied_run):
        before = {path: path.read_bytes() for path in copied_run.rglob("*") if path.is_file()}
        status, text = small(fl, "--ckpt_path=last", rounds=3)
        assert status == 1
        assert f"error: Another run is using '{copied_run}' (process {os.getpid()} on" in text
        assert "'trainer.default_root_dir' to another folder" in text
        assert before == {path: path.read_bytes() for path in copied_run.rglob("*") if path.is_file()}
    assert small(fl, "--ckpt_path=last", rounds=3)[0] == 0
    assert not list(copied_run.rglob(".lock"))


@pytest.mark.parametrize("saver", [lambda folder: LastCheckpoint(), every_round, lambda folder: ModelCheckpoint(folder)])
def test_a_second_run_in_python_is_refused_before_its_first_round(saver, tmp_path):
    folder, flags = tmp_path / "checkpoints", {**SAVING, "default_root_dir": tmp_path}

    class Rounds(FederationCallback):
        def on_round_start(self, outer, module, round_idx, cohort):
            assert (folder / ".lock").exists()

    with lock_folder(folder), pytest.raises(ConfigurationError, match=re.escape(f"Another run is using '{folder}'")):
        federate(Plain(), 1, saver(folder), Rounds(), flags=flags)
    assert not any(folder.glob("*.ckpt"))
    for _ in range(2):  # one after the other is allowed
        assert federate(Plain(), 1, saver(folder), Rounds(), flags=flags).global_step == 1


def test_runs_that_save_nothing_share_a_folder(tmp_path):
    with lock_folder(tmp_path):
        federate(Plain(), 1, flags={"default_root_dir": tmp_path})
        federate(Plain(), 1, every_round(tmp_path), flags={**SAVING, "default_root_dir": tmp_path, "fast_dev_run": True})
    assert not list(tmp_path.glob("*.ckpt"))


@pytest.mark.slow
def test_all_ranks_end_where_the_folder_is_in_use(tmp_path):
    """That ranks of one run do not refuse each other, test_processes.py shows."""
    script = [str(SCRIPT), "--folder", str(tmp_path), "--out", str(tmp_path / "out.pt"), "--ranks", "2"]
    with lock_folder(tmp_path):
        stderr = launch(script, 120, tmp_path, expect=1)
    assert "ConfigurationError: Another run is using" in stderr
    assert not any(tmp_path.glob("*.ckpt"))


def test_what_a_killed_run_left_half_written_is_removed_by_the_next(tmp_path):
    left = tmp_path / ".last.ckpt.12345.partial"
    left.write_bytes(b"half")
    federate(Plain(), 1, every_round(tmp_path), flags=SAVING)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_study_resumes_a_run_whose_checkpoints_hold_classes_of_its_own(tmp_path, monkeypatch):
    """It looks into the checkpoint first; what it cannot read it would delete and start again."""
    monkeypatch.setattr("fl_lightning.studies.execution.rounds_logged", lambda folder: {0})
    trusting = "federation: {checkpoints: {trusted_classes: [argparse.Namespace]}}"
    for settings, resumes in ((trusting, True), ("federation: {}", False)):
        job = Job("run", tmp_path, settings, ())
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        torch.save({"epoch": 0, "hyper_parameters": argparse.Namespace(width=8)}, tmp_path / "checkpoints" / "last.ckpt")
        job.note(finished=False)
        assert ("--ckpt_path=last" in job.prepare()) is resumes


# ------------------------------------------------------------------ what evaluations read and write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "shown"), [("validate", "val_accuracy"), ("test", "test_accuracy"), ("predict", "Predictions")]
)
def test_an_evaluation_takes_the_best_checkpoint_of_the_run_and_earlier_predictions_stay(fl, verb, shown, copied_run):
    kept = {copied_run / "predictions-rank0.pt": b"mine", copied_run / "predictions-7-rank1.pt": b"of two ranks"}
    for path, content in kept.items():
        path.write_bytes(content)
    limit, said = f"--trainer.limit_{'val' if verb == 'validate' else verb}_batches=2", []
    for more in ([], ["--ckpt_path=best"], [f"--ckpt_path={copied_run}/checkpoints/best.ckpt"]):
        status, text = fl(verb, *EVALUATE, limit, *more)
        assert status == 0, text
        assert shown in text
        said.append(text)
    told = "Checkpoint: runs/adafed_mnist/checkpoints/best.ckpt, the best of the run"
    assert [told in said[0], told in said[2]] == [True, False]
    if verb == "predict":
        assert f"Predictions: {copied_run / 'predictions-8-rank0.pt'}" in said[0]
        first, _, third = (
            torch.cat(torch.load(copied_run / f"predictions-{n}-rank0.pt", weights_only=True)) for n in (8, 9, 10)
        )
        assert torch.equal(first, third)
        assert torch.allclose(first.sum(1), torch.ones(40))
    else:
        assert len({re.search(rf"{shown}\W+([\d.]+)", text)[1] for text in said}) == 1
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_an_evaluation_without_a_trained_model_is_refused(fl):
    empty = [*EVALUATE, "--trainer.default_root_dir=empty"]
    for verb, *best in (["validate"], ["test", "--ckpt_path=best"], ["predict"]):
        status, text = fl(verb, *empty, *best)
        assert status == 1
        assert f"error: '{verb}' needs a trained model, but there is no 'empty/checkpoints/best.ckpt'" in text
        assert "'--ckpt_path', set" in text
        assert not Path("empty").exists()
    Path("empty/checkpoints").mkdir(parents=True)
    Path("empty/checkpoints/last.ckpt").touch()
    status, text = fl("test", *empty)
    assert (status, "'--ckpt_path empty/checkpoints/last.ckpt', the last round" in text) == (1, True), text


# ------------------------------------------------------------------ a folder that cannot be written


@pytest.mark.parametrize("verb", ["fit", "predict"])
def test_a_read_only_folder_is_one_message(fl, verb, monkeypatch, copied_run):
    root = copied_run.absolute()
    io_open = open

    def read_only(path, mode="r", *args, **kwargs):
        if set(mode) & set("wax+") and isinstance(path, str | Path) and Path(path).absolute().is_relative_to(root):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return io_open(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr("io.open", read_only)
    monkeypatch.setattr("builtins.open", read_only)
    monkeypatch.setattr(Path, "touch", lambda self, *args, **kwargs: read_only(self, "w"))
    status, text = fl(verb, *EVALUATE, *(["--ckpt_path=last"] if verb == "fit" else []))
    assert status == 1
    assert re.search(r"error: .*runs/adafed_mnist.*\(Read-only file system\)\. Set ", text)
    assert "Traceback" not in text


# ------------------------------------------------------------------ Ctrl+C


class Interrupt(FederationCallback):
    """Ctrl+C in the first client's training of a round."""

    def __init__(self, round_idx: int) -> None:
        self.round_idx = round_idx

    def on_client_start(self, outer, module, round_idx, client):
        if round_idx == self.round_idx:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)


@pytest.mark.slow
@pytest.mark.parametrize(("round_idx", "engine"), [(0, "trainer"), (1, "fabric")])
def test_ctrl_c_ends_with_one_line_how_to_resume(round_idx, engine, fl):
    stop = ["--trainer.callbacks=test_run_folder.Interrupt", f"--trainer.callbacks.round_idx={round_idx}"]
    flag = f"--federation.local.engine={engine}"
    status, text = small(fl, flag, *stop, rounds=2)
    assert status == 130
    assert "Traceback" not in text
    last = text.rstrip().splitlines()[-1]
    path = Path("runs/adafed_mnist/checkpoints/last.ckpt").absolute()
    assert not list(Path("runs").rglob(".lock"))
    if round_idx == 0:
        assert last == "Stopped by Ctrl+C: no checkpoint was saved. Run it again from the start."
    else:
        assert last.startswith(f"Stopped by Ctrl+C: the finished rounds are in '{path}'. Resume with --ckpt_path {path}, ")
        status, text = small(fl, flag, "--ckpt_path=last", rounds=2)
        assert status == 0, text
        assert torch.load(path, weights_only=True)["epoch"] == 1


def raising(error: BaseException):
    """Return a function that raises the error, whatever it is given."""

    def fail(*args, **kwargs):
        raise error

    return fail


def test_ctrl_c_before_anything_began_says_nothing_of_rounds(fl, monkeypatch):
    monkeypatch.setattr("fl_lightning.cli.federation_cli.FederationCLI.instantiate_classes", raising(KeyboardInterrupt()))
    status, text = small(fl)
    assert status == 130
    assert "Traceback" not in text


FULL = OSError(errno.ENOSPC, "No space left on device", "there.csv")
RESUMES = "Free some space, and run the command again; a fit that has saved a round resumes with '--ckpt_path last'."


def test_a_full_disk_ends_in_one_message(fl, monkeypatch, capsys):
    last = f"fl-lightning: error: Cannot write 'there.csv' (No space left on device). {RESUMES}"
    monkeypatch.setattr("fl_lightning.callbacks.federation_report.append_rows", raising(FULL))
    status, text = small(fl)
    assert (status, text.splitlines()[-1]) == (1, last)
    assert "Traceback" not in text
    monkeypatch.setattr("fl_lightning.cli.commands.configs.main", raising(FULL))  # another command
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "configs"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert (end.value.code, capsys.readouterr().err) == (1, f"{last}\n")


@pytest.mark.slow
def test_a_disk_that_only_wandb_fills_ends_the_run(fl, monkeypatch):
    """W&B writes in a process of its own, which does not tell; its log, which cannot be written either, prints no more."""
    used = shutil.disk_usage(".")
    monkeypatch.setattr("fl_lightning.reporting.wandb.shutil.disk_usage", lambda folder: used._replace(free=0))
    status, text = fl("fit", "--config", ADAFED, *SMALL, "--trainer.max_epochs=2")
    assert status == 1
    assert re.search(r"error: Cannot write '.*/wandb/offline-run-.*' \(No space left on device\)\. Free some space", text)
    assert not logging.getLogger("wandb").handlers
