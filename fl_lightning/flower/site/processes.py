"""Run the child processes of a site: they end with it, and start again after a crash, or if they stand still."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

UNUSABLE = 78
"""The exit status of a process whose settings or data cannot be used, so that another start would not help (EX_CONFIG)."""
ALIVE = "alive"
"""The file in a site's folder by which its worker gives signs of life."""
_PR_SET_PDEATHSIG = 1
_LONGEST = 15.0
_STABLE = 120.0
"""The seconds after which a process counts as healthy, so that the next restart is quick again."""
_BEAT, _SILENCE = 2.0, 75.0  # Flower gives up the task of a process that stands still after a minute
"""The seconds between two signs of life, and those without one after which a process is killed."""


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def give_signs_of_life(path: Path) -> None:
    """Touch a file again and again, in a thread that ends with this process; see :attr:`Child.alive`."""

    def beat() -> None:
        while True:
            with suppress(OSError):  # a full disk; a file that is there needs no space
                path.touch()
            time.sleep(_BEAT)

    threading.Thread(target=beat, daemon=True).start()


@dataclass
class Child:
    """Describe a process that must always run.

    Attributes:
        name: its name in messages.
        command: its command.
        environment: variables added to this process's.
        log: the file for its output; None for this process's.
        last: the exit status after which it is not started again, and all children end; None for no such status.
        explain: returns in words why the process may have ended; empty if it does not know. It may take seconds.
        alive: the file by which the process gives signs of life; None if it gives none.
        tells: the file in which the process leaves a line for the staff; None if it leaves none.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None
    last: int | None = None
    explain: Callable[[], str] | None = None
    alive: Path | None = None
    tells: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    cause: str = ""
    next_start: float = 0.0
    heard: tuple[float, float] = (0.0, 0.0)

    def start(self) -> None:
        """Start the process, in a group of its own so that Ctrl-C reaches this process only."""
        with open(self.log, "ab") if self.log else nullcontext() as output:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output else None,
                preexec_fn=end_with_parent,
                start_new_session=True,
            )
        self.started = time.monotonic()
        self.heard = 0.0, self.started

    def is_silent(self, now: float) -> bool:
        """Return whether the process has given no sign of life for too long, as this process has seen it.

        Times are compared for equality only, so that neither a change of the clock nor a machine that slept matters.
        """
        if self.alive is None:
            return False
        touched = self.alive.stat().st_mtime if self.alive.exists() else 0.0
        if touched != self.heard[0]:
            self.heard = touched, now
        return now - self.heard[1] > _SILENCE


class Supervisor:
    """Keep children running until it is told to stop.

    Args:
        children: the processes.
        say: prints a line.
    """

    def __init__(self, children: Sequence[Child], say: Callable[[str], None]) -> None:
        self._children, self._say = children, say
        self._stopping = self._failed = False

    def stop(self, *_: object) -> None:
        """End all children soon; a signal handler."""
        self._stopping = True

    def run(self) -> bool:
        """Run the children; start one that ended again, after 1, 2, 4, 8, then every 15 s.

        Returns:
            Whether a child has ended with its last status.
        """
        try:
            while not self._stopping:
                for child in self._children:
                    self._look_after(child)
                time.sleep(0.1)
        finally:
            self._end()
        return self._failed

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.tells is not None and child.tells.exists():
            self._say(child.tells.read_text(encoding="utf-8"))
            child.tells.unlink()
        if child.process is None:
            if now >= child.next_start:
                child.start()
            return
        status = child.process.poll()
        if status is None:
            if child.is_silent(now):
                self._say(f"The {child.name} gives no sign of life and is ended.")
                child.process.kill()
            return
        child.process = None
        if status == child.last:
            self._failed = self._stopping = True
            return
        child.failures = 1 if now - child.started > _STABLE else child.failures + 1
        wait = min(_LONGEST, 2.0 ** min(child.failures - 1, 4))  # the power of a thousand failures is no float
        child.next_start = now + wait
        why = f" See {child.log}." if child.log else ""
        self._say(f"The {child.name} ended with status {status}; it starts again in {wait:g} s.{why}")
        if child.explain is not None:
            threading.Thread(target=self._explain, args=(child, child.explain), daemon=True).start()

    def _explain(self, child: Child, explain: Callable[[], str]) -> None:
        cause = explain()
        if cause and cause != child.cause and not self._stopping:
            self._say(f"The cause may be this. {cause}")
        child.cause = cause

    def _end(self) -> None:
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            process.terminate()
        end = time.monotonic() + 8
        for process in running:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
