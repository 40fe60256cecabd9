"""Private names of torch. Those of its modules and of its trees have files of their own, and are found here as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR
from torch.utils.data import DataLoader

from fl_lightning.compat.private import MISSING, Private
from fl_lightning.compat.torch_modules import (
    Hooks,
    buffers_of,
    children_of,
    hooks_of,
    is_batch_norm,
    parameters_of,
    parts_of,
    unsaved_buffers,
)
from fl_lightning.compat.trees import TreeSpec, tree_flatten, tree_map, tree_unflatten

__all__ = [
    "Hooks",
    "TreeSpec",
    "add_to_each",
    "buffers_of",
    "chained_schedules",
    "children_of",
    "copy_to_each",
    "count_as_stepped",
    "hooks_of",
    "is_batch_norm",
    "lower_each_to",
    "outside_autocast",
    "overflowed",
    "parameters_of",
    "parts_of",
    "raise_each_to",
    "stop_workers",
    "subtract_each",
    "times_changed",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "unsaved_buffers",
    "unscales_in_step",
    "update_last_rates",
    "without_process_group",
]

# ---------------------------------------------------------------- lists of tensors

# No public function computes with a whole list of tensors in one kernel.
_SUB, _ADD, _COPY, _CLAMP_MIN, _CLAMP_MAX = (
    Private("torch", "torch", f"_foreach_{name}", "computes with one tensor after another")
    for name in ("sub", "add_", "copy_", "clamp_min_", "clamp_max_")
)


def subtract_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the differences of tensors at the same place of two lists."""
    kernel: Any = _SUB.get(None, torch)
    if kernel is None:
        return [tensor - other for tensor, other in zip(tensors, others, strict=True)]
    found: Sequence[Tensor] = kernel(tensors, others)
    return found


def add_to_each(tensors: Sequence[Tensor], others: Sequence[Any], alpha: float = 1) -> None:
    """Add ``alpha`` times the tensors of another list to those of a list, in place."""
    kernel: Any = _ADD.get(None, torch)
    if kernel is not None:
        kernel(tensors, others, alpha=alpha)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.add_(other, alpha=alpha)


def copy_to_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Copy the tensors of another list into those of a list."""
    kernel: Any = _COPY.get(None, torch)
    if kernel is not None:
        kernel(tensors, others)
        return
    for tensor, other in zip(tensors, others, strict=True):
        tensor.copy_(other)


def raise_each_to(tensors: Sequence[Tensor], least: Any) -> None:
    """Raise what is less than a number, or than the tensor at the same place of a list, to it; in place."""
    _clamp(_CLAMP_MIN, tensors, "min", least)


def lower_each_to(tensors: Sequence[Tensor], most: Any) -> None:
    """Lower what is more than a number, or than the tensor at the same place of a list, to it; in place."""
    _clamp(_CLAMP_MAX, tensors, "max", most)


def _clamp(private: Private, tensors: Sequence[Tensor], which: str, limit: Any) -> None:
    kernel: Any = private.get(None, torch)
    if kernel is not None:
        kernel(tensors, limit)
        return
    limits = limit if isinstance(limit, list | tuple) else [limit] * len(tensors)
    for tensor, own in zip(tensors, limits, strict=True):
        tensor.clamp_(**{which: own})


_VERSION = Private("torch", "torch.Tensor", "_version", "compares the values of tensors to see which have changed")


def times_changed(tensor: Tensor) -> float:
    """Return how often a tensor was changed in place, which autograd counts; NaN for one that was made without autograd."""
    if tensor.is_inference():
        return float("nan")
    counted: Any = _VERSION.get(None, tensor)
    return hash(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()) if counted is None else counted


# ---------------------------------------------------------------- contexts

_NESTING = tuple(
    Private("torch", "torch", name)
    for name in ("autocast_increment_nesting", "autocast_decrement_nesting", "set_autocast_enabled", "clear_autocast_cache")
)
_IS_ENABLED = Private("torch", "torch", "is_autocast_enabled", "multiplies two numbers to see whether autocast is on")


@contextmanager
def outside_autocast(device: str) -> Iterator[None]:
    """Leave all contexts of autocast for a block, with names of torch that are not documented.

    ``torch.autocast(enabled=False)`` would be one more context around those within the block, and torch forgets the weights
    that it has cast only when the outermost one ends: after a step, they would be stale.
    """
    enabled, missing = _autocasts(device), next((name for name in _NESTING if name.look_up(torch) is MISSING), None)
    if missing is not None:
        if enabled:
            missing.refuse("Mixed precision in the Trainer around a federation")
        yield
        return
    enter, leave, enable, forget = (name.look_up(torch) for name in _NESTING)
    depth = enter() - 1
    for _ in range(depth + 1):
        leave()
    enable(device, False)
    forget()
    try:
        yield
    finally:
        enable(device, enabled)
        for _ in range(depth):
            enter()


def _autocasts(device: str) -> bool:
    asked: Any = _IS_ENABLED.get(None, torch)
    if asked is not None:
        return bool(asked(device))
    one = torch.ones(1, 1, device=device)
    return (one @ one).dtype != one.dtype


_WORLD = Private("torch", "torch.distributed.GroupMember", "WORLD", "hides only is_initialized() from clients")


@contextmanager
def without_process_group() -> Iterator[None]:
    """Let a block find no process group, as in a single process; torch has no public way to set it aside."""
    if not (distributed.is_available() and distributed.is_initialized()):
        yield
        return
    owner: Any = getattr(distributed, "GroupMember", None)
    if not _WORLD.exists(owner):
        with patch.object(distributed, "is_initialized", return_value=False):
            yield
        return
    group, owner.WORLD = owner.WORLD, None
    try:
        yield
    finally:
        owner.WORLD = group


# ---------------------------------------------------------------- optimizers and schedulers

_FUSED = Private(
    "torch", "torch.optim.Optimizer", "_step_supports_amp_scaling", "reads the optimizer's setting 'fused' instead"
)
_SCALED = Private("torch", "torch.amp.GradScaler", "_per_optimizer_states", "looks for infinite gradients itself")
_SCHEDULES = Private(
    "torch", "torch.optim.lr_scheduler.SequentialLR", "_schedulers", "looks for the parts among the schedule's attributes"
)
_RATES = Private("torch", "torch.optim.lr_scheduler.LRScheduler", "_last_lr", "leaves 'get_last_lr' as it is until a step")


def count_as_stepped(optimizer: Optimizer) -> None:
    """Let schedulers believe that an optimizer has stepped; torch has no way to switch off their warning.

    A release that asks for another attribute gives the warning, and everything else stays the same.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def unscales_in_step(optimizer: Optimizer) -> bool:
    """Return whether an optimizer divides by the loss scale inside its step, as fused ones do; torch does not say so."""
    fused = any(group.get("fused") for group in optimizer.param_groups)
    if fused:
        return bool(_FUSED.get(fused, optimizer))
    return bool(getattr(optimizer, _FUSED.name, False))


def overflowed(scaler: Any, optimizer: Optimizer) -> bool:
    """Return whether a gradient scaler will skip this step; torch tells only afterwards, by a lower scale.

    Args:
        scaler: a ``torch.amp.GradScaler``.
        optimizer: the one that it has unscaled, not Lightning's wrapper.
    """
    states: Any = _SCALED.get(None, scaler)
    if states is None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        values = (gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in gradients)
        return not all(bool(torch.isfinite(value).all()) for value in values)
    return any(bool(value) for value in states[id(optimizer)]["found_inf_per_device"].values())


def chained_schedules(scheduler: Any) -> Sequence[Any]:
    """Return the schedules that SequentialLR or ChainedScheduler consists of; torch does not show them. Others have none."""
    if not isinstance(scheduler, SequentialLR | ChainedScheduler):
        others: Sequence[Any] = getattr(scheduler, _SCHEDULES.name, ())
        return others
    parts: Any = _SCHEDULES.get(None, scheduler)
    return _list_of(LRScheduler, scheduler) if parts is None else parts


def _list_of(kind: type, owner: Any) -> list[Any]:
    """Return the attribute of an object that is a list of this kind."""
    lists = [list(value) for value in vars(owner).values() if isinstance(value, list | tuple) and value]
    return next((one for one in lists if all(isinstance(item, kind) for item in one)), [])


def update_last_rates(scheduler: Any) -> None:
    """Let a scheduler's ``get_last_lr`` return the current rates; torch sets them only when it steps."""
    known = _RATES.exists(scheduler) if isinstance(scheduler, LRScheduler) else hasattr(scheduler, _RATES.name)
    if known:
        scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


# ---------------------------------------------------------------- data

_ITERATOR = Private(
    "torch", "torch.utils.data.DataLoader", "_iterator", "leaves a DataLoader's workers running until it is garbage-collected"
)
_SHUT_DOWN = Private(
    "torch",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    "_shutdown_workers",
    "leaves the end of workers to garbage collection",
)


def stop_workers(loader: DataLoader[Any]) -> None:
    """End the processes of a DataLoader with persistent workers; torch ends them only when it collects the loader."""
    iterator: Any = _ITERATOR.get(None, loader)
    if iterator is None:
        return
    shut_down: Any = _SHUT_DOWN.get(None, iterator)
    loader._iterator = None
    if shut_down is not None:
        shut_down()
