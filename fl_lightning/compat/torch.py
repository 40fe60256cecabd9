"""Private names of torch: lists of tensors, trees, contexts, optimizers, data, and the registers of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from fl_lightning.compat.private import MISSING, Private

# ---------------------------------------------------------------- lists of tensors

# No public function computes with a whole list of tensors in one kernel.
_SUB, _ADD, _COPY, _CLAMP_MIN, _CLAMP_MAX = (
    Private("torch", "torch", f"_foreach_{name}", "computes with one tensor after another")
    for name in ("sub", "add_", "copy_", "clamp_min_", "clamp_max_")
)


def _on_each(private: Private, tensors: Sequence[Tensor], given: Any, **settings: Any) -> Any:
    """Call a kernel with a list of tensors and what it takes for all or each, or the method of its name on each."""
    kernel: Any = private.get(None, torch)
    if kernel is not None:
        return kernel(tensors, given, **settings)
    each = given if isinstance(given, list | tuple) else [given] * len(tensors)
    method = private.name.removeprefix("_foreach_")
    return [getattr(tensor, method)(own, **settings) for tensor, own in zip(tensors, each, strict=True)]


def subtract_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the differences of tensors at the same place of two lists."""
    found: Sequence[Tensor] = _on_each(_SUB, tensors, others)
    return found


def add_to_each(tensors: Sequence[Tensor], others: Sequence[Any], alpha: float = 1) -> None:
    """Add ``alpha`` times the tensors of another list to those of a list, in place."""
    _on_each(_ADD, tensors, others, alpha=alpha)


def copy_to_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Copy the tensors of another list into those of a list."""
    _on_each(_COPY, tensors, others)


def raise_each_to(tensors: Sequence[Tensor], least: Any) -> None:
    """Raise what is less than a number, or than the tensor at the same place of a list, to it; in place."""
    _on_each(_CLAMP_MIN, tensors, least)


def lower_each_to(tensors: Sequence[Tensor], most: Any) -> None:
    """Lower what is more than a number, or than the tensor at the same place of a list, to it; in place."""
    _on_each(_CLAMP_MAX, tensors, most)


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


@contextmanager
def outside_autocast(device: str) -> Iterator[None]:
    """Leave all contexts of autocast for a block, with names of torch that are not documented.

    ``torch.autocast(enabled=False)`` would be one more context around those within the block, and torch forgets the weights
    that it has cast only when the outermost one ends: after a step, they would be stale.
    """
    enabled = torch.is_autocast_enabled(device)
    missing = next((name for name in _NESTING if name.look_up(torch) is MISSING), None)
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


@contextmanager
def without_process_group() -> Iterator[None]:
    """Let a block find no process group, as in a single process; torch has no public way to set it aside."""
    if not (distributed.is_available() and distributed.is_initialized()):
        yield
        return
    owner: Any = distributed.GroupMember
    group, owner.WORLD = owner.WORLD, None
    try:
        yield
    finally:
        owner.WORLD = group


# ---------------------------------------------------------------- optimizers and schedulers

_FUSED = Private(
    "torch", "torch.optim.Optimizer", "_step_supports_amp_scaling", "reads the optimizer's setting 'fused' instead"
)
_SCALED = Private("torch", "torch.amp.GradScaler", "_per_optimizer_states")
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
    states: Any = _SCALED.require("Mixed precision with float16", scaler)
    return any(bool(value) for value in states[id(optimizer)]["found_inf_per_device"].values())


def chained_schedules(scheduler: Any) -> Sequence[Any]:
    """Return the schedules that one such as SequentialLR or ChainedScheduler consists of, its only list of them."""
    lists = [value for value in getattr(scheduler, "__dict__", {}).values() if isinstance(value, list | tuple)]
    return next((one for one in lists if any(isinstance(part, LRScheduler) for part in one)), ())


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


# ---------------------------------------------------------------- trees: nested batches as lists of leaves

_FLATTEN, _UNFLATTEN, _MAP = (
    Private("torch", "torch.utils._pytree", name) for name in ("tree_flatten", "tree_unflatten", "tree_map")
)
TreeSpec = Any
"""The structure of a tree, without its leaves; equal for trees that differ in their leaves only."""
_NESTED = "Nested data"


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a tree, and its structure."""
    found: tuple[list[Any], TreeSpec] = _FLATTEN.require(_NESTED)(tree)
    return found


def tree_unflatten(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """Return a tree with a structure that :func:`tree_flatten` returned."""
    return _UNFLATTEN.require(_NESTED)(leaves, spec)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same structure with the values of a function at its leaves."""
    return _MAP.require(_NESTED)(function, tree)


# ---------------------------------------------------------------- modules and parameters

# No public base class covers all BatchNorm layers, SyncBatchNorm included.
_BATCH_NORM = Private(
    "torch", "torch.nn.modules.batchnorm", "_BatchNorm", "knows as BatchNorm only torch's own layers and their subclasses"
)
_PUBLIC_BATCH_NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d),
)
_MODULES = Private("torch", "torch.nn.Module", "_modules", "reads a module's parts with named_modules and named_children")
_PARAMETERS = Private("torch", "torch.nn.Module", "_parameters", "reads a module's parameters with named_parameters")
_BUFFERS = Private("torch", "torch.nn.Module", "_buffers", "reads a module's buffers with named_buffers")
_UNSAVED = Private(
    "torch", "torch.nn.Module", "_non_persistent_buffers_set", "compares a module's named_buffers with its state_dict"
)

Hooks = dict[Any, Any]
"""A register of hooks, which torch can add to and cannot show."""
_GRADIENT_HOOKS = tuple(Private("torch", "torch.Tensor", name) for name in ("_backward_hooks", "_post_accumulate_grad_hooks"))
_MODULE_HOOKS = tuple(
    Private("torch", "torch.nn.Module", f"_{name}_hooks") for name in ("forward", "forward_pre", "backward", "backward_pre")
)


def is_batch_norm(part: nn.Module) -> bool:
    """Return whether a layer is BatchNorm of any kind."""
    return isinstance(part, _BATCH_NORM.get(_PUBLIC_BATCH_NORMS))


def hooks_of(owner: nn.Module | nn.Parameter) -> list[Hooks | None]:
    """Return the registers of the hooks on a module's forward and backward pass, or on a parameter's gradient.

    A parameter has two, for hooks before and after its gradient is accumulated, each None before the first hook.
    """
    names = _MODULE_HOOKS if isinstance(owner, nn.Module) else _GRADIENT_HOOKS
    found: list[Hooks | None] = []
    try:
        for private in names:  # no comprehension, whose call counts: a client's turn looks at each of its parts
            found.append(private.read(owner))
    except AttributeError:
        private.refuse("Copying a module for the clients")
    return found


def children_of(part: nn.Module) -> Mapping[str, nn.Module | None]:
    """Return the register of a module's children, which can be compared at once; torch's generator yields one after another."""
    found: Any = _MODULES.get(MISSING, part)
    return dict(part.named_children()) if found is MISSING else found


def buffers_of(part: nn.Module) -> Mapping[str, Any]:
    """Return the register of a module's own buffers, with those that have no tensor yet, which torch's generator leaves out."""
    found: Any = _BUFFERS.get(MISSING, part)
    return dict(part.named_buffers(recurse=False, remove_duplicate=False)) if found is MISSING else found


def unsaved_buffers(module: nn.Module) -> dict[str, Any]:
    """Return a module's own buffers that ``state_dict`` leaves out; ``named_buffers`` does not tell them from others."""
    buffers, names = buffers_of(module), _UNSAVED.get(None, module)
    if names is None:
        saved = nn.Module.state_dict(module, keep_vars=True)
        return {name: buffer for name, buffer in buffers.items() if buffer is not None and name not in saved}
    return {name: buffers[name] for name in names if name in buffers}


def parts_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return a module and its parts by name, as ``dict(module.named_modules())``, but without hashing them.

    torch's generator puts every part into a set, and the hash of a torchmetrics metric reads all its states.
    """
    if not _MODULES.exists(module):
        return dict(nn.Module.named_modules(module))
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
    known = _PARAMETERS.exists(module)
    for prefix, part in (parts_of(module) if parts is None else parts).items():
        own = part._parameters if known else dict(nn.Module.named_parameters(part, recurse=False, remove_duplicate=False))
        for name, parameter in own.items():
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
