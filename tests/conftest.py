from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import warnings
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it: also for processes that tests start, on shared cores

import pytest
import torch
import wandb
from lightning.fabric.utilities import registry
from torch._subclasses import fake_tensor
from wandb.sdk import wandb_setup

from fl_lightning.cli.federation_cli import FederationCLI, main

LONGEST = (
    "compare",
    "cli",
    "processes",
    "sites",
    "resume",
    "stacked_compiled",
    "settings",
    "other_tasks",
    "run_folder",
    "stacked",
)
"""Files that take longest begin first, so that no worker is left with one of them at the end."""

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files; the tests of a file keep their order."""
    places = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_sessionfinish() -> None:
    """Let the end of the process collect what :func:`_collect_less` left out."""
    gc.unfreeze()


def _remember_entry_points() -> None:
    """Let Lightning ask the installed packages for callbacks once; it reads all their metadata for every Trainer."""
    registry.entry_points = functools.cache(registry.entry_points)


PREPARE = FederationCLI.prepare_subcommand


def _keep_parsers() -> None:
    """Let all commands of a process share the parser of each subcommand; it takes a fifth of the time of a small fit."""
    kept = dict[Any, Any]()

    def prepare(cli: FederationCLI, klass: type, subcommand: str, **kwargs: Any) -> Any:
        arguments, place = cli._subcommand_method_arguments, (klass, subcommand, cli._typed)
        if place not in kept:
            kept[place] = PREPARE(cli, klass, subcommand, **kwargs), arguments[subcommand]
        parser, arguments[subcommand] = kept[place]
        return parser

    FederationCLI.prepare_subcommand = prepare


def _collect_less() -> None:
    """Leave out what is imported when garbage is collected, and collect less often; it takes a tenth of the time of a fit."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _remember_that_no_gpu() -> None:
    """Let torch look for GPUs once where none is; it looks whenever a Trainer is built and an operation is traced."""
    if torch.cuda.device_count() == 0:
        torch.cuda._cached_device_count = 0


def _leave_out_disks() -> None:
    """Let files that are written reach the disk later: no machine loses its power, and tests of it replace this again."""
    os.fsync = lambda descriptor: None


def _leave_out_stacks() -> None:
    """Let torch not note the stack for each tensor that it traces, which only an error of its own would show."""
    fake_tensor.traceback = SimpleNamespace(extract_stack=list, format_list=list)


_remember_entry_points()
_remember_that_no_gpu()
_leave_out_stacks()
_leave_out_disks()
_keep_parsers()
_collect_less()


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


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Ctrl+C works as in a terminal: Lightning ignores it once it has come, and a shell's background jobs always ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
