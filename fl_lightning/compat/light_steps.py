"""Private names of torch for steps and backward passes without the work around them, a tenth of a small step on a CPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler
from torch.optim import SGD, Optimizer

from fl_lightning.compat.private import Private, is_tested
from fl_lightning.compat.torch import add_to_each

# The public backward pass checks its arguments in Python, for longer than a small network's takes.
_BACKWARD = Private("torch", "torch.autograd.graph", "_engine_run_backward")
_PROFILES = Private("torch", "torch.autograd.profiler", "_is_profiler_enabled")
# Hooks on the steps of one optimizer, and of all, can be registered, but not listed.
_STEP_HOOKS, _ALL_HOOKS = (
    tuple(Private("torch", owner, f"{name}_{when}_hooks") for when in ("pre", "post"))
    for owner, name in (("torch.optim.Optimizer", "_optimizer_step"), ("torch.optim.optimizer", "_global_optimizer"))
)
_STEP = "A step of an optimizer"


def backward_lightly(loss: Tensor) -> None:
    """Do what ``loss.backward()`` does."""
    plain = type(loss) is Tensor and loss.requires_grad and not loss.dim() and loss.is_floating_point()
    if not plain or not is_tested("torch"):
        loss.backward()  # type: ignore[no-untyped-call]  # a subclass, an error, ...
        return
    run: Any = _BACKWARD.require("A backward pass")
    run((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether hooks are registered on an optimizer; torch can register them, but not list them."""
    before, after = _STEP_HOOKS
    return bool(before.require(_STEP, optimizer) or after.require(_STEP, optimizer))


def step_lightly(optimizer: Optimizer) -> None:
    """Let an optimizer skip the work around its steps that does not change them.

    In each step, torch checks whether all tensors are on a GPU, to choose an implementation; on a CPU the answer is always no.
    It also opens a section for its profiler around each ``step`` and ``zero_grad``, whether or not the profiler runs. Plain
    SGD, whose whole step is one addition, makes it in a single call.
    """
    if not is_tested("torch"):
        return
    on_cpu = {tensor.device.type for group in optimizer.param_groups for tensor in group["params"]} <= {"cpu"}
    for group in optimizer.param_groups:
        if on_cpu and "foreach" in group and group["foreach"] is None and group.get("fused") is None:
            group["foreach"] = False
    kind, changed = type(optimizer), vars(optimizer)
    only_adds = kind is SGD and on_cpu
    reference = weakref.ref(optimizer)  # a cycle would keep the state of its last client until the next garbage collection
    if getattr(kind.step, "hooked", False) and "step" not in changed:  # schedulers put a step of their own in its place
        watched: Any = kind.step
        bare = watched.__wrapped__

        def step_of(own: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if _is_watched(own):
                return watched(own, *args, **kwargs)
            return _sgd_step(own, bare, *args, **kwargs) if only_adds else bare(own, *args, **kwargs)

        def step(*args: Any, **kwargs: Any) -> Any:
            return step_of(reference(), *args, **kwargs)  # type: ignore[arg-type]

        step.__func__ = step_of  # type: ignore[attr-defined]  # which schedulers look for
        changed["step"] = step
    if kind.zero_grad is Optimizer.zero_grad and "zero_grad" not in changed:

        def zero_grad(set_to_none: bool = True) -> None:
            own: Any = reference()
            if not set_to_none or _PROFILES.require(_STEP, profiler):
                Optimizer.zero_grad(own, set_to_none)
                return
            for group in own.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

        changed["zero_grad"] = zero_grad


def _is_watched(optimizer: Optimizer) -> bool:
    """Return whether anything listens to an optimizer's steps."""
    before, after = _ALL_HOOKS
    everywhere = before.require(_STEP) or after.require(_STEP)
    return bool(everywhere or _PROFILES.require(_STEP, profiler) or has_step_hooks(optimizer))


_settings_of = itemgetter("momentum", "weight_decay", "maximize", "differentiable", "foreach", "fused")
_ONLY_ADDS = (0, 0, False, False, False, None)
"""The settings with which a step is the addition of gradients times a rate."""


def _sgd_step(optimizer: Optimizer, bare: Callable[[Optimizer], None], closure: Callable[[], Any] | None = None) -> Any:
    """Make a step of SGD on a CPU, with torch's own method unless it only adds."""
    loss, before = None, torch.is_grad_enabled()
    try:
        if closure is not None:
            torch.set_grad_enabled(True)
            loss = closure()
        torch.set_grad_enabled(False)
        groups: Sequence[Mapping[str, Any]] = optimizer.param_groups
        if any(_settings_of(group) != _ONLY_ADDS or type(group["lr"]) is not float for group in groups):
            bare(optimizer)
            return loss
        for group in groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moved:
                add_to_each(moved, [parameter.grad for parameter in moved], alpha=-group["lr"])
        return loss
    finally:
        torch.set_grad_enabled(before)
