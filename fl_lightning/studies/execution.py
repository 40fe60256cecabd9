"""Run the missing runs of a study, several at a time, each in its own process; a later call resumes them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fl_lightning.studies.collection import lines_logged, rounds_logged
from fl_lightning.utilities.atomic_file import write_whole

_RECORD, _SETTINGS = "study_run.json", "settings.yaml"
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # which Windows lacks
_PATIENCE = 3.0
"""Seconds that a run has to end when asked to stop; it resumes from its last checkpoint in any case."""


@dataclass(frozen=True)
class Job:
    """Describe a run to do.

    Attributes:
        name: name of the run.
        folder: folder of the run.
        settings: the whole configuration as YAML.
        arguments: further arguments of ``fit``: where to write, and to which loggers.
        ranks: number of processes of the run.
    """

    name: str
    folder: Path
    settings: str
    arguments: tuple[str, ...]
    ranks: int = 1

    @property
    def log(self) -> Path:
        """Return the path of the file with the run's output."""
        return self.folder / "log.txt"

    @property
    def is_finished(self) -> bool:
        """Whether it finished with these settings, and its log still exists."""
        record = self._record()
        return bool(record.get("finished")) and record.get("lines") == lines_logged(self.folder)

    @property
    def _fingerprint(self) -> str:
        """Return a digest that stays the same if and only if the settings do."""
        return hashlib.sha256(self.settings.encode()).hexdigest()[:16]

    def _record(self) -> dict[str, Any]:
        """Return the record of an earlier attempt with the same settings; empty if there is none."""
        try:
            known: Any = json.loads((self.folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) and known.get("settings") == self._fingerprint else {}

    def note(self, **what: Any) -> None:
        """Record the result of an attempt, atomically."""
        record = {"name": self.name, "settings": self._fingerprint, **what}
        write_whole(self.folder / _RECORD, (json.dumps(record, indent=1) + "\n").encode())

    def prepare(self) -> list[str]:
        """Return the arguments of the process: from the start, or from the last checkpoint of an interrupted attempt."""
        resumes = self._can_resume()
        if not resumes:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _SETTINGS).write_text(self.settings, encoding="utf-8")
        self.note(finished=False)
        return ["fit", f"--config={self.folder / _SETTINGS}", *self.arguments, *(["--ckpt_path=last"] if resumes else [])]

    def _can_resume(self) -> bool:
        """Return whether the log has every round up to the checkpoint; otherwise a curve would have a gap."""
        kept, record = sorted((self.folder / "checkpoints").glob("last*.ckpt")), self._record()
        if not kept or not record or record.get("finished"):
            return False
        # not needed for a run that was never interrupted
        import yaml

        from fl_lightning.utilities.checkpoints import read_checkpoint

        try:
            settings = yaml.safe_load(self.settings).get("federation", {}).get("checkpoints") or {}
            done = int(read_checkpoint(kept[-1], "cpu", settings.get("trusted_classes") or ())["epoch"]) + 1
        except Exception:
            return False
        return set(range(done)) <= rounds_logged(self.folder)

    def progress(self) -> str:
        """Return the run's progress: the last round in its log."""
        return next((line for line in reversed(self._said()) if line.startswith("Round ")), "starting")

    def last_words(self) -> str:
        """Return the last line of its log."""
        return [*(["an empty log"] if self.log.exists() else ["no log"]), *self._said()][-1].strip()

    def _said(self) -> list[str]:
        """Return the lines of the log that are not empty."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return [line for line in text.splitlines() if line.strip()]


def run_all(
    jobs: Sequence[Job], places: Sequence[Mapping[str, str]], tell: Callable[[Sequence[Job]], object] = lambda running: None
) -> Iterator[tuple[Job, int, float]]:
    """Run jobs side by side.

    Args:
        jobs: jobs in the order in which they start.
        places: what the environments of the runs that may run at the same time have in addition.
        tell: called every second with the running jobs.

    Returns:
        Each job when it ends, with its exit status and seconds. Closing the iterator early ends the running processes.
    """
    waiting, free = list(jobs), list(range(len(places)))
    running: dict[int, tuple[Job, BaseProcess, float]] = {}
    processes = context()
    try:
        while waiting or running:
            while waiting and free:
                place, job = free.pop(0), waiting.pop(0)
                environment = {**os.environ, **places[place]}
                process = processes.Process(target=work, args=(job.prepare(), environment, job.log, job.ranks))
                process.start()
                running[place] = (job, process, time.monotonic())
            while not wait([process.sentinel for _, process, _ in running.values()], 1.0):
                tell([job for job, _, _ in running.values()])
            for place, (job, process, begun) in list(running.items()):
                status = process.exitcode
                if status is not None:
                    del running[place]
                    free.append(place)
                    seconds = time.monotonic() - begun
                    job.note(finished=status == 0, status=status, seconds=round(seconds, 1), lines=lines_logged(job.folder))
                    yield job, status, seconds
    finally:
        limit = time.monotonic() + _PATIENCE
        for number in (signal.SIGTERM, _KILL):
            alive = [process for _, process, _ in running.values() if process.exitcode is None]
            for process in alive:
                assert process.pid is not None
                kill(process.pid, number)
            for process in alive:
                process.join(None if number == _KILL else max(0.1, limit - time.monotonic()))


# ---------------------------------------------------------------- the process of a run


def context() -> Any:
    """Return how to create processes: by copying one that has imported everything, if the system can (Windows cannot)."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["fl_lightning.studies.execution"])
    return made


def work(arguments: Sequence[str], environment: Mapping[str, str], log: Path, ranks: int) -> None:
    """Run ``fl-lightning`` with some arguments, and exit with its status.

    Args:
        arguments: arguments of the command.
        environment: the whole environment; that of the process which this one copies may be older.
        log: file to which output is appended.
        ranks: number of processes of the run; several are started anew, as Lightning starts them.
    """
    if hasattr(os, "setsid"):
        os.setsid()  # the study passes Ctrl+C on, once; and ranks belong to this process
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    sink = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(sink, stream.fileno())
    if ranks > 1:
        sys.exit(subprocess.run([sys.executable, "-m", "fl_lightning", *arguments], check=False).returncode)
    import torch

    from fl_lightning.cli.federation_cli import main
    from fl_lightning.compat.python import run_exit_functions

    if "OMP_NUM_THREADS" in os.environ:  # torch read it long ago
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.argv = ["fl-lightning", *arguments]
    try:
        main()
    finally:
        run_exit_functions()  # multiprocessing skips them, and W&B ends its run there


def _end_with_the_study() -> None:
    """End this run if its study is killed."""
    study = multiprocessing.parent_process()
    assert study is not None
    wait([study.sentinel])
    kill(os.getpid(), _KILL)


def kill(process: int, number: int) -> None:
    """Send a signal to a run's process and its ranks."""
    try:
        if hasattr(os, "killpg") and os.getpgid(process) == process:
            os.killpg(process, number)
        else:
            os.kill(process, number)
    except ProcessLookupError:
        pass
