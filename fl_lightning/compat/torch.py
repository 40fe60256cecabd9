"""Private names of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fl_lightning.compat import private_names_of

with private_names_of("torch"):
    # No public base class covers all BatchNorm layers, SyncBatchNorm included.
    from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

    # torch.func is public, but the trees that vmap takes are not.
    from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

    # No public function computes with a whole list of tensors in one kernel. These are torch's own, without a call in between.
    subtract_each = torch._foreach_sub
    add_to_each = torch._foreach_add_
    copy_to_each = torch._foreach_copy_
    raise_each_to = torch._foreach_clamp_min_
    lower_each_to = torch._foreach_clamp_max_

__all__ = [
    "BatchNorm",
    "Hooks",
    "TreeSpec",
    "add_to_each",
    "buffers_of",
    "chained_schedules",
    "children_of",
    "copy_to_each",
    "count_as_stepped",
    "hooks_of",
    "lower_each_to",
    "outside_autocast",
    "overflowed",
    "parameters_of",
    "parts_of",
    "raise_each_to",
    "schedule_starts",
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


@contextmanager
def outside_autocast(device: str) -> Iterator[None]:
    """Leave all contexts of autocast for a block, with names of torch that are not documented.

    ``torch.autocast(enabled=False)`` would be one more context around those within the block, and torch forgets the weights
    that it has cast only when the outermost one ends: after a step, they would be stale.
    """
    enabled = torch.is_autocast_enabled(device)
    depth = torch.autocast_increment_nesting() - 1
    for _ in range(depth + 1):
        torch.autocast_decrement_nesting()
    torch.set_autocast_enabled(device, False)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, enabled)
        for _ in range(depth):
            torch.autocast_increment_nesting()


@contextmanager
def without_process_group() -> Iterator[None]:
    """Let a block find no process group, as in a single process; torch has no public way to set it aside."""
    if not (distributed.is_available() and distributed.is_initialized()):
        yield
        return
    group, distributed.GroupMember.WORLD = distributed.GroupMember.WORLD, None
    try:
        yield
    finally:
        distributed.GroupMember.WORLD = group


Hooks = dict[Any, Any]
"""A register of hooks, which torch can add to and cannot show."""


def hooks_of(owner: nn.Module | nn.Parameter) -> list[Hooks | None]:
    """Return the registers of the hooks on a module's forward and backward pass, or on a parameter's gradient.

    A parameter has two, for hooks before and after its gradient is accumulated, each None before the first hook.
    """
    if isinstance(owner, nn.Parameter):
        return [owner._backward_hooks, owner._post_accumulate_grad_hooks]
    return [owner._forward_hooks, owner._forward_pre_hooks, owner._backward_hooks, owner._backward_pre_hooks]


def times_changed(tensor: Tensor) -> float:
    """Return how often a tensor was changed in place, which autograd counts; NaN for one that was made without autograd."""
    return float("nan") if tensor.is_inference() else tensor._version


def children_of(part: nn.Module) -> dict[str, nn.Module | None]:
    """Return the register of a module's children, which can be compared at once; torch's generator yields one after another."""
    return part._modules


def buffers_of(part: nn.Module) -> dict[str, Tensor | None]:
    """Return the register of a module's own buffers, with those that have no tensor yet."""
    return part._buffers


def parts_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return a module and its parts by name, as ``dict(module.named_modules())``, but without hashing them.

    torch's generator puts every part into a set, and the hash of a torchmetrics metric reads all its states.
    """
    found = {"": module}
    _add_parts(module, "", found, {id(module)})
    return found


def parameters_of(module: nn.Module, parts: Mapping[str, nn.Module] | None = None) -> dict[str, nn.Parameter]:
    """Return all parameters of a module by name, as ``dict(module.named_parameters())`` in half the time.

    Args:
        module: the module; it may override ``named_parameters`` and leave some out.
        parts: its :func:`parts_of`, if they are known.
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, part in (parts_of(module) if parts is None else parts).items():
        for name, parameter in part._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{prefix}.{name}" if prefix else name] = parameter
    return found


def _add_parts(owner: nn.Module, prefix: str, found: dict[str, nn.Module], seen: set[int]) -> None:
    for name, part in owner._modules.items():
        if part is not None and id(part) not in seen:
            seen.add(id(part))
            found[prefix + name] = part
            if part._modules:
                _add_parts(part, f"{prefix}{name}.", found, seen)


def count_as_stepped(optimizer: Optimizer) -> None:
    """Let schedulers believe that an optimizer has stepped; torch has no way to switch off their warning."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def unscales_in_step(optimizer: Optimizer) -> bool:
    """Return whether an optimizer divides by the loss scale inside its step, as fused ones do; torch does not say so."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def overflowed(scaler: Any, optimizer: Optimizer) -> bool:
    """Return whether a gradient scaler will skip this step; torch tells only afterwards, by a lower scale.

    Args:
        scaler: a ``torch.amp.GradScaler``.
        optimizer: the one that it has unscaled, not Lightning's wrapper.
    """
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(value) for value in found.values())


def chained_schedules(scheduler: Any) -> Sequence[Any]:
    """Return the schedules that SequentialLR or ChainedScheduler consists of; torch does not show them. Others have none."""
    parts: Sequence[Any] = getattr(scheduler, "_schedulers", ())
    return parts


def schedule_starts(scheduler: Any) -> list[int]:
    """Return the step at which each part of SequentialLR or ChainedScheduler begins; torch does not show it."""
    parts = chained_schedules(scheduler)
    return [0, *getattr(scheduler, "_milestones", [0] * (len(parts) - 1))] if parts else []


def update_last_rates(scheduler: Any) -> None:
    """Let a scheduler's ``get_last_lr`` return the current rates; torch sets them only when it steps."""
    if hasattr(scheduler, "_last_lr"):
        scheduler._last_lr = [group["lr"] for group in scheduler.optimizer.param_groups]


def unsaved_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return a module's own buffers that ``state_dict`` leaves out; ``named_buffers`` does not tell them from others."""
    return {name: module._buffers[name] for name in module._non_persistent_buffers_set if name in module._buffers}


def stop_workers(loader: DataLoader[Any]) -> None:
    """End the processes of a DataLoader with persistent workers; torch ends them only when it collects the loader."""
    iterator: Any = loader._iterator
    if iterator is not None:
        iterator._shutdown_workers()
        loader._iterator = None
