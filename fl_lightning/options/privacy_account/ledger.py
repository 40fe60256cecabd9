"""Write each private release to a ledger, and sync it to the disk, before it happens."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fl_lightning.errors import CheckpointError
from fl_lightning.functional.spending import Entry, Spendings
from fl_lightning.utilities.atomic_file import sync_folder

LEDGER = "privacy_ledger.jsonl"
"""The file in ``trainer.default_root_dir``, append-only. Runs in one folder share it, and each line names its run."""


def folder_of(root: Path) -> Path:
    """Return a ledger's folder: that of the run, or ``lightning_logs`` in the current one, where a Trainer without one logs."""
    return root / "lightning_logs" if root.absolute() == Path.cwd() else root


class PrivacyLedger:
    """Read and write the lines of one run in the file, on the rank that writes it.

    A line that a kill cut off is dropped: it was not on the disk yet, so its release did not happen.

    Args:
        folder: the folder of the run.
        run: the name of the run, which is not secret.

    """

    def __init__(self, folder: Path, run: str) -> None:
        self.path, self._run = folder / LEDGER, run

    def append(self, entry: Entry) -> None:
        """Write a line and wait until it is on the disk.

        Raises:
            CheckpointError: if the line cannot be written.
        """
        line = json.dumps({"run": self._run, **entry}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = not self.path.exists()
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
            if new:
                sync_folder(self.path.parent)
        except OSError as error:
            raise self._unusable(error) from error

    def read(self) -> tuple[Spendings, int]:
        """Sum this run's lines, and cut off an unfinished one.

        Returns:
            The spending of the run, and the number of its lines.

        Raises:
            CheckpointError: if the file cannot be read, or if a line is damaged.
        """
        spending, lines = Spendings(), 0
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
                    spending.of(entry["noise"]).add(entry)
                    lines += 1
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"Line {number} of '{self.path}' is damaged, so the privacy spent by this run cannot be counted. Restore "
                    "the file from a copy, or start again without 'ckpt_path' in another folder."
                ) from error
        return spending, lines

    def _unusable(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"The privacy ledger '{self.path}' cannot be used ({error.strerror}), and a round cannot begin without it. Free "
            "disk space or make the folder writable, and resume with '--ckpt_path last'."
        )
