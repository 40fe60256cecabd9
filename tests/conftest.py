from __future__ import annotations

import functools
import os
import signal
import sys
import warnings
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it: also for processes that tests start, on shared cores

import jsonargparse
import pytest
import torch
import wandb
from lightning.fabric.utilities import registry
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


def _remember_import_paths() -> None:
    """Let jsonargparse look up the import path of a class once; it does so for every subclass in each of 1,500 commands."""
    known: dict[type, str] = {}
    look_up = jsonargparse._util.get_import_path

    def remembered(value: object) -> str | None:
        if not isinstance(value, type):
            return look_up(value)
        if value not in known:
            known[value] = look_up(value)
        return known[value]

    for name, module in sys.modules.copy().items():
        if name.startswith("jsonargparse.") and vars(module).get("get_import_path") is look_up:
            module.get_import_path = remembered


def _remember_entry_points() -> None:
    """Let Lightning ask the installed packages for callbacks once; it reads all their metadata for every Trainer."""
    registry.entry_points = functools.cache(registry.entry_points)


def _remember_kinds_of_options() -> None:
    """Let jsonargparse compare the class of an option once; it compares those of all options whenever it looks for one."""
    select = jsonargparse._actions.filter_non_parsing_actions
    leaves_out = functools.cache(lambda kind: issubclass(kind, jsonargparse._actions.non_parsing_actions))

    def remembered(options: Any) -> Any:
        if isinstance(options, list):
            return [option for option in options if not leaves_out(type(option))]
        return select(options)

    for name, module in sys.modules.copy().items():
        if name.startswith("jsonargparse.") and vars(module).get("filter_non_parsing_actions") is select:
            module.filter_non_parsing_actions = remembered


def _keep_parsers() -> None:
    """Let all commands of a process share the parser of each subcommand; it takes a fifth of the time of a small fit."""
    build, kept = FederationCLI.prepare_subcommand, dict[Any, Any]()

    def prepare(cli: FederationCLI, klass: type, subcommand: str, **kwargs: Any) -> Any:
        arguments, place = cli._subcommand_method_arguments, (klass, subcommand, cli._typed)
        if place not in kept:
            kept[place] = build(cli, klass, subcommand, **kwargs), arguments[subcommand]
        parser, arguments[subcommand] = kept[place]
        return parser

    FederationCLI.prepare_subcommand = prepare


_remember_import_paths()
_remember_kinds_of_options()
_remember_entry_points()
_keep_parsers()


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
