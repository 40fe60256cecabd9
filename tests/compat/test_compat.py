"""What the functions in ``fl_lightning/compat`` do beyond the uses of private names that ``test_private_names.py`` tries."""

import copy
import os
import signal
import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import jsonargparse
import pytest
import torch
from bare_lightning import Hook, trainer
from compat_names import foreign_names, overridden
from jsonargparse import ArgumentParser
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import WarningCache
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import fl_lightning
from fl_lightning import Partitioner, Strategy
from fl_lightning.cli.parser import own_types
from fl_lightning.compat import jsonargparse as of_jsonargparse
from fl_lightning.compat import lightning as of_lightning
from fl_lightning.compat import opacus as of_opacus
from fl_lightning.compat import signals
from fl_lightning.compat import torch as of_torch

REMAINING: set[str] = set()
"""Private names that are still used outside of ``compat``: take out what is gone, add nothing."""


@pytest.mark.slow
def test_private_names_are_used_in_compat_only():
    """Outside of ``compat``, no private name of a library is imported, read, set or replaced."""
    assert foreign_names() == REMAINING
    assert overridden() == set()


def test_a_list_is_not_copied_for_each_of_its_entries():
    """Tables of a thousand clients took minutes: the time grew with the square of their number."""
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--rows", type=list[list[int]])
    rows, copied = [[1, 2, 3]] * 50, Mock(side_effect=copy._deepcopy_dispatch[list])
    with patch.dict(copy._deepcopy_dispatch, {list: copied}), of_jsonargparse.preferring({}):
        assert reader.parse_args([f"--rows={rows}"]).rows == rows
    assert copied.call_count < 50


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


def test_factories_of_a_parser():
    parser = ArgumentParser()
    parser.add_argument("--optimizer", type=OptimizerCallable)
    factory = parser.instantiate_classes(parser.parse_args(["--optimizer=SGD", "--optimizer.lr=0.5"])).optimizer
    assert of_jsonargparse.is_parsed_factory(factory)
    assert not of_jsonargparse.is_parsed_factory(SGD)
    assert isinstance(factory(nn.Linear(1, 1).parameters()), SGD)


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


def test_signals_are_left_alone():
    handlers: list[Any] = []
    look = Hook("on_train_start", lambda *_: handlers.append(signal.getsignal(signal.SIGTERM)))
    taken, left = trainer(callbacks=[look]), trainer(callbacks=[look])
    signals.ignore_signals(left)
    before = signal.getsignal(signal.SIGTERM)
    for fitting in (taken, left):
        fitting.fit(BoringModel())
    assert handlers[0] != before
    assert handlers[1] == before == signal.getsignal(signal.SIGTERM)


def test_what_a_trainer_does_on_sigterm_is_replaced():
    heard: list[bool] = []
    tell = Hook("on_train_batch_start", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    note = Hook("on_train_batch_end", lambda fitting, *_: signals.note_sigterm(fitting))
    fitting = trainer(callbacks=[tell], max_steps=2)
    own = signals.on_sigterm(fitting, lambda: heard.append(True))
    fitting.fit(BoringModel())
    assert heard == [True, True]
    assert not fitting.received_sigterm
    own()
    of_lightning.fresh_loops(fitting)
    with pytest.raises(SIGTERMException):
        trainer(callbacks=[note]).fit(BoringModel())
    with pytest.raises(SIGTERMException):
        fitting.fit(BoringModel())
    assert heard == [True, True]


def test_whole_epochs():
    def fail(*_: Any) -> None:
        raise ValueError("as the test wants it")

    broken, whole = trainer(callbacks=[Hook("on_train_batch_end", fail)]), trainer()
    assert not of_lightning.has_whole_epoch(whole)
    whole.fit(BoringModel())
    with pytest.raises(ValueError, match="as the test wants it"):
        broken.fit(BoringModel())
    assert of_lightning.has_whole_epoch(whole)
    assert not of_lightning.has_whole_epoch(broken)


def test_the_flag_detect_anomaly():
    assert [of_lightning.detects_anomalies(trainer(detect_anomaly=flag)) for flag in (True, False)] == [True, False]


def test_a_method_of_the_class_only():
    class Loads:
        @of_lightning.class_only
        def load(cls, number: int) -> Any:  # noqa: N805
            return cls, number

    assert Loads.load(3) == (Loads, 3)
    with pytest.raises(TypeError, match="cannot be called on an instance"):
        Loads().load(3)


def test_advice_on_logging():
    said: list[str] = []

    class Cache(WarningCache):
        def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
            said.append(message)

    class Whole(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("whole", torch.tensor(3))
            return super().training_step(batch, batch_idx)

    cache = Cache()
    before = of_lightning.swap_logging_advice(cache)
    try:
        trainer().fit(Whole())
    finally:
        assert of_lightning.swap_logging_advice(before) is cache
    assert "You called `self.log('whole', ...)`" in said[0]


def test_seeds_of_workers(monkeypatch):
    loader = DataLoader([1, 2])
    for asked, seeded in (("0", False), ("1", True)):
        monkeypatch.setenv("PL_SEED_WORKERS", asked)
        of_lightning.seed_workers(loader, 0)
        assert (loader.worker_init_fn is not None) is seeded


def test_a_setting_of_a_run_of_wandb_is_left_out(monkeypatch, tmp_path):
    passed: dict[str, Any] = {}
    monkeypatch.setattr("wandb.init", lambda **settings: passed.update(settings) or SimpleNamespace(id="abc"))
    monkeypatch.setattr("wandb.run", None)
    logger = WandbLogger(project="mine", save_dir=tmp_path, anonymous=None)
    del of_lightning.wandb_settings(logger)["anonymous"]
    assert logger.experiment.id == "abc"
    assert "anonymous" not in passed


def test_a_logged_value_moves_only_to_another_device():
    fitting = trainer()
    of_lightning.in_place_results(fitting)
    results = fitting.fit_loop.epoch_loop._results
    results.log("training_step", "loss", torch.tensor(2.0))
    (metric,) = results.values()
    value = metric.value
    assert metric.to("cpu").value is value
    results.log("training_step", "loss", torch.tensor(1.0, device="meta"))
    assert metric.value.device == metric.cumulated_batch_size.device == torch.device("meta")
