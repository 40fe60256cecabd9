"""Hold the models of a stack of clients: one tensor per parameter, with a leading axis of clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning.functional.model_state import ModelState
from fl_lightning.types import Snapshot

Tensors = dict[str, Tensor]


class ClientStack:
    """Hold K copies of a module's parameters and buffers.

    Args:
        module: the module, loaded with the model that clients start from.
        state: the view of the module.
        starts: the model that each client starts from; None for the module's.
        own: the parameters and buffers that each client holds, by name; the module's if it has none.

    Attributes:
        parameters: the parameters by name, each of shape (K, ...); frozen ones only if clients start from their own models.
        buffers: the buffers by name, each of shape (K, ...).
    """

    def __init__(
        self, module: LightningModule, state: ModelState, starts: Sequence[Snapshot | None], own: Sequence[Tensors]
    ) -> None:
        # A module may override 'named_parameters', and leave some out.
        parameters = nn.Module.named_parameters(module, remove_duplicate=False)
        named = dict[str, Tensor](parameters) | dict(module.named_buffers(remove_duplicate=False))
        self.size, self._device = len(starts), module.device
        self._names, self._floats, self._counters, local = state.names()
        others = any(start is not None for start in starts)
        self._held = [*state.held_tensors()]
        mine = [name for name in self._held if isinstance(named[name], nn.Parameter)]
        chosen = [*mine, *(name for name in self._names if named[name].requires_grad or others)]
        self.parameters: Tensors = {name: self._copies(named[name]) for name in chosen}
        kept = [name for name in self._held if name not in mine]
        self.buffers: Tensors = {n: self._copies(named[n]) for n in (*self._floats, *self._counters, *local, *kept)}
        self._shared = {name: named[name].detach() for name in self._names if name not in self.parameters}
        for position, start in enumerate(starts):
            if start is not None:
                self._fill(position, [*self._names, *self._floats], start.vector)
                self._fill(position, self._counters, start.counters)
        for position, tensors in enumerate(own):
            for name in tensors.keys() & {*self._held}:
                (self.parameters | self.buffers)[name][position].copy_(tensors[name])
        for name, tensor in self.parameters.items():
            tensor.requires_grad_(named[name].requires_grad)

    def _copies(self, tensor: Tensor) -> Tensor:
        return tensor.detach().expand(self.size, *tensor.shape).clone()

    def _fill(self, position: int, names: Sequence[str], source: Tensor) -> None:
        begin = 0
        for name in names:
            target = (self.parameters | self.buffers)[name][position]
            target.copy_(source[begin : begin + target.numel()].view_as(target))
            begin += target.numel()

    @property
    def trained(self) -> Tensors:
        """Return the parameters that are not frozen."""
        return {name: tensor for name, tensor in self.parameters.items() if tensor.requires_grad}

    def part(self, positions: Tensor | None) -> tuple[Tensors, Tensors]:
        """Return the parameters and buffers of some clients, or of all of them with None."""
        if positions is None:
            return {name: tensor.detach() for name, tensor in self.parameters.items()}, self.buffers
        parameters, buffers = (
            {name: tensor.detach()[positions] for name, tensor in kind.items()} for kind in (self.parameters, self.buffers)
        )
        return parameters, buffers

    def trained_of(self, position: int) -> list[Tensor]:
        """Return one client's trained parameters, in the module's order."""
        return [self.parameters[name].detach()[position] for name in self._names]

    def by_name(self, clients: Sequence[Sequence[Tensor]]) -> Tensors:
        """Stack the clients' tensors, each list in the order of :meth:`trained_of`, and return them by parameter name."""
        return {
            name: torch.stack(column) for name, column in zip(self._names, map(list, zip(*clients, strict=True)), strict=True)
        }

    def snapshots(self) -> list[Snapshot]:
        """Return each client's model."""
        vectors = self._matrix([*self._names, *self._floats])
        counters = self._matrix(self._counters).long()
        return [Snapshot(vectors[k], counters[k]) for k in range(self.size)]

    def held(self) -> list[Tensors]:
        """Return the parameters and buffers that each client holds, by name."""
        every = self.parameters | self.buffers
        return [{name: every[name].detach()[k].clone() for name in self._held} for k in range(self.size)]

    def _matrix(self, names: Sequence[str]) -> Tensor:
        rows = []
        for name in names:
            shared = self._shared.get(name)
            tensor = (self.parameters | self.buffers)[name] if shared is None else shared.expand(self.size, *shared.shape)
            rows.append(tensor.detach().reshape(self.size, -1))
        return torch.cat(rows, dim=1) if rows else torch.zeros(self.size, 0, device=self._device)
