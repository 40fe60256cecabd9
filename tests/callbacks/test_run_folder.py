"""The folder of a run: one run at a time in it, what evaluations read from it, and what is said when it cannot be used."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import re
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from command_line import ADAFED, SMALL, small
from federations import Blobs, Consecutive, Plain, blobs, every_round, federate, trainer
from launching import SCRIPT, launch
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import FederatedDataModule, FederatedOrchestrator, FederationCallback, LastCheckpoint
from fl_lightning.cli import command
from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.execution import Job
from fl_lightning.utilities import folder_lock
from fl_lightning.utilities.folder_lock import lock_folder

EVALUATE = ["--config", ADAFED, *[a for a in SMALL if "limit" not in a], "--trainer.logger=false"]
SAVING = {"enable_checkpointing": True}

# ------------------------------------------------------------------ one at a time


def forked(act) -> int:
    """Run a function in a forked process; its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        act()
        status = 0
    finally:
        os._exit(status)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_lock_ends_with_its_process_even_if_a_worker_lives_on(tmp_path):
    """As after SIGKILL, with a loader's worker that has not noticed yet."""
    read, write = os.pipe()

    def hold():
        os.setsid()
        with lock_folder(tmp_path):
            forked(work)
            time.sleep(60)

    def work():  # writes only now that it has let go of the lock, as every forked process does at once
        os.write(write, b"held")
        time.sleep(60)

    holder = forked(hold)
    try:
        assert os.read(read, 4) == b"held"
        message = rf"Another run is using .*\(process {holder} on"
        with pytest.raises(ConfigurationError, match=message), lock_folder(tmp_path):
            pass
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        with lock_folder(tmp_path) as locked:
            assert locked
    finally:
        os.killpg(holder, signal.SIGKILL)
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_many_that_come_and_go_are_never_two_at_once(tmp_path):
    """The file is deleted and made anew each time."""

    def work():
        done = 0
        while done < 50:
            try:
                with lock_folder(tmp_path):
                    (tmp_path / "inside").touch(exist_ok=False)
                    time.sleep(0.001)
                    (tmp_path / "inside").unlink()
                    done += 1
            except ConfigurationError as error:
                if "Another run is using" not in str(error):
                    raise

    for process in [forked(work) for _ in range(3)]:
        assert os.waitpid(process, 0)[1] == 0


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def refuse(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_lock, "_lock", refuse)
    with pytest.warns(UserWarning, match="without locks \\(No locks available\\)"), lock_folder(tmp_path) as locked:
        assert not locked


@pytest.mark.parametrize("arguments", [(), ("--ckpt_path=last",), ("--federation.enabled=false",)])
def test_a_second_command_in_the_folder_of_a_running_one_is_refused(fl, arguments):
    """Nothing in the folder changes; what the first has saved so far does not matter."""
    root = Path("runs/adafed_mnist")
    if arguments == ("--ckpt_path=last",):
        assert small(fl)[0] == 0
    with lock_folder(root):
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        status, text = small(fl, *arguments, rounds=2)
        assert status == 1
        assert f"error: Another run is using '{root}' (process {os.getpid()} on" in text
        assert "'trainer.default_root_dir' to another folder" in text
        assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert small(fl, *arguments, "--trainer.limit_train_batches=1.0", rounds=2)[0] == 0
    assert not list(root.rglob(".lock"))


@pytest.mark.parametrize("saver", [lambda folder: LastCheckpoint(), every_round, lambda folder: ModelCheckpoint(folder)])
def test_a_second_run_in_python_is_refused_before_its_first_round(saver, tmp_path):
    folder = tmp_path / "checkpoints"
    flags = {**SAVING, "default_root_dir": tmp_path}

    class Second(FederationCallback):
        refused = False

        def on_round_start(self, outer, module, round_idx, cohort):
            with pytest.raises(ConfigurationError, match=re.escape(f"Another run is using '{folder}'")):
                federate(Plain(), 1, saver(folder), Rounds(), flags=flags)
            self.refused = True

    class Rounds(FederationCallback):
        def on_round_start(self, outer, module, round_idx, cohort):
            pytest.fail("it began")

    second = Second()
    run = federate(Plain(), 1, saver(folder), second, flags=flags)
    assert second.refused
    assert run.global_step == 1
    federate(Plain(), 1, saver(folder), flags=flags)  # one after the other is allowed


def test_runs_that_save_nothing_share_a_folder(tmp_path):
    with lock_folder(tmp_path):
        federate(Plain(), 1, flags={"default_root_dir": tmp_path})
        federate(Plain(), 1, every_round(tmp_path), flags={**SAVING, "default_root_dir": tmp_path, "fast_dev_run": True})
    assert not list(tmp_path.glob("*.ckpt"))


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
    for settings, resumes in (("federation: {trusted_classes: [argparse.Namespace]}", True), ("federation: {}", False)):
        job = Job("run", tmp_path, settings, ())
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        torch.save({"epoch": 0, "hyper_parameters": argparse.Namespace(width=8)}, tmp_path / "checkpoints" / "last.ckpt")
        job.note(finished=False)
        assert ("--ckpt_path=last" in job.prepare()) is resumes


# ------------------------------------------------------------------ what evaluations read and write


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_an_evaluation_takes_the_best_checkpoint_of_the_run(fl, verb):
    assert small(fl)[0] == 0
    limit = f"--trainer.limit_{'val' if verb == 'validate' else verb}_batches=2"
    said = {}
    for name, more in {"default": [], "best": ["--ckpt_path=runs/adafed_mnist/checkpoints/best.ckpt"]}.items():
        status, said[name] = fl(verb, *EVALUATE, limit, *more)
        assert status == 0, said[name]
    assert "Checkpoint: runs/adafed_mnist/checkpoints/best.ckpt, the best of the run" in said["default"]
    assert "the best of the run" not in said["best"]
    if verb == "predict":
        first, second = (torch.load(f"runs/adafed_mnist/predictions{n}-rank0.pt", weights_only=True) for n in ("", "-2"))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    else:
        figures = [re.search(rf"{verb[:4].rstrip('i')}\w*_accuracy\W+([\d.]+)", text) for text in said.values()]
        assert figures[0][1] == figures[1][1]


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_an_evaluation_without_a_trained_model_is_refused(fl, verb):
    status, text = fl(verb, *EVALUATE, "--trainer.default_root_dir=empty")
    assert status == 1
    assert f"error: '{verb}' needs a trained model, but there is no 'empty/checkpoints/best.ckpt'" in text
    assert "'--ckpt_path', set" in text
    assert not Path("empty").exists()
    Path("empty/checkpoints").mkdir(parents=True)
    Path("empty/checkpoints/last.ckpt").touch()
    status, text = fl(verb, *EVALUATE, "--trainer.default_root_dir=empty")
    assert status == 1
    assert "'--ckpt_path empty/checkpoints/last.ckpt', the last round" in text


def test_predictions_of_an_earlier_run_stay(fl):
    assert small(fl)[0] == 0
    root = Path("runs/adafed_mnist")
    kept = {root / "predictions-rank0.pt": b"mine", root / "predictions-7-rank1.pt": b"of two ranks"}
    for path, content in kept.items():
        path.write_bytes(content)
    status, text = fl("predict", *EVALUATE, "--trainer.limit_predict_batches=2")
    assert status == 0, text
    assert f"Predictions: {root / 'predictions-8-rank0.pt'}" in text
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert len(torch.load(root / "predictions-8-rank0.pt", weights_only=True)) == 2


def test_python_predicts_with_the_module_in_memory(tmp_path):
    module = Plain()
    torch.nn.init.constant_(module.net[-1].bias, 5.0)
    module.predict_step = lambda batch, batch_idx: module(batch[0])
    run = trainer(1, FederatedOrchestrator(), default_root_dir=tmp_path)
    predictions = run.predict(module, FederatedDataModule(Blobs(), Consecutive()))
    module.eval()
    with torch.no_grad():
        assert torch.equal(torch.cat(predictions), module(blobs(61, 2)[0]))


# ------------------------------------------------------------------ a folder that cannot be written


@pytest.mark.parametrize("logger", [[], ["--trainer.logger=false"]])
def test_a_folder_that_cannot_be_made_is_one_message(fl, logger):
    Path("file").write_text("")
    arguments = ["fit", "--config", ADAFED, *SMALL, *logger, "--trainer.max_epochs=1", "--trainer.default_root_dir=file/below"]
    status, text = fl(*arguments)
    assert status == 1
    assert "error: 'trainer.default_root_dir' is 'file/below', which is not writable (Not a directory). Set it to" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("verb", ["fit", "predict"])
def test_a_read_only_folder_is_one_message(fl, verb, monkeypatch):
    assert small(fl)[0] == 0
    root = Path("runs/adafed_mnist").absolute()
    io_open = open

    def read_only(path, mode="r", *args, **kwargs):
        if set(mode) & set("wax+") and isinstance(path, str | Path) and Path(path).absolute().is_relative_to(root):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return io_open(path, mode, *args, **kwargs)

    def touch(self, *args, **kwargs):
        read_only(self, "w")

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr("io.open", read_only)
    monkeypatch.setattr("builtins.open", read_only)
    monkeypatch.setattr(Path, "touch", touch)
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


@pytest.mark.parametrize(
    ("round_idx", "flag"),
    [(0, "--federation.local.engine=trainer"), (1, "--federation.local.engine=fabric"), (1, "--federation.local.threads=1")],
)
def test_ctrl_c_ends_with_one_line_how_to_resume(round_idx, flag, fl):
    stop = ["--trainer.callbacks=test_run_folder.Interrupt", f"--trainer.callbacks.round_idx={round_idx}"]
    status, text = small(fl, flag, *stop, rounds=2)
    assert status == 130
    assert "Traceback" not in text
    last = text.rstrip().splitlines()[-1]
    path = Path("runs/adafed_mnist/checkpoints/last.ckpt").absolute()
    if round_idx == 0:
        assert last == "Stopped by Ctrl+C: no checkpoint was saved. Run it again from the start."
    else:
        assert last.startswith(f"Stopped by Ctrl+C: the finished rounds are in '{path}'. Resume with --ckpt_path last, ")
    assert not list(Path("runs").rglob(".lock"))
    status, text = small(fl, flag, *(["--ckpt_path=last"] if round_idx else []), rounds=2)
    assert status == 0, text
    assert torch.load(path, weights_only=True)["epoch"] == 1


def test_ctrl_c_before_anything_began_says_nothing_of_rounds(fl, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("fl_lightning.cli.federation_cli.FederationCLI.instantiate_classes", interrupt)
    status, text = small(fl)
    assert status == 130
    assert "Traceback" not in text


FULL = OSError(errno.ENOSPC, "No space left on device", "there.csv")
RESUMES = "Free some space, and run the command again; a fit that has saved a round resumes with '--ckpt_path last'."


def refuse_to_write(*given: object) -> None:
    raise FULL


def test_a_full_disk_ends_in_one_message(fl, monkeypatch):
    monkeypatch.setattr("fl_lightning.callbacks.client_table.append_rows", refuse_to_write)
    status, text = small(fl)
    assert status == 1
    assert text.splitlines()[-1] == f"fl-lightning: error: Cannot write 'there.csv' (No space left on device). {RESUMES}"
    assert "Traceback" not in text


def test_a_disk_that_only_wandb_fills_ends_the_run(fl, monkeypatch):
    """W&B writes in a process of its own, which does not tell; its log, which cannot be written either, prints nothing."""
    used = shutil.disk_usage(".")
    monkeypatch.setattr("fl_lightning.reporting.wandb.shutil.disk_usage", lambda folder: used._replace(free=0))
    status, text = fl("fit", "--config", ADAFED, *SMALL, "--trainer.max_epochs=2")
    assert status == 1
    assert re.search(r"error: Cannot write '.*/wandb/offline-run-.*' \(No space left on device\)\. Free some space", text)
    assert all(handler.handleError(None) is None for handler in logging.getLogger("wandb").handlers)


def test_the_other_commands_end_likewise(monkeypatch, capsys):
    monkeypatch.setattr("fl_lightning.cli.commands.configs.main", refuse_to_write)
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "configs"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 1
    assert capsys.readouterr().err == f"fl-lightning: error: Cannot write 'there.csv' (No space left on device). {RESUMES}\n"


def test_no_warning_where_all_is_well(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lock_folder(tmp_path) as locked:
            assert locked
