"""Each private name of another package, where a release lacks it: a public way gives the same result, with one warning.

That a name is missing is simulated for our look-up only, because the packages use most of the names themselves.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
import torch
from compat_names import ROOT, defined, relies_on, used
from engine_runs import trained
from federations import Plain
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from private_uses import EXPECTED, OFFERED, REFUSED, USES, WRITTEN

import fl_lightning.compat
from fl_lightning.clients.fabric.client_run import _Strategy
from fl_lightning.compat import private
from fl_lightning.compat.private import MISSING, NAMES, Private, installed, supported
from fl_lightning.errors import VersionError

for _found in pkgutil.iter_modules(fl_lightning.compat.__path__, "fl_lightning.compat."):
    if not _found.name.startswith("fl_lightning.compat.flower"):  # its names belong to one minor version
        import_module(_found.name)


def by_path(uses: dict[Callable[..., Any], tuple[str, ...]]) -> list[Any]:
    return [pytest.param(use, path, id=path) for use, paths in uses.items() for path in paths]


def miss(patch: pytest.MonkeyPatch, name: Private, looked_up: set[str] | None = None) -> None:
    """Make our look-up miss a name, and note when it is looked up."""

    def read(owner: Any) -> Any:
        if looked_up is not None:
            looked_up.add(name.path)
        raise AttributeError(name.path)

    patch.setitem(vars(name), "read", read)


@pytest.fixture
def without(monkeypatch) -> Callable[[str], Any]:
    """Make our look-up miss a name in a block, which has one warning or none."""

    @contextmanager
    def block(path: str, warned: int = 1) -> Iterator[None]:
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            patch.setattr(private, "_told", set())
            miss(patch, next(one for one in NAMES if one.path == path))
            yield
        (name,) = (one for one in NAMES if one.path == path)
        told = [str(one.message) for one in said if "so fl_lightning" in str(one.message)]
        begins = (
            f"{name.package} {installed(name.package)} has no '{path}', so fl_lightning {name.instead}. It was tested with "
        )
        assert told == [begins + f"{supported(name.package)}."] * warned

    return block


@pytest.mark.parametrize("use", EXPECTED, ids=lambda use: use.__name__)
def test_a_use_has_its_result(use, tmp_path):
    paths = {*USES.get(use, ()), *REFUSED.get(use, ())}
    (package,) = {name.package for name in NAMES if name.path in paths} - {"Python"} or {"Python"}
    with relies_on(package, ", ".join(sorted(paths))):
        assert use(tmp_path) == EXPECTED[use]


@pytest.mark.slow
@pytest.mark.parametrize(("use", "path"), by_path(USES))
def test_a_public_way_gives_the_same_result(use, path, without, tmp_path):
    usual = use(tmp_path)
    with without(path):
        slower = use(tmp_path)
    assert slower == usual


@pytest.mark.slow
@pytest.mark.parametrize(("use", "path"), by_path(REFUSED))
def test_a_use_without_a_public_way_is_refused(use, path, without, tmp_path):
    (name,) = (one for one in NAMES if one.path == path)
    said = rf"needs '{path}', which {name.package} \S+ does not have\. Install .*{name.package}.*, or a newer fl_lightning\.$"
    with without(path, warned=0), pytest.raises(VersionError, match=said):
        use(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked"])
def test_a_federation_gives_the_same_result_without_any_name(engine, monkeypatch):
    """But for those without which a use is refused."""
    usual = trained(engine, partial(Plain, momentum=0.9, batchnorm=True))
    looked_up = set[str]()
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        patch.setattr(private, "_told", set())
        for name in NAMES:
            if name.instead:
                miss(patch, name, looked_up)
        weights, figures = trained(engine, partial(Plain, momentum=0.9, batchnorm=True))
    assert figures == usual[1]
    assert all(torch.equal(value, usual[0][name]) for name, value in weights.items())
    told = [str(one.message).split("'")[1] for one in said if "so fl_lightning" in str(one.message)]
    assert len(told) == len(set(told)) > 10
    assert set(told) <= looked_up


def test_lightning_looks_up_optimizers_under_another_name(without):
    class Renamed(BoringModel):
        def optimizers(self, use_pl_optimizer: bool = True) -> Any:
            return self.trainer.strategy._wrapped_optimizers

    module, run = Renamed(), type("Run", (), {})()
    run.optimizers = [torch.optim.SGD(module.parameters(), lr=0.1)]
    run.strategy = _Strategy(run, "strategy", {})
    module.trainer = run
    with without(OFFERED):
        (found,) = module.optimizers()
    assert found.optimizer is run.optimizers[0]


def test_every_private_name_is_tested():
    tested = [path for uses in (USES, REFUSED) for paths in uses.values() for path in paths]
    assert sorted((*tested, OFFERED)) == sorted(name.path for name in NAMES)
    assert {path for paths in REFUSED.values() for path in paths} == {name.path for name in NAMES if not name.instead}


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
    with pytest.raises(VersionError, match=r"^Training needs 'torch\._no_such_name'.*Install torch[<>].*, or a newer"):
        gone.require("Training")
    lost = Private("no-such-package", "no_such_package.part", "_name", "does without")
    NAMES.remove(lost)
    assert lost.look_up() is MISSING
    assert installed("no-such-package") == "(version unknown)"
    assert supported("no-such-package") == ""
    assert installed("Python") == sys.version.split()[0]
    assert supported("Python").startswith("Python >=3.")


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
