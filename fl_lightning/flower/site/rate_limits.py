"""End a training at a site whose learning rates are outside what the site allows."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError

_UP_TO_ONE = ("momentum", "dampening", "eps", "lr_decay", "initial_accumulator_value", "lambd", "alpha")
"""Settings of torch's optimizers that are at most 1; a huge one makes a step huge, or almost 0."""


class RateLimits(Callback):
    """Refuse a learning rate outside the policy before any step, because a module or a schedule may set it at any time.

    A rate of 0 leaves the model alone, so that the update tells nothing but averaged buffers; a huge one writes a gradient
    over the weights, and so do a huge momentum or weight decay. A gradient that is clipped to almost nothing, and a huge
    ``eps``, make a rate small without changing it.

    Args:
        policy: the site's policy.
        clip: the norm or the value to which gradients are clipped; None for no clipping.
    """

    def __init__(self, policy: Policy, clip: float | None = None) -> None:
        self._least, self._most, self._clip = policy.min_rate, policy.max_rate, clip

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Look at the rates of the step.

        Raises:
            RefusedError: with the rate and the limits.
        """
        for group in optimizer.param_groups:
            rate = float(group["lr"])
            if not self._least <= rate <= self._most:
                raise RefusedError(
                    f"A learning rate is {rate:g}, but this site allows {self._least:g} to {self._most:g} ('policy.min_rate', "
                    "'policy.max_rate')."
                )
            if self._clip is not None and rate * self._clip < self._least:
                raise RefusedError(
                    f"'gradient_clip_val' is {self._clip:g} and a learning rate is {rate:g}, so a clipped step has at "
                    f"most {rate * self._clip:g}, but this site requires {self._least:g} ('policy.min_rate'). Raise "
                    "'federation.local.gradient_clip_val'."
                )
            limits = {
                **{name: (group[name], 1.0) for name in _UP_TO_ONE if isinstance(group.get(name), int | float)},
                "weight_decay times the rate": (rate * group.get("weight_decay", 0.0), 1.0),
                "betas": (max(group.get("betas", (0.0,))), 0.9999),
                "step_sizes": (max(group.get("step_sizes", (0.0,))), self._most),
            }
            for name, (value, most) in limits.items():
                if not 0 <= value <= most:
                    raise RefusedError(f"'{name}' of the optimizer is {float(value):g}, but this site allows 0 to {most:g}.")
