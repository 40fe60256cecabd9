"""Run the module's optimizer and schedulers for a stack of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from fl_lightning.clients.training.schedules import Decay
from fl_lightning.compat.light_steps import has_step_hooks
from fl_lightning.compat.torch import count_as_stepped, lower_each_to, raise_each_to
from fl_lightning.errors import EngineError
from fl_lightning.rules.sgd import StepTrace, describe

ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.Adagrad,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
)
"""Elementwise optimizers, for which a step on the stack equals a step of each client."""
_REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."


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
            raise EngineError(f"The optimizer has registered hooks, which would see all stacked clients. {_REMEDY}")
        if any(config.reduce_on_plateau for config in schedules):
            raise EngineError(f"ReduceLROnPlateau would need a separate learning rate for each stacked client. {_REMEDY}")
        (self.own,) = optimizers
        self._schedules = schedules
        Decay(optimizers, schedules, decay)
        groups = [
            {**group, "params": [stacked[id(p)] for p in group["params"] if id(p) in stacked]}
            for group in self.own.param_groups
        ]
        kind: Any = type(self.own)
        begun = {"initial_accumulator_value"} & self.own.defaults.keys()  # the only option read at construction
        options = {name: self.own.defaults[name] for name in begun}
        self._stacked: Optimizer = kind([group for group in groups if group["params"]], **options)
        self._filled = [number for number, group in enumerate(groups) if group["params"]]
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
        return [tensor for group in self._stacked.param_groups for tensor in group["params"]]

    def step(self) -> None:
        """Step on all clients' gradients with the current settings."""
        for number, group in zip(self._filled, self._stacked.param_groups, strict=True):
            group.update({name: value for name, value in self.own.param_groups[number].items() if name != "params"})
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
