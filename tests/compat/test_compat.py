"""Each private name of another library that the package uses, against the release that is installed.

A failure names the library, its version, and the name: see the function in ``fl_lightning/compat`` that uses it. Lightning's
are in ``test_compat_lightning.py``.
"""

from __future__ import annotations

import copy
import re
import warnings
from importlib.metadata import version
from inspect import getsource
from typing import Any
from unittest.mock import Mock, patch

import jsonargparse
import pytest
import torch
import wandb
from compat_names import foreign_names, overridden, relies_on
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torchmetrics import CatMetric, MaxMetric, MeanMetric

import fl_lightning
from fl_lightning import Partitioner, Strategy
from fl_lightning.cli.parser import own_types
from fl_lightning.compat import jsonargparse as of_jsonargparse
from fl_lightning.compat import light_steps
from fl_lightning.compat import opacus as of_opacus
from fl_lightning.compat import torch as of_torch
from fl_lightning.compat import torchmetrics as of_torchmetrics
from fl_lightning.compat import wandb as of_wandb
from fl_lightning.compat.python import modules_today

REMAINING: set[str] = set()
"""Private names that are still used outside of ``compat``: take out what is gone, add nothing."""


# ---------------------------------------------------------------- the messages, and what is left


def test_a_check_fails_with_library_release_and_name():
    said = rf"^torchmetrics {re.escape(version('torchmetrics'))}: 'Metric._defaults' is gone or behaves .*AttributeError"
    with pytest.raises(pytest.fail.Exception, match=said), relies_on("torchmetrics", "Metric._defaults"):
        raise AttributeError("no such name")


@pytest.mark.slow
def test_private_names_are_used_in_compat_only():
    """Outside of ``compat``, no private name of a library is imported, read, set or replaced."""
    assert foreign_names() == REMAINING
    assert overridden() == set()


# ---------------------------------------------------------------- jsonargparse


class Takes:
    def __init__(self, size: int | None = 3, optimizer: OptimizerCallable = SGD) -> None:
        """Keep the arguments.

        Args:
            size: any.
            optimizer: makes one.
        """
        self.size, self.optimizer = size, optimizer


def parser() -> ArgumentParser:
    made = ArgumentParser(prog="test", version="1")
    made.add_argument("--config", action="config")
    made.add_class_arguments(Takes, "takes")
    return made


@relies_on("jsonargparse", "ArgumentParser._actions, and the defaults of actions that are no settings")
def test_options_of_a_parser():
    options = of_jsonargparse.actions_of(parser())
    assert {"help", "version", "config", "takes", "takes.size", "takes.optimizer"} <= {option.dest for option in options}
    assert [option.dest for option in options if of_jsonargparse.is_setting(option)] == ["takes.size", "takes.optimizer"]


@relies_on("jsonargparse", "_typehints.deepcopy")
def test_a_list_is_not_copied_for_each_of_its_entries():
    """Tables of a thousand clients took minutes: the time grew with the square of their number."""
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--rows", type=list[list[int]])
    rows, copied = [[1, 2, 3]] * 50, Mock(side_effect=copy._deepcopy_dispatch[list])
    with patch.dict(copy._deepcopy_dispatch, {list: copied}), of_jsonargparse.preferring({}):
        assert reader.parse_args([f"--rows={rows}"]).rows == rows
    assert copied.call_count < 50


@relies_on("jsonargparse", "_typehints.resolve_class_path_by_name")
def test_own_classes_by_name():
    """Each where a base of it is expected, and nowhere else."""
    with own_types():
        resolve = jsonargparse._typehints.resolve_class_path_by_name
        for base in (nn.Module, Strategy, Partitioner):
            own = [name for name in fl_lightning.__all__ if issubclass_of(getattr(fl_lightning, name), base)]
            assert len(own) > 5
            assert [resolve(base, name) for name in own] == [f"fl_lightning.{name}" for name in own]
        assert resolve(Strategy, "LeNet") == "LeNet"  # not found
        assert resolve(Strategy, "Strategy") == "fl_lightning.Strategy"  # whose message says that it is abstract
        assert resolve(nn.Module, "Bilinear") == "torch.nn.Bilinear"


def issubclass_of(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


@relies_on("jsonargparse", "the module of what it makes for a Callable")
def test_factories_of_a_parser():
    made = parser()
    given = made.parse_args(["--takes.optimizer=torch.optim.SGD", "--takes.optimizer.lr=0.5"])
    factory = made.instantiate_classes(given).takes.optimizer
    assert of_jsonargparse.is_parsed_factory(factory)
    assert not of_jsonargparse.is_parsed_factory(SGD)
    assert isinstance(factory(nn.Linear(1, 1).parameters()), SGD)


@relies_on("argcomplete", "_action_conflicts and active_actions")
def test_completion():
    finders = pytest.importorskip("argcomplete.finders")
    source = getsource(finders)
    names = [name for name in vars(of_jsonargparse.Completable) if name.endswith(("actions", "conflicts"))]
    assert len(names) == 2
    assert all(f"parser.{name}" in source for name in names)


# ---------------------------------------------------------------- torch


@relies_on("torch", "torch.utils._pytree")
def test_trees():
    tree = {"a": [torch.ones(2), 3], "b": (None, "text")}
    leaves, spec = of_torch.tree_flatten(tree)
    assert leaves[1:] == [3, None, "text"]
    assert of_torch.tree_unflatten(leaves, spec)["b"] == tree["b"]
    assert of_torch.tree_flatten({"a": [1, 2], "b": (3, 4)})[1] == spec
    assert of_torch.tree_map(lambda leaf: leaf * 2, {"a": (1, [2])}) == {"a": (2, [4])}


@relies_on("torch", "_modules of a module")
def test_parts_of_a_module():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.metric = MeanMetric()
            self.first = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
            self.again = self.first[1]  # found once, under its first name
            self.cycle = nn.ModuleList([self.first])
            self.missing = None
            self.register_module("none", None)

    module = Tied()
    module.cycle.append(module.cycle)
    ours = of_torch.parts_of(module)
    assert list(ours.items()) == list(module.named_modules())
    assert list(ours) == ["", "metric", "first", "first.0", "first.1", "first.1.0", "cycle"]


@relies_on("torch", "_foreach_sub, _foreach_add_, _foreach_copy_, _foreach_clamp_min_, _foreach_clamp_max_")
def test_lists_of_tensors():
    generator = torch.Generator().manual_seed(0)
    first, second = ([torch.randn(n, generator=generator) for n in (1, 4, 7)] for _ in range(2))

    def same(ours: Any, theirs: Any) -> bool:
        return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))

    assert same(of_torch.subtract_each(first, second), [a - b for a, b in zip(first, second, strict=True)])
    sums = [a.clone() for a in first]
    of_torch.add_to_each(sums, second, alpha=0.3)
    assert same(sums, [a.add(b, alpha=0.3) for a, b in zip(first, second, strict=True)])
    copies = [torch.zeros_like(a) for a in first]
    of_torch.copy_to_each(copies, first)
    assert same(copies, first)
    between = [a.clone() for a in first]
    of_torch.raise_each_to(between, -0.5)
    of_torch.lower_each_to(between, 0.5)
    assert same(between, [a.clamp(-0.5, 0.5) for a in first])


@relies_on("torch", "Optimizer._optimizer_step_pre_hooks and Optimizer._optimizer_step_post_hooks")
def test_step_hooks_of_an_optimizer():
    optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    for register in (optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
        assert not light_steps.has_step_hooks(optimizer)
        handle = register(lambda *_: None)
        assert light_steps.has_step_hooks(optimizer)
        handle.remove()


@relies_on("torch", "Optimizer._opt_called")
def test_schedulers_of_an_optimizer_that_never_steps():
    for told in (False, True):
        optimizer = SGD(nn.Linear(1, 1).parameters(), lr=0.1)
        schedule = StepLR(optimizer, 1)
        if told:
            of_torch.count_as_stepped(optimizer)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            schedule.step()
        assert ("before `optimizer.step()`" in "".join(str(one.message) for one in said)) is not told


# ---------------------------------------------------------------- others


@relies_on("torchmetrics", "Metric._reductions")
def test_states_that_are_sums():
    """And not those that are lists, means or maxima."""
    assert of_torchmetrics.summed_states(MeanMetric()) is not None
    assert of_torchmetrics.summed_states(MaxMetric()) is None
    assert of_torchmetrics.summed_states(CatMetric()) is None


@relies_on("opacus", "the attributes of parameters")
def test_what_opacus_leaves():
    pytest.importorskip("opacus", reason="an extra: pip install 'fl_lightning[privacy]'")
    from opacus.grad_sample import GradSampleHooks
    from opacus.optimizers import DPOptimizer

    layer = nn.Linear(2, 1)
    hooks = GradSampleHooks(layer, loss_reduction="mean", strict=False)
    private = DPOptimizer(SGD(layer.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=3)
    layer(torch.ones(3, 2)).mean().backward()
    private.clip_and_accumulate()
    hooks.remove_hooks()
    left = {name for parameter in layer.parameters() for name in vars(parameter)}
    assert left == set(of_opacus.SAMPLE_ATTRIBUTES)
    assert vars(layer).keys() - vars(nn.Linear(2, 1)).keys() == set(of_opacus.LAYER_ATTRIBUTES)
    of_opacus.forget_samples(layer, [layer])
    assert not any(vars(parameter) for parameter in layer.parameters())
    assert vars(layer).keys() == vars(nn.Linear(2, 1)).keys()


@relies_on("wandb-workspaces", "Workspace._to_model")
def test_the_specification_of_a_workspace():
    workspaces = pytest.importorskip("wandb_workspaces.workspaces", reason="an extra: pip install 'fl_lightning[dashboard]'")
    made = workspaces.Workspace(entity="me", project="mine", sections=[workspaces.Section(name="Found again", panels=[])])
    sections = of_wandb.workspace_specification(made)["spec"]["section"]["panelBankConfig"]["sections"]
    assert "Found again" in [section["name"] for section in sections]


@relies_on("wandb", "CustomChartSpec.table_key")
def test_charts_that_share_a_table():
    table = wandb.Table(columns=["x", "y"], data=[[0, 1]])
    chart = of_wandb.chart_of_table(table, "shared", "wandb/lineseries/v0", {"step": "x"}, {"title": "Found again"})
    assert (chart.table, chart.spec.table_key) == (table, "shared")
    assert "'value': 'shared'" in str(chart.spec.config_value["panel_config"]["userQuery"])


@relies_on("Python", "_compat_pickle.IMPORT_MAPPING")
def test_modules_of_python_2():
    assert modules_today()["__builtin__"] == "builtins"
    assert modules_today()["commands"] == "subprocess"


@relies_on("torch", "torch.autocast_increment_nesting and autocast_decrement_nesting")
def test_outside_of_autocast():
    """Cast weights are forgotten at the end of an inner context, as outside of all; after the block, autocast is on."""
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)

    def output() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16):
        with of_torch.outside_autocast("cpu"):
            assert layer(x).dtype == torch.float32
            before = output()
            nn.init.zeros_(layer.weight)
            assert not torch.equal(output(), before)
            assert torch.autocast_increment_nesting() == 1
            assert torch.autocast_decrement_nesting() == 0
        assert layer(x).dtype == torch.bfloat16
        assert torch.autocast_increment_nesting() == 3
        torch.autocast_decrement_nesting()
