"""Hold the models of a stack of clients, one tensor per parameter with a leading axis of clients, and step on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from fl_lightning.clients.stacked.effects import REMEDY
from fl_lightning.clients.turn import Decay
from fl_lightning.compat.light_steps import has_step_hooks
from fl_lightning.compat.torch import count_as_stepped, lower_each_to, raise_each_to
from fl_lightning.errors import EngineError
from fl_lightning.functional.model_state import ModelState
from fl_lightning.rules.sgd import StepTrace, describe
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
        kept = [*self._floats, *self._counters, *local, *(name for name in self._held if name not in mine)]
        self.parameters, self.buffers = (
            {n: named[n].detach().expand(self.size, *named[n].shape).clone() for n in names} for names in (chosen, kept)
        )
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
        parameters = {name: tensor.detach() for name, tensor in self.parameters.items()}
        if positions is None:
            return parameters, self.buffers
        return {name: t[positions] for name, t in parameters.items()}, {name: t[positions] for name, t in self.buffers.items()}

    def trained_of(self, position: int) -> list[Tensor]:
        """Return one client's trained parameters, in the module's order."""
        return [self.parameters[name].detach()[position] for name in self._names]

    def by_name(self, clients: Sequence[Sequence[Tensor]]) -> Tensors:
        """Stack the clients' tensors, each list in the order of :meth:`trained_of`, and return them by parameter name."""
        return {name: torch.stack(column) for name, *column in zip(self._names, *clients, strict=True)}

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


ELEMENTWISE = (SGD, Adam, AdamW, Adagrad, Adadelta, Adamax, NAdam, RAdam, RMSprop)
"""Elementwise optimizers, for which a step on the stack equals a step of each client."""


class StackedOptimizer:
    """Step on stacked parameters with the current settings of the module's own optimizer and schedulers.

    Args:
        optimizers: the module's optimizers, of which there must be exactly one.
        schedules: Lightning's configurations of the module's schedulers.
        stacked: the stacked tensor of each parameter, by the parameter's id.
        decay: the factor on the learning rates in this round.
        mu: the strength of the proximal terms, which FedNova's ||a_k|| includes.
        by_reference: whether FedNova's steps count in proportion to the configured rate.

    Raises:
        EngineError: if the optimizer or a scheduler cannot be stacked.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        schedules: Sequence[Any],
        stacked: Mapping[int, Tensor],
        decay: float,
        mu: float,
        by_reference: bool = False,
    ) -> None:
        if len(optimizers) != 1 or type(optimizers[0]) not in ELEMENTWISE:
            names = " and ".join(type(optimizer).__name__ for optimizer in optimizers) or "no optimizer"
            known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
            raise EngineError(
                f"The module configures {names}, but stacked clients support only one of {known}. Use one of them, or set "
                "'federation.local.engine' to 'fabric' or 'trainer'."
            )
        if has_step_hooks(optimizers[0]):
            raise EngineError(f"The optimizer has registered hooks, which would see all stacked clients. {REMEDY}")
        if any(config.reduce_on_plateau for config in schedules):
            raise EngineError(f"ReduceLROnPlateau would need a separate learning rate for each stacked client. {REMEDY}")
        (self.own,) = optimizers
        self._schedules = schedules
        Decay(optimizers, schedules, decay)
        own = [(group, [stacked[id(p)] for p in group["params"] if id(p) in stacked]) for group in self.own.param_groups]
        self._groups = [(group, tensors) for group, tensors in own if tensors]
        kind: Any = type(self.own)
        begun = {"initial_accumulator_value"} & self.own.defaults.keys()  # the only option read at construction
        options = {name: self.own.defaults[name] for name in begun}
        self._stacked: Optimizer = kind([{**group, "params": tensors} for group, tensors in self._groups], **options)
        count_as_stepped(self.own)  # it never steps, and its scheduler would warn about that
        self.trace = StepTrace(mu)
        if by_reference:
            group = self.own.param_groups[0]
            self.trace.reference = float(group.get("initial_lr", group["lr"]))
        self.words = describe(self.own)
        self.num_steps = 0

    @property
    def tensors(self) -> list[Tensor]:
        """Return the stacked parameters that it updates."""
        return [tensor for _, tensors in self._groups for tensor in tensors]

    def step(self) -> None:
        """Step on all clients' gradients with the current settings."""
        for (own, tensors), group in zip(self._groups, self._stacked.param_groups, strict=True):
            group.update(own, params=tensors)
        self._stacked.step()
        self.num_steps += 1

    def schedule(self, interval: str, index: int) -> None:
        """Step the schedulers that are due."""
        for config in self._schedules:
            if config.interval == interval and (index + 1) % config.frequency == 0:
                config.scheduler.step()


def clip(parameters: Sequence[Tensor], limit: float, algorithm: str) -> None:
    """Clip each client's gradients, as torch's ``clip_grad_norm_`` and ``clip_grad_value_`` do for one model.

    Args:
        parameters: the stacked parameters, each of shape (K, ...), with gradients in ``.grad``.
        limit: the largest norm of a client's gradient, or the largest absolute value.
        algorithm: the kind of clipping, ``norm`` or ``value``.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if algorithm == "value":
        raise_each_to(gradients, -limit)
        lower_each_to(gradients, limit)
        return
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients])
    factors = (limit / (norms.norm(dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *(1 for _ in gradient.shape[1:])).to(gradient.dtype))
