"""The smallest use of each private name of Python and of packages but torch and Lightning; each returns its result."""

from __future__ import annotations

import argparse
import copy
import sys
import types
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torchmetrics
import wandb
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import EarlyStopping

from fl_lightning.compat import jsonargparse as of_jsonargparse
from fl_lightning.compat import python
from fl_lightning.compat import torchmetrics as of_torchmetrics
from fl_lightning.compat import wandb as of_wandb


def states(_: Path) -> Any:
    return of_torchmetrics.state_names(torchmetrics.MeanMetric())


def summed(_: Path) -> Any:
    return of_torchmetrics.summed_states(torchmetrics.MeanMetric())


def chart(_: Path) -> Any:
    table = wandb.Table(columns=["x", "y"], data=[[0, 1]])
    found = of_wandb.chart_of_table(table, "shared", "wandb/lineseries/v0", {"step": "x"}, {"title": "Found again"})
    return found.table.data, found.spec.spec_name, found.spec.fields, found.spec.string_fields


def latest_value(_: Path) -> Any:
    metric = torchmetrics.MeanMetric()
    metric(torch.tensor(2.0))
    return of_torchmetrics.latest_value(metric)


def dashboard(_: Path) -> Any:
    return of_wandb.workspace_specification(object())


def names_of_modules(_: Path) -> Any:
    return dict(python.modules_today())


def exit_functions(_: Path) -> Any:
    """Whether the end of W&B's run is called, which W&B registers with atexit."""
    called: list[bool] = []
    stand_in = types.SimpleNamespace(finish=lambda: called.append(True))
    with patch("atexit._run_exitfuncs", stand_in.finish), patch.dict(sys.modules, {"wandb": stand_in}):
        python.run_exit_functions()
    return called


class Holds:
    def __init__(self) -> None:
        self.size = 2
        self.reference = weakref.ref(self)
        self.function = lambda: self.size
        self.again = self.function


def copies(_: Path) -> Any:
    """Whether the copy's function and reference mean the copy, and the original's the original."""
    holds = Holds()

    def of_function(function: Any, memo: dict[int, Any]) -> Any:
        if function is not holds.function:
            return function
        own = copy.deepcopy(holds, memo)
        memo[id(function)] = found = lambda: own.size
        return found

    def of_reference(reference: Any, memo: dict[int, Any]) -> Any:
        return weakref.ref(copy.deepcopy(holds, memo)) if reference is holds.reference else reference

    with python.copying(of_function, of_reference) as memo_of:
        found = copy.deepcopy(holds, memo_of({}))
    found.size = 5
    after = copy.deepcopy(holds)
    return (
        found.function(),
        found.again is found.function,
        found.reference() is found,
        holds.function(),
        holds.reference() is holds,
        after.function is holds.function,
        copies is copy.deepcopy(copies),
    )


class Takes:
    def __init__(self, size: int | None = 3, name: str = "me") -> None:
        """Take some settings."""


def options(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_class_arguments(Takes, "takes")
    outer = ArgumentParser()
    inner = outer.add_subcommands()
    inner.add_subcommand("go", parser)
    plain = argparse.ArgumentParser()
    plain.add_argument("--x", type=int)
    found = [[action.dest for action in of_jsonargparse.actions_of(one)] for one in (parser, plain)]
    nested = [of_jsonargparse.subcommand_parsers(one) for one in (outer, parser)]
    return found, nested[0] == {"go": parser}, nested[1]


def lists(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--rows", type=list[list[int]])
    parser.add_argument("--stops", type=list[EarlyStopping])
    stops = '[{"class_path": "EarlyStopping", "init_args": {"monitor": "x"}}]'
    with of_jsonargparse.preferring({}):
        return parser.dump(
            parser.parse_args(["--rows=[[1, 2], [3]]", f"--stops={stops}", "--stops+=EarlyStop", "--stops.monitor=y"])
        )


def types_of_settings(_: Path) -> Any:
    parser = ArgumentParser()
    parser.add_argument("--stop", type=EarlyStopping | None)
    parser.add_argument("--x", type=int)
    parser.add_argument("--y", type=list[str], default=["a"])
    parser.add_argument("--z", action="store_true")
    return {action.dest: of_jsonargparse.type_of(action) for action in of_jsonargparse.actions_of(parser)}


class EarlyStop(EarlyStopping):
    pass


def names_of_classes(_: Path) -> Any:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--stop", type=EarlyStopping)
    with of_jsonargparse.preferring({"EarlyStop": f"{EarlyStop.__module__}.EarlyStop"}):
        return parser.parse_args([f"--stop={EarlyStop.__module__}.EarlyStop", "--stop.monitor=x"]).stop.class_path
