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

from fl_lightning.compat.private import MISSING, Private, is_tested
from fl_lightning.compat.torch import add_to_each

# The public backward pass checks its arguments in Python, for longer than a small network's takes.
_BACKWARD = Private(
    "torch", "torch.autograd.graph", "_engine_run_backward", "calls 'backward', which first checks its arguments"
)
_PROFILES = Private(
    "torch", "torch.autograd.profiler", "_is_profiler_enabled", "makes every step and 'zero_grad' as if the profiler ran"
)
# Hooks on the steps of all optimizers can be registered, but not listed.
_ALL_HOOKS = tuple(
    Private("torch", "torch.optim.optimizer", f"_global_optimizer_{when}_hooks", "makes every step as if hooks watched it")
    for when in ("pre", "post")
)
_STEP_HOOKS = tuple(
    (
        Private(
            "torch",
            "torch.optim.Optimizer",
            f"_optimizer_step_{when}_hooks",
            "finds registered hooks by registering another one",
        ),
        f"register_step_{when}_hook",
    )
    for when in ("pre", "post")
)


def backward_lightly(loss: Tensor) -> None:
    """Do what ``loss.backward()`` does."""
    if type(loss) is not Tensor or not loss.requires_grad or loss.dim() or not loss.is_floating_point():
        loss.backward()  # type: ignore[no-untyped-call]  # a subclass, an error, ...
        return
    run: Any = _BACKWARD.get(None) if is_tested("torch") else None
    if run is None:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    run((loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether hooks are registered on an optimizer; torch can register them, but not list them."""
    for private, register in _STEP_HOOKS:
        hooks: Any = private.get(MISSING, optimizer)
        if hooks is MISSING:
            handle = getattr(optimizer, register)(lambda *_: None)
            hooks = handle.hooks_dict_ref()
            handle.remove()
        if hooks:
            return True
    return False


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
            if not set_to_none or _PROFILES.get(True, profiler):
                Optimizer.zero_grad(own, set_to_none)
                return
            for group in own.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

        changed["zero_grad"] = zero_grad


def _is_watched(optimizer: Optimizer) -> bool:
    """Return whether anything listens to an optimizer's steps."""
    everywhere = any(name.get(True) for name in _ALL_HOOKS)
    return bool(_PROFILES.get(True, profiler) or has_step_hooks(optimizer) or everywhere)


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
