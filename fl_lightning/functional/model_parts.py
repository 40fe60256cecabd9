"""Tell which parts of a module are trained, constant, or averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_lightning.compat.torch import parameters_of, parts_of, unsaved_buffers


def constant_modules(module: nn.Module) -> set[int]:
    """Return the ids of the modules inside parts that never change: declared ones, and frozen ones in evaluation mode."""
    resting = [part for part in module.modules() if part is not module and _rests(part)]
    return declared_constant(module) | {id(inner) for part in resting for inner in part.modules()}


def declared_constant(module: nn.Module) -> set[int]:
    """Return the ids of the modules inside ``constant_parts``, without parts that have a trainable parameter."""
    declared = [getattr(owner, name) for owner in module.modules() for name in getattr(owner, "constant_parts", ())]
    frozen = [part for part in declared if not any(parameter.requires_grad for parameter in part.parameters())]
    return {id(inner) for part in frozen for inner in part.modules()}


def _rests(part: nn.Module) -> bool:
    parameters = list(part.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters) and not any(m.training for m in part.modules())


def trained_parts(module: nn.Module) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return the inputs that decide what is frozen: the flag of each parameter, and the training mode of each part."""
    parts = parts_of(module)
    flags = [parameter.requires_grad for parameter in parameters_of(module, parts).values()]
    return tuple(flags), tuple([part.training for part in parts.values()])


def can_be_averaged(buffer: Tensor) -> bool:
    """Return whether a buffer can be averaged over clients: it is real, and has values, which are finite."""
    return not buffer.is_complex() and buffer.numel() > 0 and bool(torch.isfinite(widened(buffer)).all())


def is_tiny(tensor: Tensor) -> bool:
    """Return whether a tensor has floating-point numbers of one byte, with which torch does not compute."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor of one-byte floating-point numbers as float32, any other unchanged."""
    return tensor.float() if is_tiny(tensor) else tensor


def give_own_memory(module: nn.Module) -> None:
    """Copy buffers of which several numbers share memory, as after ``expand``, because they cannot be set."""
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            shared = not is_lazy(buffer) and any(s == 0 and n > 1 for s, n in zip(buffer.stride(), buffer.shape, strict=True))
            if shared:
                setattr(part, name, buffer.detach().clone(memory_format=torch.contiguous_format))


def is_computed(part: Any, name: str) -> bool:
    """Return whether a layer computes a tensor from its parameters before each use, as torch's older weight norm does."""
    return isinstance(part, nn.Module) and any(hasattr(part, f"{name}_{end}") for end in ("orig", "g"))


def never_averaged(module: nn.Module) -> tuple[str, ...]:
    """Return the names of buffers that cannot be averaged: complex ones, and those without values, or not finite ones."""
    found = module.named_buffers(remove_duplicate=False)
    return tuple(name for name, buffer in found if not is_lazy(buffer) and not can_be_averaged(buffer))


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a module by name, also those that its own ``state_dict`` leaves out."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    unsaved = {f"{prefix}.{name}".lstrip(".") for prefix, part in module.named_modules() for name in unsaved_buffers(part)}
    return {name: tensor for name, tensor in found.items() if name not in unsaved}


def copy_of_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of :func:`saved_tensors`."""
    return {name: tensor.detach().clone() for name, tensor in saved_tensors(module).items()}


@torch.no_grad()
def restore_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors by name into a module that has tensors of these names and shapes."""
    own = saved_tensors(module)
    for name, value in tensors.items():
        own[name].copy_(value)


def client_state(part: nn.Module) -> tuple[str, ...]:
    """Return the names of attributes and buffers that each client keeps for itself."""
    return _declared_names(part, "client_state")


def server_buffers(part: nn.Module) -> tuple[str, ...]:
    """Return the names of buffers that the server sets and clients only receive."""
    return _declared_names(part, "server_buffers")


def extreme_buffers(part: nn.Module) -> dict[str, str]:
    """Return which buffers of a part are the least ("min") or largest ("max") values so far, by name.

    A module declares them: ``extreme_buffers = {"low": "min"}``. Those of torch's observers are known.
    """
    declared: dict[str, str] = getattr(type(part), "extreme_buffers", {})
    observers = torch.ao.quantization
    keeps = (observers.MinMaxObserver, observers.PerChannelMinMaxObserver)
    averages = (observers.MovingAverageMinMaxObserver, observers.MovingAveragePerChannelMinMaxObserver)
    known = {"min_val": "min", "max_val": "max"} if isinstance(part, keeps) and not isinstance(part, averages) else {}
    return known | declared


def declared_names(parts: Mapping[str, Any], attribute: str) -> dict[str, tuple[str, ...]]:
    """Return the names that parts declare in an attribute, by the name of the part; most parts declare none.

    Args:
        parts: the parts by name.
        attribute: ``client_state``, or ``turn_state`` for attributes that every turn of a client sets again, such as a copy of
            the weights at its start.
    """
    declaring = [name for name, part in parts.items() if hasattr(type(part), attribute) or attribute in vars(part)]
    return {name: _declared_names(parts[name], attribute) for name in declaring}


def _declared_names(part: nn.Module, attribute: str) -> tuple[str, ...]:
    declared = hasattr(type(part), attribute)  # torch takes long to say that a module lacks an attribute
    names: Any = getattr(part, attribute) if declared else vars(part).get(attribute, ())
    return (names,) if isinstance(names, str) else tuple(names)
