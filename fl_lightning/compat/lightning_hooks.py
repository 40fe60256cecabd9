"""A client's fit without the work around hooks that do nothing, about a tenth of a small client's time in its own Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping

from fl_lightning.compat.private import Private, is_tested

IDLE = {
    name: getattr(LightningModule, name)
    for name in (
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        *(f"on_{stage}_{when}" for stage in ("train_batch", "train_epoch", "train") for when in ("start", "end")),
        *(f"on_validation_{when}" for when in ("batch_start", "batch_end", "epoch_start", "epoch_end", "start", "end")),
    )
}
"""The hooks of a module that do nothing unless they are overridden, by name."""
_HOOKS = "The training of a client"
_FX = "_current_fx_name"
_NAME = Private("lightning", "lightning.pytorch.LightningModule", _FX)
_CALLS, _LOOPS, _TRAINER = "lightning.pytorch.trainer.call", "lightning.pytorch.loops", "lightning.pytorch.trainer.trainer"
_CALL_CALLBACKS = Private("lightning", _CALLS, "_call_callback_hooks")
_CALL_MODULE = Private("lightning", _CALLS, "_call_lightning_module_hook")
_CALL_STRATEGY = Private("lightning", _CALLS, "_call_strategy_hook")
_TRAINS = Private("lightning", f"{_LOOPS}.training_epoch_loop", "is_param_in_hook_signature")
_EVALUATES = Private("lightning", f"{_LOOPS}.evaluation_loop", "is_param_in_hook_signature")
_LOGS = Private("lightning", "lightning.pytorch.core.module", "is_param_in_hook_signature")
_ISOLATES = Private("lightning", _TRAINER, "isolate_rng")
_ASKS = (_TRAINS, _EVALUATES, _LOGS)
"""Where Lightning asks which arguments a method takes, in every step and for everything that is logged."""


@cache
def _new_module() -> LightningModule:
    """Return a module that has the attributes with which all begin."""
    return LightningModule()


@contextmanager
def lean_hooks() -> Iterator[None]:
    """Let the Trainers that fit or validate in a block call hooks without Lightning's work around those that do nothing.

    Around each of about 25 hooks per step, Lightning formats two messages, opens a section of the profiler and sets an
    attribute of the module twice, even if the hook is not overridden; and it inspects the signature of ``training_step`` in
    every step, and again in every ``self.log``. Only for Trainers with neither a profiler nor a sanity check, as those of
    clients are: nothing of this can be set in public. What hooks see and return is the same.
    """
    if not is_tested("lightning"):
        yield
        return
    _NAME.require(_HOOKS, _new_module())
    found = {name: name.require(_HOOKS) for name in (*_STAND_INS, *_ASKS)}
    instead = {**_STAND_INS, **{name: cache(found[name]) for name in _ASKS}}
    with ExitStack() as changed:
        for name, stand_in in instead.items():
            changed.enter_context(patch.object(import_module(name.owner), name.name, stand_in))
        yield


def _call_module(trainer: Trainer, hook: str, *args: Any, pl_module: LightningModule | None = None, **kwargs: Any) -> Any:
    module = pl_module or trainer.lightning_module
    method = getattr(module, hook)
    if hook in IDLE and getattr(method, "__func__", None) is IDLE[hook]:
        return None
    return _named(module, hook, method, args, kwargs)


def _call_strategy(trainer: Trainer, hook: str, *args: Any, **kwargs: Any) -> Any:
    return _named(trainer.lightning_module, hook, getattr(trainer.strategy, hook), args, kwargs)


def _call_callbacks(trainer: Trainer, hook: str, *args: Any, monitoring_callbacks: bool | None = None, **kwargs: Any) -> None:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        if not _is_idle(callback, hook) and monitoring_callbacks in (None, isinstance(callback, EarlyStopping | Checkpoint)):
            module = trainer.lightning_module
            _named(module, hook, getattr(callback, hook), (trainer, module, *args), kwargs)


def _is_idle(callback: Callback, hook: str) -> bool:
    return getattr(type(callback), hook, None) is getattr(Callback, hook, _is_idle) and hook not in vars(callback)


def _named(module: LightningModule | None, hook: str, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a hook while the module has its name, which ``self.log`` asks for."""
    if not callable(method):
        return None
    if module is None:
        return method(*args, **kwargs)
    attributes = vars(module)  # torch's own way to set an attribute searches the module's tensors first
    before = attributes[_FX]
    attributes[_FX] = hook
    output = method(*args, **kwargs)
    attributes[_FX] = before
    return output


_STAND_INS = {
    _CALL_CALLBACKS: _call_callbacks,
    _CALL_MODULE: _call_module,
    _CALL_STRATEGY: _call_strategy,
    _ISOLATES: nullcontext,  # around a sanity check that is not done
}
