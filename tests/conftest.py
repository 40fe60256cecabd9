from __future__ import annotations

import os
import sys
import warnings

import pytest
import torch
import wandb
from wandb.sdk import wandb_setup

from fl_lightning.cli import main

LONGEST = ("compare", "cli", "processes", "settings", "resume", "faults", "privacy", "engines", "resume_settings", "strategies")
"""Files that take longest begin first, so that no worker is left with one of them at the end."""

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; the tests of a file keep their order."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """One intra-op thread (small models), and a folder of its own for whatever a run writes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        yield
    torch.set_num_threads(threads)
    if wandb_setup._singleton is not None:  # it would keep this test's folder and settings for the next one's runs
        wandb.teardown()


@pytest.fixture
def _no_wandb(monkeypatch):
    """What the command line sets for W&B must not reach the next test."""
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)
    monkeypatch.setenv("WANDB_CONSOLE", "off")


@pytest.fixture
def _disabled_wandb(_no_wandb, monkeypatch):
    """The same calls of W&B, without its process and its files: for tests that look at neither."""
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture
def fl(monkeypatch, capsys, _no_wandb):
    """Type a command; returns the exit status and what was printed."""

    def type_(*args: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fl-lightning", *args])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        finally:
            wandb.finish()  # as the end of the process would
            wandb.teardown()
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return type_
