"""View a module's weights and buffers as flat vectors. A federation treats each kind of tensor as follows:

=====================================  =======================================================================
parameters                             averaged; the server's optimizer steps on ``w_t - average``
floating-point buffers (persistent)    averaged with the same weights, e.g. BatchNorm's statistics; set, not stepped
integer and boolean buffers            elementwise maximum over the cohort: exact, and independent of order
buffers owned by the server            sent to the clients, never aggregated (``server_buffers``, e.g. class weights)
buffers that are not persistent        copied to the clients, never sent back
complex buffers, and those that hold   constants such as an attention mask of -inf: copied to the clients, never sent back
values that are not finite
frozen parameters                      the server's stay unchanged: copied to the clients, neither sent nor aggregated
frozen parts in evaluation mode,       the same everywhere, copied once with all their buffers: neither sent nor aggregated
and ``constant_parts``
=====================================  =======================================================================

A submodule declares server-owned buffers by an attribute ``server_buffers``, a tuple of their names, and children that
never change by ``constant_parts``, a tuple of their names; a child that has a trainable parameter is sent nevertheless.
Frozen parameters may change from round to round: see :meth:`ModelState.refresh` and :meth:`ModelState.follow`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fl_lightning.compat.torch import copy_to_each
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.recycling import large_empty
from fl_lightning.functional.spread import squared_distance
from fl_lightning.functional.sums import Grid, grid_of
from fl_lightning.types import Snapshot

_Slot = tuple[nn.Module, str]
_BLOCK = 2**16
"""The number of elements processed at once, so that they stay in the processor's cache."""


class ModelState:
    """View one module's tensors, found once and read many times.

    Tensors are looked up through their owner, so that a buffer replaced by user code is found.

    Raises:
        ConfigurationError: if parameters are complex or not initialised.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._version = 0
        self._followed: tuple[int, int] | None = None
        self._arrange()

    def _arrange(self) -> None:
        module = self._module
        self._trained = _trained(module)
        self._constant_modules = _constant_modules(module)
        self._constants: list[_Slot] = []
        self._frozen: list[_Slot] = []
        self._source: ModelState | None = None
        self._parameters = list(self._find_parameters())
        self._floats: list[_Slot] = []
        self._counters: list[_Slot] = []
        self._local: list[_Slot] = []
        persistent = module.state_dict().keys()
        for prefix, owner in module.named_modules():
            owned = getattr(owner, "server_buffers", ())
            if id(owner) in self._constant_modules:
                self._constants += [(owner, name) for name, _ in owner.named_buffers(recurse=False)]
                continue
            for name, buffer in owner.named_buffers(recurse=False):
                sent = f"{prefix}.{name}".lstrip(".") in persistent and name not in owned and _can_be_averaged(buffer)
                kind = self._local if not sent else self._floats if buffer.is_floating_point() else self._counters
                kind.append((owner, name))

    def _find_parameters(self) -> Iterator[_Slot]:
        seen: set[int] = set()
        for prefix, owner in self._module.named_modules():
            for name, parameter in owner.named_parameters(recurse=False):
                if isinstance(parameter, nn.parameter.UninitializedParameter) or not parameter.is_floating_point():
                    raise ConfigurationError(
                        f"Parameter '{f'{prefix}.{name}'.lstrip('.')}' is not an initialised floating-point tensor and cannot "
                        "be averaged. Run one batch through lazy layers in the module's __init__, and store complex weights as "
                        "real pairs."
                    )
                if id(parameter) in seen:  # tied weights are sent once
                    continue
                seen.add(id(parameter))
                if id(owner) in self._constant_modules:
                    self._constants.append((owner, name))
                elif not parameter.requires_grad:
                    self._frozen.append((owner, name))
                else:
                    yield owner, name

    def refresh(self) -> bool:
        """Re-check which parameters are frozen, and return whether that, and the length of :meth:`vector`, has changed."""
        if _trained(self._module) == self._trained:
            return False
        self._arrange()
        self._version += 1
        return True

    def follow(self, server: ModelState) -> None:
        """Freeze and unfreeze this copy's parameters as the server's are, and use the same layout."""
        for mine, theirs in zip(self._module.parameters(), server._module.parameters(), strict=True):
            if mine.requires_grad is not theirs.requires_grad:
                mine.requires_grad_(theirs.requires_grad)
        if self._followed != (id(server), server._version):
            theirs_by_name = dict(server._module.named_modules())
            for name, part in self._module.named_modules():
                for mode in ("training", "track_running_stats"):  # Lightning's finetuning switches the second in BatchNorm
                    if name in theirs_by_name and hasattr(part, mode):
                        setattr(part, mode, getattr(theirs_by_name[name], mode))
            self._arrange()
            self._followed = id(server), server._version

    def names(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return the names of parameters, averaged buffers, counters, and buffers that are not sent back."""
        prefixes = {id(owner): f"{prefix}.".lstrip(".") for prefix, owner in self._module.named_modules()}
        parameters, floats, counters, local = ([prefixes[id(o)] + name for o, name in slots] for slots in self._kinds())
        return parameters, floats, counters, local

    @staticmethod
    def _tensors(slots: list[_Slot]) -> list[Tensor]:
        return [getattr(owner, name).detach() for owner, name in slots]

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters themselves, each once."""
        return [getattr(owner, name) for owner, name in self._parameters]

    def vector(self) -> Tensor:
        """Return a copy of parameters and averaged buffers, one float vector of shape (d,)."""
        tensors = self._tensors(self._parameters) + self._tensors(self._floats)
        if not tensors:
            raise ConfigurationError(
                "The module has no trainable parameters, so there is nothing to federate. Add a network, or thaw parameters."
            )
        flat = [tensor.reshape(-1) for tensor in tensors]
        if any(tensor.dtype != flat[0].dtype for tensor in flat):
            return torch.cat(flat)
        return torch.cat(flat, out=large_empty(sum(t.numel() for t in flat), flat[0].dtype, flat[0].device))

    def counters(self) -> Tensor:
        """Return a copy of the integer and boolean buffers, int64, shape (c,)."""
        tensors = [t.reshape(-1).long() for t in self._tensors(self._counters)]
        return torch.cat(tensors) if tensors else torch.zeros(0, dtype=torch.int64, device=self.device)

    @property
    def device(self) -> torch.device:
        """Return the device of the first parameter."""
        return self.parameters()[0].device if self._parameters else torch.device("cpu")

    @torch.no_grad()
    def copy_from(self, other: ModelState) -> None:
        """Copy every parameter and buffer of another state of the same architecture."""
        pairs = [*zip(self._kinds(), other._kinds(), strict=True), (self._frozen, other._frozen)]
        if self._source is not other:
            pairs.append((self._constants, other._constants))
            self._source = other
        for mine, theirs in pairs:
            if mine:
                copy_to_each(self._tensors(mine), other._tensors(theirs))

    @torch.no_grad()
    def load(self, snapshot: Snapshot) -> None:
        """Load parameters, averaged buffers and counters; local and server-owned buffers stay unchanged."""
        slots = self._parameters + self._floats
        self._fill(slots, snapshot.vector)
        self._fill(self._counters, snapshot.counters)

    def _fill(self, slots: list[_Slot], source: Tensor) -> None:
        start = 0
        for tensor in self._tensors(slots):
            tensor.copy_(source[start : start + tensor.numel()].view_as(tensor))
            start += tensor.numel()

    def snapshot(self) -> Snapshot:
        """Return a copy of :meth:`vector` and :meth:`counters`."""
        return Snapshot(self.vector(), self.counters())

    @property
    def size(self) -> int:
        """Return d, the length of :meth:`vector`."""
        return sum(getattr(owner, name).numel() for owner, name in (*self._parameters, *self._floats))

    @property
    def num_parameters(self) -> int:
        """Return p: the first p entries of :meth:`vector` are parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _kinds(self) -> tuple[list[_Slot], ...]:
        return self._parameters, self._floats, self._counters, self._local

    @torch.no_grad()
    def distance(self, vector: Tensor) -> float:
        """Return the L2 norm of the difference between these parameters and the first p entries of ``vector``, shape (d,)."""
        offset, total = 0, 0.0
        for parameter in self.parameters():
            theirs = vector[offset : offset + parameter.numel()]
            offset += parameter.numel()
            total += squared_distance(theirs, parameter.detach().reshape(-1))
        return math.sqrt(total)

    @torch.no_grad()
    def set_gradient_towards(self, aggregate: Tensor) -> float:
        """Put the pseudo-gradient ``w_t - aggregate`` into ``.grad`` of each trained parameter.

        Args:
            aggregate: the aggregate, shape (d,), in the layout of :meth:`vector`; float64 for full precision.

        Returns:
            The L2 norm of the pseudo-gradient.
        """
        offset = 0
        squares: list[Tensor] = []
        for parameter in self.parameters():
            target = aggregate[offset : offset + parameter.numel()]
            offset += parameter.numel()
            if parameter.is_contiguous():  # block by block: avoids a second model in float64
                parameter.grad = torch.empty_like(parameter)
                flat = (parameter.detach().view(-1), parameter.grad.view(-1), target)
                pieces = (torch.split(vector, _BLOCK) for vector in flat)
                for weights, gradient, wanted in zip(*pieces, strict=True):
                    difference = weights.to(wanted) - wanted
                    gradient.copy_(difference)
                    squares.append(torch.dot(difference, difference))
            else:
                difference = parameter.to(target) - target.view_as(parameter)
                parameter.grad = difference.to(parameter)
                squares.append(difference.square().sum())
        return math.sqrt(float(torch.stack(squares).double().sum())) if squares else 0.0

    @torch.no_grad()
    def set_buffers(self, aggregate: Tensor, counters: Tensor) -> None:
        """Set averaged buffers from the tail of ``aggregate``, shape (d,), and integer ones from ``counters``, (c,)."""
        self._fill(self._floats, aggregate[self.num_parameters :])
        self._fill(self._counters, counters)

    def grid(self, largest: float | None) -> Grid | None:
        """Return the grid on which such models are summed with weights up to ``largest``; None if the finest is needed."""
        parameters = [parameter.detach() for parameter in self.parameters()]
        if largest is None or not parameters or any(parameter.dtype == torch.float64 for parameter in parameters):
            return None
        magnitudes = [(parameter.numel(), magnitude(parameter)) for parameter in parameters]
        return grid_of(magnitudes, self.size - self.num_parameters, largest)

    def nbytes(self, *, upward: bool) -> int:
        """Return the bytes of a message in the tensors' own dtypes: frozen tensors excluded, upward also local buffers."""
        kinds = self._kinds()[:3] if upward else self._kinds()
        return sum(t.numel() * t.element_size() for slots in kinds for t in self._tensors(slots))


def _constant_modules(module: nn.Module) -> set[int]:
    """Return the ids of the modules inside parts that never change: declared ones, and frozen ones in evaluation mode."""
    declared = [getattr(owner, name) for owner in module.modules() for name in getattr(owner, "constant_parts", ())]
    resting = [part for part in module.modules() if part is not module and _rests(part)]
    frozen = [part for part in declared if not any(parameter.requires_grad for parameter in part.parameters())]
    return {id(inner) for part in (*frozen, *resting) for inner in part.modules()}


def _rests(part: nn.Module) -> bool:
    parameters = list(part.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters) and not any(m.training for m in part.modules())


def _trained(module: nn.Module) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Return the inputs that decide what is frozen: the flag of each parameter, and the training mode of each part."""
    return tuple(p.requires_grad for p in module.parameters()), tuple(part.training for part in module.modules())


def _can_be_averaged(buffer: Tensor) -> bool:
    return not buffer.is_complex() and bool(torch.isfinite(buffer).all())
