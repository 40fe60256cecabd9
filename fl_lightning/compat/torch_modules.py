"""Private names of torch's modules and parameters: the registers that hold their parts, tensors and hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fl_lightning.compat.private import MISSING, Private

__all__ = [
    "Hooks",
    "buffers_of",
    "children_of",
    "hooks_of",
    "is_batch_norm",
    "parameters_of",
    "parts_of",
    "unsaved_buffers",
]

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
_HOOKS_INSTEAD = "finds registered hooks by registering another one"
_GRADIENT_HOOKS = tuple(
    (Private("torch", "torch.Tensor", name, _HOOKS_INSTEAD), register)
    for name, register in (
        ("_backward_hooks", "register_hook"),
        ("_post_accumulate_grad_hooks", "register_post_accumulate_grad_hook"),
    )
)
_MODULE_HOOKS = tuple(
    (Private("torch", "torch.nn.Module", name, _HOOKS_INSTEAD), register)
    for name, register in (
        ("_forward_hooks", "register_forward_hook"),
        ("_forward_pre_hooks", "register_forward_pre_hook"),
        ("_backward_hooks", "register_full_backward_hook"),
        ("_backward_pre_hooks", "register_full_backward_pre_hook"),
    )
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
        for private, _ in names:  # no comprehension, whose call counts: a client's turn looks at each of its parts
            found.append(private.read(owner))
        return found
    except AttributeError:
        found.clear()
    for private, register in names:
        own: Any = private.get(MISSING, owner)
        found.append(_register_of(owner, register) if own is MISSING else own)
    return found


def _register_of(owner: nn.Module | nn.Parameter, register: str) -> Hooks | None:
    """Return a register of hooks, to which the handle of a new hook refers."""
    frozen = isinstance(owner, nn.Parameter) and not owner.requires_grad
    try:
        if frozen:  # it can still have hooks from before
            owner.requires_grad_(True)
        handle = getattr(owner, register)(lambda *_: None)
    except RuntimeError:  # a tensor without gradients, or a module with hooks of the deprecated kind
        return None
    finally:
        if frozen:
            owner.requires_grad_(False)
    found: Hooks = handle.hooks_dict_ref()
    handle.remove()
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
