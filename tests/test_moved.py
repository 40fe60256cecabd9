"""Names that moved keep working for a release, and say so."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest
import torch
from command_line import small
from federations import same_bits, weights

import fl_lightning
from fl_lightning import FedAvg, RegressionTask
from fl_lightning.moved import MOVED, current_flag, current_name, current_settings


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


# ------------------------------------------------------------------ a run of 0.1.0: SCAFFOLD, two rounds

GOLDEN = Path(__file__).parent / "golden"


def golden_weights() -> dict[str, torch.Tensor]:
    return torch.load(GOLDEN / "scaffold_0.1.0.ckpt", weights_only=True)["state_dict"]


def fit_golden(fl, folder: Path, *more: str) -> tuple[int, str]:
    return fl(
        "fit",
        f"--config={GOLDEN / 'scaffold_0.1.0.yaml'}",
        f"--trainer.default_root_dir={folder}",
        f"--best_checkpoint.dirpath={folder}/checkpoints",
        f"--last_checkpoint.dirpath={folder}/checkpoints",
        *more,
    )


def test_an_old_checkpoint_loads():
    module = RegressionTask.load_from_checkpoint(GOLDEN / "scaffold_0.1.0.ckpt", network=torch.nn.Linear(10, 1))
    assert same_bits(weights(module), golden_weights())


def test_an_old_configuration_trains_the_same_model(fl, tmp_path):
    with pytest.warns(FutureWarning) as warned:
        status, text = fit_golden(fl, tmp_path)
    assert status == 0, text
    said = "\n".join(str(warning.message) for warning in warned)
    assert "'federation.updates_in_memory' is now 'federation.memory_limit'. The old name works until version 0.4." in said
    assert "'data.device_memory' no longer exists and is ignored. See 'data.memory_limit'." in said
    found = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for name, tensor in golden_weights().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_run_of_an_old_version_is_not_resumed(fl, tmp_path):
    status, text = fit_golden(fl, tmp_path, "--trainer.max_epochs=4", f"--ckpt_path={GOLDEN / 'scaffold_0.1.0.ckpt'}")
    assert status == 1
    assert "has format 3, but this version of fl_lightning reads format 4. Resume with the version that wrote it" in text


def test_an_old_flag_sets_the_new_setting():
    with pytest.warns(FutureWarning, match=r"'federation\.updates_in_memory' is now 'federation\.memory_limit'"):
        assert current_flag("--federation.updates_in_memory=2") == "--federation.memory_limit=2"
    assert current_flag("--federation.memory_limit=2") == "--federation.memory_limit=2"
    assert current_flag("federation.updates_in_memory") == "federation.updates_in_memory"


def test_settings_of_other_sections_keep_their_names():
    text = "model: {updates_in_memory: 1}\ndata:\n  other: 2 # device_memory\n"
    assert current_settings(text) == text
