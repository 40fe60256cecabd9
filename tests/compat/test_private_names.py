"""Each private name of another package, where a release lacks it: a public way gives the same result, with one warning.

That a name is missing is simulated for our look-up only, because the packages use most of the names themselves.
"""

import ast
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import requires, version
from typing import Any

import pytest
import torch
from compat_names import ROOT, defined, used
from engine_runs import trained
from federations import Plain
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from packaging.requirements import Requirement
from private_uses import USES

import fl_lightning.compat
from fl_lightning.clients.fabric.client_run import _Strategy
from fl_lightning.compat import private
from fl_lightning.compat.private import MISSING, NAMES, TESTED, Private, installed, is_tested, known_releases
from fl_lightning.errors import FederationError, VersionError

OFFERED = "lightning.pytorch.strategies.Strategy._lightning_optimizers"
"""The name that Lightning looks up, and not we."""
WRITTEN = {"_atomic_types", "_opt_called", "_HelpAction", "_sigterm_notifier_fn"}
"""Names that are only written, that only type checkers see, or that are looked up together with another one."""
for _found in pkgutil.iter_modules(fl_lightning.compat.__path__, "fl_lightning.compat."):
    if not _found.name.startswith("fl_lightning.compat.flower"):  # its names belong to one minor version
        import_module(_found.name)


def change(patch: pytest.MonkeyPatch, name: Private, looked_up: set[str], missing: bool) -> None:
    """Note when our look-up reads a name, and make it miss the name if asked to."""
    usual = name.read

    def read(owner: Any) -> Any:
        found = None if missing else usual(owner)
        looked_up.add(name.path)
        if missing:
            raise AttributeError(name.path)
        return found

    patch.setitem(vars(name), "read", read)


def named(path: str) -> Private:
    (name,) = (one for one in NAMES if one.path == path)
    return name


@contextmanager
def without(*names: Private) -> Iterator[tuple[set[str], list[str]]]:
    """Make our look-up miss names in a block; it gets the paths that are looked up, and what is told."""
    told, looked_up = list[str](), set[str]()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        patch.setattr(private, "_told", set())
        for name in names:
            change(patch, name, looked_up, missing=True)
        yield looked_up, told
    told += [str(one.message) for one in said if "so fl_lightning" in str(one.message)]


def warning_of(name: Private) -> str:
    lacks = f"{name.package} {installed(name.package)} has no '{name.path}', so fl_lightning {name.instead}."
    return f"{lacks} It was tested with {known_releases(name.package)}."


@pytest.fixture(scope="module")
def usual(tmp_path_factory) -> dict[Any, tuple[set[str], Any]]:
    """Return the private names that each use looks up, and its result."""
    found = {}
    for use in USES:
        looked_up = set[str]()
        with pytest.MonkeyPatch.context() as patch:
            for name in NAMES:
                change(patch, name, looked_up, missing=False)
            found[use] = looked_up, use(tmp_path_factory.mktemp("usual"))
    return found


@pytest.mark.parametrize("use", [use for use, result in USES.items() if result is not ...], ids=lambda use: use.__name__)
def test_a_use_has_its_result(use, tmp_path):
    assert use(tmp_path) == USES[use]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name.path != OFFERED], ids=lambda name: name.path)
def test_a_public_way_gives_the_same_result_with_one_warning_or_the_use_is_refused(name, usual, tmp_path):
    use, result = next((use, result) for use, (looked_up, result) in usual.items() if name.path in looked_up)
    with without(name) as (_, told):
        if name.instead:
            assert use(tmp_path) == result
        else:
            said = rf"needs '{name.path}', which {name.package} \S+ does not have\. Install .*{name.package}.*, or a newer fl_"
            with pytest.raises(FederationError, match=said):
                use(tmp_path)
    assert told == ([warning_of(name)] if name.instead else [])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_a_federation_gives_the_same_result_without_any_name(engine):
    """But for those without which a use is refused."""
    usual = trained(engine, partial(Plain, momentum=0.9, batchnorm=True))
    with without(*(name for name in NAMES if name.instead)) as (looked_up, told):
        weights, figures = trained(engine, partial(Plain, momentum=0.9, batchnorm=True))
    assert figures == usual[1]
    assert all(torch.equal(value, usual[0][name]) for name, value in weights.items())
    paths = [text.split("'")[1] for text in told]
    assert len(paths) == len(set(paths)) > 10
    assert set(paths) <= looked_up


@pytest.mark.parametrize(("engine", "package"), [("trainer", "lightning"), ("fabric", "torch")])
def test_with_a_release_that_was_not_tested_nothing_of_a_package_is_replaced(engine, package, monkeypatch):
    """And results are the same, with one warning."""
    usual = trained(engine, partial(Plain, momentum=0.9))
    with monkeypatch.context() as patch:
        patch.setattr(private, "installed", lambda name: "99.1.0" if name == package else installed(name))
        private.is_tested.cache_clear()
        with pytest.warns(UserWarning, match=rf"^{package} 99\.1\.0 is not among the releases .*\({package} .*\)") as said:
            plain = trained(engine, partial(Plain, momentum=0.9))
    private.is_tested.cache_clear()
    assert len([one for one in said if "99.1.0" in str(one.message)]) == 1
    assert plain[1] == usual[1]
    assert all(torch.equal(value, usual[0][name]) for name, value in plain[0].items())


def test_lightning_looks_up_optimizers_under_another_name():
    class Renamed(BoringModel):
        def optimizers(self, use_pl_optimizer: bool = True) -> Any:
            return self.trainer.strategy._wrapped_optimizers

    module, run = Renamed(), type("Run", (), {})()
    run.optimizers = [torch.optim.SGD(module.parameters(), lr=0.1)]
    run.strategy = _Strategy(run, "strategy", {})
    module.trainer = run
    with without(named(OFFERED)):
        (found,) = module.optimizers()
    assert found.optimizer is run.optimizers[0]


@pytest.mark.parametrize("path", sorted(ROOT.glob("compat/*.py")), ids=lambda path: path.stem)
def test_every_private_name_is_declared(path):
    """No file looks up another one."""
    tree, declared = ast.parse(path.read_text()), {part for name in NAMES for part in name.path.split(".")}
    if not path.stem.startswith("flower"):
        assert set(used(tree, defined(tree), defined(tree))) - {"connectors"} <= declared | WRITTEN


def test_the_message_names_release_and_range():
    gone = Private("torch", "torch", "_no_such_name", "does without")
    NAMES.remove(gone)
    with pytest.warns(
        UserWarning,
        match=rf"^torch {version('torch')} has no 'torch\._no_such_name', so .* does without\. It was tested with torch",
    ):
        assert gone.get(3) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gone.get(3) == 3  # once in a process
    with pytest.raises(VersionError, match=r"^Training needs 'torch\._no_such_name'.*Install torch 2\.7 to .*, or a newer"):
        gone.require("Training")
    lost = Private("no-such-package", "no_such_package.part", "_name", "does without")
    NAMES.remove(lost)
    assert lost.look_up() is MISSING
    assert installed("no-such-package") == "(version unknown)"
    assert known_releases("no-such-package") == ""
    assert installed("Python") == sys.version.split()[0]
    assert known_releases("Python").startswith("Python 3.10 to ")


def test_the_lowest_tested_releases_are_those_that_pip_accepts():
    required = {need.name: need.specifier for need in map(Requirement, requires("fl_lightning")) if not need.marker}
    for package, (lowest, highest) in TESTED.items():
        if package in required:
            assert f">={lowest}" in str(required[package])
            assert required[package].contains(f"{highest}.9")
            assert is_tested(package)


CHANGES = """
import argparse, copy, inspect, sys
import jsonargparse, lightning.pytorch, lightning.pytorch.cli, torch, torchmetrics, torchvision, wandb
from wandb.plot import custom_chart
from lightning.pytorch.loggers import WandbLogger
from torch.utils import data
def values():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("argparse", "copy", "jsonargparse", "lightning", "torchmetrics", "wandb") or name in (
            "atexit", "torch", "torch.nn.modules.module", "torch.optim.optimizer", "torch.utils.data.dataloader"
        ):
            for key, value in list(vars(module).items()):
                found[name, key] = id(value)
                if inspect.isclass(value) and value.__module__ == name:
                    found |= {(name, key, inner): id(one) for inner, one in vars(value).items() if not inner.startswith("__")}
                if type(value) is dict and key.startswith("_") and len(value) < 500 and not key.startswith("__"):
                    found |= {(name, key, repr(inner)): id(one) for inner, one in value.items()}
    limits = inspect.unwrap(lightning.pytorch.Trainer.__init__).__annotations__
    return found | {("limits", key): repr(value) for key, value in limits.items()}
before = values()
import fl_lightning.cli.federation_cli, fl_lightning.flower.site.parent, fl_lightning.studies.commands
for name in fl_lightning.__all__:
    getattr(fl_lightning, name)
after = values()
print(sorted(str(key) for key, value in before.items() if after.get(key) != value))
"""


@pytest.mark.slow
def test_an_import_patches_nothing():
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run([sys.executable, "-c", CHANGES], capture_output=True, text=True, check=False, env=environment)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_command_patches_nothing_that_stays():
    from jsonargparse import _typehints

    from fl_lightning.cli.parser import own_types

    def found() -> Any:
        return _typehints.resolve_class_path_by_name, dict(Trainer.__init__.__wrapped__.__annotations__)

    before = found()
    with own_types():
        assert found() != before
    assert found() == before
