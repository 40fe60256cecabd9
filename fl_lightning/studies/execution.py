"""Running what is missing of a study, several runs at a time; each in a process of its own, which the next call takes up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.collection import rounds_logged
from fl_lightning.studies.settings import fingerprint
from fl_lightning.studies.worker import PARENT

_RECORD, _SETTINGS, _LOG = "study_run.json", "settings.yaml", "log.txt"
_PATIENCE = 10.0
"""Seconds that a run has to end when it is told to."""


@dataclass(frozen=True)
class Job:
    """A run that is to be done.

    Attributes:
        name: of the run.
        folder: of the run.
        settings: the whole configuration as YAML.
        arguments: of ``fit`` beside it: where to write, and to which loggers.
    """

    name: str
    folder: Path
    settings: str
    arguments: tuple[str, ...]

    @property
    def is_finished(self) -> bool:
        """Whether it was done with these settings, and its log is still there."""
        record = self.record()
        same = record.get("settings") == fingerprint(self.settings)
        return bool(same and record.get("finished")) and record.get("rounds") == len(rounds_logged(self.folder))

    def record(self) -> dict[str, Any]:
        """What is known of earlier attempts."""
        try:
            known: dict[str, Any] = json.loads((self.folder / _RECORD).read_text())
        except (OSError, ValueError):
            return {}
        return known

    def note(self, **what: Any) -> None:
        """Write what an attempt came to; never half of it."""
        temporary = self.folder / f"{_RECORD}.part"
        temporary.write_text(json.dumps({"name": self.name, "settings": fingerprint(self.settings), **what}, indent=1) + "\n")
        temporary.replace(self.folder / _RECORD)

    def prepare(self) -> list[str]:
        """The arguments of the process: from the start, or from the last checkpoint where an attempt was cut off."""
        same = self.record().get("settings") == fingerprint(self.settings)
        resumes = same and self._can_resume()
        if not resumes:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _SETTINGS).write_text(self.settings)
        self.note(finished=False)
        return ["fit", f"--config={self.folder / _SETTINGS}", *self.arguments, *(["--ckpt_path=last"] if resumes else [])]

    def _can_resume(self) -> bool:
        """Only if the log has every round up to the checkpoint: else a curve would have a hole."""
        kept = sorted((self.folder / "checkpoints").glob("last*.ckpt"))
        if not kept or self.record().get("finished"):
            return False
        from torch import load  # not needed where nothing was cut off

        try:
            done = int(load(kept[-1], map_location="cpu", weights_only=True)["global_step"])
        except Exception:
            return False
        return set(range(done)) <= rounds_logged(self.folder)

    def last_words(self) -> str:
        """The end of its log."""
        try:
            lines = [line for line in (self.folder / _LOG).read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            return "no log"
        return lines[-1].strip() if lines else "an empty log"


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[int | None]:
    """Keep a second ``compare`` out of a study's folder; gives the lock's file for the runs to hold, too.

    Raises:
        ConfigurationError: if somebody is at it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield None
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(
                f"Another 'compare', or a run that it started, is at work in '{folder}'. Wait for it, end it, or set 'folder'."
            ) from None
        yield file.fileno()


def run_all(jobs: Sequence[Job], places: Sequence[Mapping[str, str]], lock: int | None) -> Iterator[tuple[Job, int, float]]:
    """Run jobs side by side.

    Args:
        jobs: in the order in which they begin.
        places: the environment of each run that may go on at a time.
        lock: a file that runs hold open while they live.

    Returns:
        Each job when it ends, with its exit status and seconds. Leaving early ends the processes that still run.
    """
    waiting, free = list(jobs), list(range(len(places)))
    running: dict[int, tuple[Job, subprocess.Popen[bytes], float]] = {}
    try:
        while waiting or running:
            while waiting and free:
                place = free.pop(0)
                job = waiting.pop(0)
                running[place] = (job, _start(job, places[place], lock), time.monotonic())
            for place, (job, process, begun) in list(running.items()):
                status = process.poll()
                if status is not None:
                    del running[place]
                    free.append(place)
                    seconds = time.monotonic() - begun
                    job.note(
                        finished=status == 0, status=status, seconds=round(seconds, 1), rounds=len(rounds_logged(job.folder))
                    )
                    yield job, status, seconds
            time.sleep(0.1)
    finally:
        _end([process for _, process, _ in running.values()])


def _start(job: Job, place: Mapping[str, str], lock: int | None) -> subprocess.Popen[bytes]:
    arguments = job.prepare()
    environment = {**os.environ, **place, PARENT: str(os.getpid())}
    with (job.folder / _LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "fl_lightning.studies.worker", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,  # Ctrl+C is ours to pass on, once
        )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    limit = time.monotonic() + _PATIENCE
    for process in processes:
        try:
            process.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
