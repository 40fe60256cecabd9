"""Find a module's weights and buffers by kind. A federation treats each kind of tensor as follows:

=====================================  =======================================================================
parameters                             averaged; the server's optimizer steps on ``w_t - average``
floating-point buffers (persistent)    averaged with the same weights, e.g. BatchNorm's statistics; set, not stepped
integer and boolean buffers            elementwise maximum over the cohort: exact, and independent of order
buffers owned by the server            sent to the clients, never aggregated (``server_buffers``, e.g. class weights)
buffers that each client keeps         neither sent nor aggregated (``client_state``, e.g. the queue of MoCo)
held parameters and buffers            neither sent nor aggregated; each client keeps its own
buffers that are not persistent,       copied to the clients, never sent back
and complex ones
frozen parameters, and buffers that    copied to the clients; those that a client's training changes, such as a target
begin empty or not finite (or float8)  that follows the network or an observer's range, are averaged with the same weights and
                                       set, not stepped; of ``extreme_buffers``, the minimum or maximum is taken
frozen parts in evaluation mode,       the same everywhere, copied once with all their buffers: neither sent nor aggregated,
and ``constant_parts``                 unless training changes them, which is an error in ``constant_parts``
=====================================  =======================================================================

A submodule declares server-owned buffers by an attribute ``server_buffers``, a tuple of their names, and children that
never change by ``constant_parts``, a tuple of their names; a child that has a trainable parameter is sent nevertheless.
Frozen parameters may change from round to round: see ``refresh`` and ``follow`` of
:class:`~fl_lightning.functional.model_state.ModelState`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from torch import Tensor, nn

from fl_lightning.compat.torch import unsaved_buffers
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import client_state, constant_modules, is_tiny, server_buffers

Slot = tuple[nn.Module, str]
"""The owner of a tensor, and its name there, through which a tensor that user code has replaced is found."""


@dataclass(frozen=True)
class ModelSlots:
    """Hold where a module's tensors are, by kind.

    Attributes:
        parameters: trained parameters, which are averaged.
        floats: floating-point buffers, which are averaged.
        counters: integer and boolean buffers.
        local: buffers that are not sent back.
        frozen: tensors without gradients that are copied to the clients in every round.
        constants: tensors that are copied once.
        held: the tensors of which each client keeps its own, by name.
    """

    parameters: list[Slot] = field(default_factory=list)
    floats: list[Slot] = field(default_factory=list)
    counters: list[Slot] = field(default_factory=list)
    local: list[Slot] = field(default_factory=list)
    frozen: list[Slot] = field(default_factory=list)
    constants: list[Slot] = field(default_factory=list)
    held: dict[str, Slot] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[list[Slot], ...]:
        """Return all kinds but the held one, constants last."""
        return self.parameters, self.floats, self.counters, self.local, self.frozen, self.constants


def find_slots(
    module: nn.Module, moving: Container[str] = (), held: Container[str] = (), unsent: Container[str] = ()
) -> ModelSlots:
    """Find the tensors of a module.

    Args:
        module: the module.
        moving: the names of tensors without gradients that training changes nevertheless.
        held: the names of held tensors.
        unsent: the names of persistent buffers that begin complex, or with values that are not finite.

    Raises:
        ConfigurationError: if parameters are not initialised, or trained ones complex.
    """
    found, constant = ModelSlots(), constant_modules(module)
    _add_parameters(module, constant, moving, held, found)
    for prefix, owner in module.named_modules():
        # Not what 'state_dict' returns: a module may override it, or have hooks that leave tensors out of checkpoints.
        owned = {*server_buffers(owner), *client_state(owner), *unsaved_buffers(owner)}
        for name, buffer in owner.named_buffers(recurse=False, remove_duplicate=False):
            path = f"{prefix}.{name}".lstrip(".")
            if id(owner) in constant:
                (found.frozen if path in moving else found.constants).append((owner, name))
                continue
            sent = name not in owned and path not in unsent
            if sent and path in held:
                found.held[path] = (owner, name)
            elif name not in owned and buffer.is_floating_point() and (path in unsent or is_tiny(buffer)):
                found.frozen.append((owner, name))
            else:
                kind = found.local if not sent else found.floats if buffer.is_floating_point() else found.counters
                kind.append((owner, name))
    return found


def second_names(slots: ModelSlots) -> dict[Slot, Slot]:
    """Return the later names of tensors that are registered as several buffers, and the first name of each."""
    first: dict[int, Slot] = {}
    found = {}
    for slot in (slot for kind in slots.kinds[1:] for slot in kind):
        earlier = first.setdefault(id(getattr(*slot)), slot)
        if earlier is not slot:
            found[slot] = earlier
    return found


def _add_parameters(
    module: nn.Module, constant: set[int], moving: Container[str], held: Container[str], found: ModelSlots
) -> None:
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            path = f"{prefix}.{name}".lstrip(".")
            if parameter.requires_grad or isinstance(parameter, nn.parameter.UninitializedParameter):
                _require_averageable(path, parameter)
            if id(parameter) in seen:  # tied weights are sent once
                continue
            seen.add(id(parameter))
            if id(owner) in constant and path not in moving:
                found.constants.append((owner, name))
            elif path in held:
                found.held[path] = (owner, name)
            elif not parameter.requires_grad:
                found.frozen.append((owner, name))
            else:
                found.parameters.append((owner, name))


def _require_averageable(path: str, parameter: Tensor) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter) or not parameter.is_floating_point():
        raise ConfigurationError(
            f"Parameter '{path}' is not an initialised floating-point tensor and cannot be averaged. Run one batch through "
            "lazy layers in the module's __init__, and store complex weights as real pairs."
        )
