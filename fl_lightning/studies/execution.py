"""Run the missing runs of a study, several at a time, each in its own process; a later call resumes them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fl_lightning.studies.collection import lines_logged, rounds_logged
from fl_lightning.studies.settings import fingerprint
from fl_lightning.studies.worker import context, kill, work
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.folder_lock import lock_folder

_RECORD, _SETTINGS = "study_run.json", "settings.yaml"
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
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
        record = self.record()
        same = record.get("settings") == fingerprint(self.settings)
        return bool(same and record.get("finished")) and record.get("lines") == lines_logged(self.folder)

    def record(self) -> dict[str, Any]:
        """Return the record of earlier attempts."""
        try:
            known: Any = json.loads((self.folder / _RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def note(self, **what: Any) -> None:
        """Record the result of an attempt, atomically."""
        record = {"name": self.name, "settings": fingerprint(self.settings), **what}
        write_whole(self.folder / _RECORD, (json.dumps(record, indent=1) + "\n").encode())

    def prepare(self) -> list[str]:
        """Return the arguments of the process: from the start, or from the last checkpoint of an interrupted attempt."""
        same = self.record().get("settings") == fingerprint(self.settings)
        resumes = same and self._can_resume()
        if not resumes:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _SETTINGS).write_text(self.settings, encoding="utf-8")
        self.note(finished=False)
        return ["fit", f"--config={self.folder / _SETTINGS}", *self.arguments, *(["--ckpt_path=last"] if resumes else [])]

    def _can_resume(self) -> bool:
        """Return whether the log has every round up to the checkpoint; otherwise a curve would have a gap."""
        kept = sorted((self.folder / "checkpoints").glob("last*.ckpt"))
        if not kept or self.record().get("finished"):
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
        rounds = [line for line in self._said() or () if line.startswith("Round ")]
        return rounds[-1] if rounds else "starting"

    def last_words(self) -> str:
        """Return the last line of its log."""
        said = self._said()
        return "no log" if said is None else said[-1].strip() if said else "an empty log"

    def _said(self) -> list[str] | None:
        """Return the lines of the log that are not empty; None without a log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return [line for line in text.splitlines() if line.strip()]


def only_one(folder: Path) -> AbstractContextManager[bool]:
    """Keep a second ``compare`` out of a study's folder.

    Raises:
        ConfigurationError: if another is running there.
    """
    return lock_folder(folder, "'compare'", "folder")


def run_all(
    jobs: Sequence[Job], places: Sequence[Mapping[str, str]], tell: Callable[[Sequence[Job]], None] | None = None
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
            while not wait([process.sentinel for _, process, _ in running.values()], 1.0 if tell else None):
                assert tell is not None
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
        _end([process for _, process, _ in running.values()])


def _end(processes: Sequence[BaseProcess]) -> None:
    limit = time.monotonic() + _PATIENCE
    for number, patience in ((signal.SIGTERM, _PATIENCE), (_KILL, None)):
        alive = [process for process in processes if process.exitcode is None]
        for process in alive:
            assert process.pid is not None
            kill(process.pid, number)
        for process in alive:
            process.join(None if patience is None else max(0.1, limit - time.monotonic()))
