"""Private names of Lightning for what ``self.log`` collects."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import WarningCache

from fl_lightning.compat.private import MISSING, Private, is_tested

__all__ = ["in_place_results", "logging_levels", "swap_logging_advice"]

_HOME = "lightning.pytorch.trainer.connectors.logger_connector"
_SLOWLY = "lets Lightning rebuild every logged value in each 'self.log'"
_METRIC = Private("lightning", f"{_HOME}.result", "_ResultMetric", _SLOWLY)
_COLLECTION = Private("lightning", f"{_HOME}.result", "_ResultCollection", _SLOWLY)
_RESULTS = Private("lightning", "lightning.pytorch.loops.training_epoch_loop._TrainingEpochLoop", "_results", _SLOWLY)
_ADVICE = Private("lightning", f"{_HOME}.result", "warning_cache", "lets a client's fit use up advice on 'self.log'")
_LEVELS = Private(
    "lightning",
    f"{_HOME}.fx_validator",
    "_FxValidator.check_logging_and_get_default_levels",
    "takes the levels of 'self.log' from Lightning's documentation",
)

_ON_STEP = (
    *("training_step", "on_train_batch_start", "on_train_batch_end", "on_before_backward", "backward", "on_after_backward"),
    *("on_before_optimizer_step", "optimizer_step", "configure_gradient_clipping", "clip_gradients", "on_before_zero_grad"),
    "optimizer_zero_grad",
)
"""The hooks in which ``self.log`` logs each step unless it is told otherwise."""
_EITHER = (
    "validation_step",
    "test_step",
    *(f"on_{kind}_batch_{when}" for kind in ("validation", "test") for when in ("start", "end")),
)
"""The hooks in which it logs the mean of an epoch, and can log each step."""
_ON_EPOCH = tuple(
    f"on_{kind}_{when}" for kind in ("train", "validation", "test") for when in ("start", "epoch_start", "epoch_end")
)
"""The hooks in which it can log only once in an epoch."""


def logging_levels(hook: str, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
    """Return whether ``self.log`` logs each step, and each epoch, in a hook; only a Trainer looks that up.

    Args:
        hook: the name of the hook.
        on_step: what ``self.log`` was told; None for the hook's default.
        on_epoch: what it was told; None for the hook's default.
    """
    levels: Callable[..., tuple[bool, bool]] = _LEVELS.get(_documented_levels)
    return levels(hook, on_step, on_epoch)


def _documented_levels(hook: str, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
    if hook not in (*_ON_STEP, *_EITHER, *_ON_EPOCH):
        raise MisconfigurationException(f"You can't `self.log()` inside `{hook}`. Log with `self.logger.experiment`.")
    step = hook in _ON_STEP if on_step is None else on_step
    epoch = hook not in _ON_STEP if on_epoch is None else on_epoch
    if hook in _ON_EPOCH and (step or not epoch):
        raise MisconfigurationException(
            f"You can't `self.log(on_step={step}, on_epoch={epoch})` inside `{hook}`, only `on_epoch=True`."
        )
    return step, epoch


def swap_logging_advice(cache: WarningCache) -> WarningCache:
    """Replace what gives Lightning's once-only advice on ``self.log``, and return the one before.

    Advice that a filter for warnings drops counts as given, and there is no public way to keep it for later.
    """
    from lightning.pytorch.trainer.connectors.logger_connector import result

    before: WarningCache | None = _ADVICE.get(None, result)
    if before is None:
        return cache
    result.warning_cache = cache
    return before


@cache
def _in_place_collection(metric: Any, collection: Any) -> Any:
    """Return Lightning's collection of logged values, whose values move only if they are on another device.

    Lightning rebuilds every attribute of a logged value in each ``self.log``.

    Args:
        metric: Lightning's class of logged values.
        collection: its class of their collection.
    """

    class InPlaceMetric(metric):  # type: ignore[misc]
        def to(self, device: torch.device | str, *others: Any, **settings: Any) -> Any:
            value = getattr(self, "value", None)
            if value is not None and value.device == torch.device(device):
                return self
            return super().to(device, *others, **settings)

    class InPlaceResults(collection):  # type: ignore[misc]
        def __setitem__(self, key: str, metric: Any) -> None:
            metric.__class__ = InPlaceMetric
            super().__setitem__(key, metric)

    return InPlaceResults


def in_place_results(trainer: Trainer) -> None:
    """Make ``self.log`` cheaper in a Trainer's loops, which create what collects the values themselves."""
    if not is_tested("lightning"):
        return
    steps: Any = trainer.fit_loop.epoch_loop
    loops = (steps, steps.val_loop, trainer.validate_loop)
    metric, collection = _METRIC.look_up(), _COLLECTION.look_up()
    for name, found in ((_METRIC, metric), (_COLLECTION, collection), *((_RESULTS, _RESULTS.look_up(loop)) for loop in loops)):
        if found is MISSING:
            name.tell()
            return
    for loop in loops:
        loop._results = _in_place_collection(metric, collection)(training=loop is steps)
