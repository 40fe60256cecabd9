"""The ledger: what a run with privacy releases is written down, and synced to the disk, before it is released."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fl_lightning.errors import CheckpointError
from fl_lightning.functional.spending import Entry, Spending

LEDGER = "privacy_ledger.jsonl"
"""In ``trainer.default_root_dir``. Runs of one folder share it; each line names its run. It is only ever appended to."""


class PrivacyLedger:
    """The lines of one run in a file, for the rank that writes it.

    A line that a kill has cut off is dropped: it was not on the disk yet, so nothing of what it announces was released.

    Args:
        folder: of the run.
        run: names the run; not secret.

    """

    def __init__(self, folder: Path, run: str) -> None:
        self.path, self._run = folder / LEDGER, run

    def append(self, entry: Entry) -> None:
        """Write a line and wait until it is on the disk.

        Raises:
            CheckpointError: if it cannot be written.
        """
        line = json.dumps({"run": self._run, **entry}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists()
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            if new and os.name == "posix":  # Windows cannot open a folder
                folder = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        except OSError as error:
            raise self._unusable(error) from error

    def read(self) -> tuple[Spending, int]:
        """Add up this run's lines, and cut off an unfinished one.

        Returns:
            What the run has spent, and the number of its lines.

        Raises:
            CheckpointError: if the file cannot be read, or if a line is damaged.
        """
        spending, lines = Spending(), 0
        try:
            content = self.path.read_bytes() if self.path.exists() else b""
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                with self.path.open("r+b") as file:
                    file.truncate(whole)
                    os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from error
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                entry = json.loads(line)
                if entry["run"] == self._run:
                    spending.add(entry)
                    lines += 1
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"Line {number} of '{self.path}' is damaged, so what this run has given away cannot be counted. Restore "
                    "the file from a copy, or start again without 'ckpt_path' in another folder."
                ) from error
        return spending, lines

    def _unusable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"The privacy ledger '{self.path}' cannot be used ({error.strerror}), and without it no round may begin. Make room "
            "or make the folder writable, and resume with '--ckpt_path last'."
        )
