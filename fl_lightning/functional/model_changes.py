"""Find the tensors without gradients that training has changed nevertheless."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import declared_constant, is_tiny
from fl_lightning.functional.model_slots import Slot


def changed_tensors(module: nn.Module, slots: Sequence[tuple[str, Slot]], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the frozen tensors that differ from those before training, by name.

    Args:
        module: the module that has been trained.
        slots: the frozen tensors that may have changed, with their names.
        before: the tensors before training, by name.

    Raises:
        ConfigurationError: if a part that the module declares constant has changed, or a parameter that is not real.
    """
    changed = [(name, owner, getattr(owner, attribute)) for name, (owner, attribute) in slots]
    changed = [(name, owner, tensor) for name, owner, tensor in changed if differs(tensor.detach(), before[name])]
    declared = declared_constant(module) if changed else set()
    for name, owner, tensor in changed:
        if id(owner) in declared:
            raise ConfigurationError(
                f"Training changed '{name}', which {type(module).__name__} declares constant. Remove its part "
                "from 'constant_parts', or do not change it."
            )
        if isinstance(tensor, nn.Parameter) and not tensor.is_floating_point():
            raise ConfigurationError(
                f"Training changed the frozen parameter '{name}' of {type(module).__name__}, which cannot be "
                f"averaged, since it is {tensor.dtype}. Make it a buffer, of which the federation takes the maximum "
                "over the clients, or do not change it."
            )
    return {name: tensor.detach().clone() for name, _, tensor in changed}


def differs(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of a model differ in shape or in a value; NaN equals NaN."""
    other = other.to(one.device)
    if one.shape != other.shape:
        return True
    if is_tiny(one):
        return not torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return not (torch.equal(one, other) or (one.is_floating_point() and torch.allclose(one, other, 0, 0, equal_nan=True)))
