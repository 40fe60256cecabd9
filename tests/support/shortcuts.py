"""What the tests leave out in a process that runs them, because it takes time and shows nothing."""

from __future__ import annotations

import functools
import gc
import os
from types import SimpleNamespace
from typing import Any

import torch
from lightning.fabric.utilities import registry
from torch._subclasses import fake_tensor

from fl_lightning.cli.federation_cli import FederationCLI


def take() -> None:
    """Leave it out, until the process ends."""
    _remember_entry_points()
    _remember_that_no_gpu()
    _leave_out_stacks()
    _leave_out_disks()
    _keep_parsers()
    _collect_less()


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
