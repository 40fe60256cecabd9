"""Clients' Trainers skip Lightning's work around hooks that do nothing: what others see of a fit stays the same."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from compat_names import relies_on
from federations import Plain, federate, trainer
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.core import module as core_module
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loops import evaluation_loop, training_epoch_loop
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer import call as calls
from lightning.pytorch.trainer import trainer as trainer_file

from fl_lightning import AdaFed, LocalTraining
from fl_lightning.compat.lightning_hooks import IDLE, lean_hooks

OTHERS = ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward", "setup", "teardown")
HOOKS = sorted(name for name in dir(Callback) if name.startswith("on_") and "checkpoint" not in name)
Seen = list[tuple[Any, ...]]


def empty() -> None:
    """Do nothing."""


@relies_on("lightning", "hooks that do nothing")
def test_what_is_skipped_does_nothing():
    for hook, method in IDLE.items():
        assert method.__code__.co_code == empty.__code__.co_code, hook
    for hook in HOOKS:
        assert getattr(Callback, hook).__code__.co_code == empty.__code__.co_code, hook
    assert Strategy.on_train_batch_start.__code__.co_code == empty.__code__.co_code


def kinds(*given: Any) -> list[str]:
    return [type(one).__name__ for one in given]


class Recorder(Callback):
    """Notes each hook of a callback, and the name under which the module logs meanwhile."""

    def __init__(self, seen: Seen, hooks: list[str]) -> None:
        for hook in hooks:
            setattr(self, hook, partial(self.note, seen, hook))

    @staticmethod
    def note(seen: Seen, hook: str, run: Trainer, module: LightningModule, *others: Any, **named: Any) -> None:
        seen.append(("callback", hook, module._current_fx_name, run.global_step, *kinds(*others, *named.values())))


def recording(seen: Seen, hooks: Iterable[str]) -> BoringModel:
    """A module that notes some of its hooks and logs in some."""

    class Module(BoringModel):
        def training_step(self, batch, batch_idx):
            seen.append(("module", "training_step", self._current_fx_name, batch_idx))
            self.log("train_loss", loss := super().training_step(batch, batch_idx)["loss"], on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch):  # without batch_idx
            self.log("val_loss", self.step(batch))

        def on_train_epoch_end(self):
            self.log("at_the_end", float(self.trainer.global_step))

    def overriding(hook: str) -> Any:
        base = getattr(Module, hook)

        def noted(self, *given, **named):
            seen.append(("module", hook, self._current_fx_name, *kinds(*given)))
            output = base(self, *given, **named)
            assert self._current_fx_name == hook
            return output

        return noted

    for hook in hooks:
        setattr(Module, hook, overriding(hook))
    return Module()


def outcome(lean: bool, hooks: list[str], own: Iterable[str]) -> tuple[Seen, dict[str, float], list[torch.Tensor]]:
    seen: Seen = []
    torch.manual_seed(0)
    module = recording(seen, own)
    stop = EarlyStopping("val_loss", patience=9)  # monitors: Lightning calls its hooks after the others'
    run = trainer(2, stop, Recorder(seen, hooks), Callback(), limit_train_batches=3, limit_val_batches=1)
    with lean_hooks() if lean else nullcontext():
        run.fit(module)
        metrics = {name: float(value) for name, value in run.callback_metrics.items()}
        run.validate(module, verbose=False)
    return seen, metrics, list(module.parameters())


@pytest.mark.parametrize(
    ("hooks", "own"),
    [(HOOKS, (*IDLE, *OTHERS)), (["on_train_batch_end"], ["on_after_backward"]), ([], ())],
    ids=["all", "one", "none"],
)
def test_hooks_see_what_they_see_in_lightning(hooks, own):
    seen, metrics, weights = outcome(False, hooks, own)
    lean_seen, lean_metrics, lean_weights = outcome(True, hooks, own)
    assert lean_seen == seen
    assert {hook for owner, hook, *_ in seen if owner == "module"} == {"training_step", *own}
    assert lean_metrics == metrics
    assert {"train_loss_step", "train_loss_epoch", "val_loss", "at_the_end"} <= metrics.keys()
    assert all(map(torch.equal, lean_weights, weights))


def test_afterwards_everything_is_lightnings_own():
    def names() -> list[Any]:
        hooks = [calls._call_callback_hooks, calls._call_lightning_module_hook, calls._call_strategy_hook]
        checks = [place.is_param_in_hook_signature for place in (training_epoch_loop, evaluation_loop, core_module)]
        return [*hooks, *checks, trainer_file.isolate_rng]

    def fail() -> None:
        with lean_hooks():
            assert not set(names()) & set(before)
            raise ValueError("within")

    before = names()
    with pytest.raises(ValueError, match="within"):
        fail()
    assert names() == before


def test_clients_train_and_their_models_are_evaluated_so():
    seen: set[tuple[str, str]] = set()

    class Looking(Plain):
        def training_step(self, batch, batch_idx):
            seen.add(("training", calls._call_callback_hooks.__module__))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            seen.add(("validation", calls._call_callback_hooks.__module__))
            return super().validation_step(batch, batch_idx)

    federate(Looking(), 1, strategy=AdaFed("val_acc"), local=LocalTraining(engine="trainer"))
    ours, lightnings = lean_hooks.__module__, calls.__name__
    assert seen == {("training", ours), ("validation", ours), ("validation", lightnings)}  # the last is the user's own Trainer
