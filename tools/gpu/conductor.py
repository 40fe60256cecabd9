"""Hands checks to processes, within a budget of time, and writes down each answer at once."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.setting import ROOT
from gpu.stages import Check

SCRIPT = ROOT / "tools" / "gpu_checks.py"
_LEAST = 10.0
"""Seconds under which no check is begun."""


class Journal:
    """Prints each record, and appends it to a file that outlives this machine.

    Args:
        path: of the file.
        device: noted in each record.
    """

    def __init__(self, path: Path, device: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._device = path, device
        self._lock = threading.Lock()
        self.failed = 0

    def write(self, check: Check, record: dict[str, Any]) -> None:
        """Write one line of JSON, to the disk."""
        line = json.dumps({"stage": check.stage, "device": self._device, **record})
        with self._lock:
            self.failed += record["ok"] is False
            print(line, flush=True)
            with self.path.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())


class Worker:
    """A process that runs checks, started when it is needed and again after it has died.

    Args:
        device: ``cuda`` or ``cpu``.
        mnist: a folder with MNIST, or None.
        log: what checks print goes to its end.
        environment: beyond this process's own.
    """

    def __init__(self, device: str, mnist: str | None, log: Path, environment: dict[str, str]) -> None:
        self._command = [sys.executable, str(SCRIPT), "worker", "--device", device]
        self._command += ["--mnist", mnist] if mnist else []
        self._log, self._environment = log, os.environ | environment
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def run(self, check: Check, limit: float) -> dict[str, Any]:
        """Run a check for at most so many seconds; whatever happens, return a record."""
        begun = time.monotonic()
        try:
            process = self._running()
            assert process.stdin is not None
            process.stdin.write(check.name.encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, begun + limit)
        except OSError as error:
            line = None
            reason = f"its process was gone: {error}"
        else:
            reason = f"it was stopped after {limit:.0f} s"
        if line:
            record: dict[str, Any] = json.loads(line)
            return record
        code = self.stop()
        if line is not None:
            reason = f"its process ended with status {code}"
        elapsed = time.monotonic() - begun
        seconds = round(elapsed, 2)  # may be below the limit when the elapsed time is above
        cut_short = line is None and limit < check.limit and elapsed >= limit
        told = f"time was up after {seconds:.0f} s of it" if cut_short else f"{reason}; the end of the log: {_end(self._log)}"
        return {"name": check.name, "ok": None if cut_short else False, "seconds": seconds, "figures": {}, "error": told}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._read = b""
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environment,
                    start_new_session=True,
                )
        return self._process

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        """Return the next line; an empty one if the process has ended, None if time is up."""
        assert process.stdout is not None
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                return None
            more = os.read(process.stdout.fileno(), 65536)
            if not more:
                return b""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def stop(self) -> int | None:
        """End the process and what it has started."""
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return process.returncode if code is None else code


def conduct(checks: Sequence[Check], journal: Journal, minutes: float, jobs: int, **worker: Any) -> None:
    """Run checks until time is up; those that are left are written down as not run.

    Args:
        checks: in this order.
        journal: for the records.
        minutes: for all of them.
        jobs: how many may run side by side; those that are measured run alone.
        **worker: see :class:`Worker`.
    """
    begun = time.monotonic()
    left, lock = list(checks), threading.Lock()
    alone = any(check.alone for check in checks)
    workers = [Worker(**worker) for _ in range(1 if alone else max(1, jobs))]

    def serve(own: Worker) -> None:
        while True:
            with lock:
                if not left:
                    return
                check = left.pop(0)
            remaining = minutes * 60 - (time.monotonic() - begun)
            if remaining < _LEAST:
                reason = f"no time was left of {minutes:.1f} minutes"
                journal.write(check, {"name": check.name, "ok": None, "seconds": 0.0, "figures": {}, "error": reason})
            else:
                journal.write(check, own.run(check, min(check.limit, remaining)))

    threads = [threading.Thread(target=serve, args=(own,), daemon=True) for own in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for own in workers:
            own.stop()


def _end(log: Path) -> str:
    text = log.read_bytes()[-1500:].decode(errors="replace").strip() if log.exists() else ""
    return " | ".join(text.splitlines()[-6:]) or "empty"
