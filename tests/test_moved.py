"""Names that moved keep working for a release, and say so."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest
from command_line import small

import fl_lightning
from fl_lightning import FedAvg
from fl_lightning.moved import MOVED, current_name


@pytest.mark.parametrize("old", MOVED)
def test_the_old_module_is_the_new_one(old):
    sys.modules.pop(f"fl_lightning.{old}", None)
    with pytest.warns(FutureWarning, match=rf"'fl_lightning.{old}' is now 'fl_lightning.{MOVED[old]}'"):
        found = importlib.import_module(f"fl_lightning.{old}")
    new = importlib.import_module(f"fl_lightning.{MOVED[old]}")
    assert found is new
    assert new.__spec__.name == f"fl_lightning.{MOVED[old]}"


def test_an_unknown_module_is_still_unknown():
    with pytest.raises(ModuleNotFoundError, match=r"fl_lightning\.clients\.nothing"):
        importlib.import_module("fl_lightning.clients.nothing")


def test_classes_of_old_checkpoints_have_their_current_names():
    assert current_name("fl_lightning.clients.faults.Faults") == "fl_lightning.settings.faults.Faults"
    assert current_name("fl_lightning.strategies.fedavg.FedAvg") == "fl_lightning.strategies.fedavg.FedAvg"
    assert current_name("mine.clients.faults.Faults") == "mine.clients.faults.Faults"


def test_a_setting_may_use_an_old_path(fl, tmp_path):
    sys.modules.pop("fl_lightning.callbacks.checkpoint_io", None)
    plugin = "--trainer.plugins=fl_lightning.callbacks.checkpoint_io.AtomicCheckpointIO"
    with pytest.warns(FutureWarning, match=r"callbacks\.checkpoint_io"):
        status, text = small(fl, plugin, f"--trainer.default_root_dir={tmp_path}")
    assert status == 0, text


def test_the_stub_lists_the_same_names():
    """A type checker reads the stub, Python the table."""
    tree = ast.parse((Path(fl_lightning.__file__).parent / "__init__.pyi").read_text())
    listed = {alias.asname: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(fl_lightning.__all__) == {*listed, "__version__"}
    for name, module in listed.items():
        assert getattr(fl_lightning, name) is getattr(importlib.import_module(module), name)


def test_a_rule_with_the_old_method_still_works():
    with pytest.warns(FutureWarning, match=r"Halved\.take_in' is now called 'accumulate'"):

        class Halved(FedAvg):
            def take_in(self, update, sums):
                return super().accumulate(update, sums) / 2

    assert Halved.accumulate is Halved.take_in
