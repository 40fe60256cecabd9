"""End a training at a site whose learning rates are outside what the site allows."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fl_lightning.flower.policy import Policy
from fl_lightning.flower.recipe import RefusedError


class RateLimits(Callback):
    """Refuse a learning rate outside the policy before any step, because a module or a schedule may set it at any time.

    A rate of 0 leaves the model alone, so that the update tells nothing but averaged buffers; a huge one writes a gradient
    over the weights, and so do a huge momentum or weight decay.

    Args:
        policy: the site's policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._least, self._most = policy.min_rate, policy.max_rate

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
            limits = {
                "momentum": (group.get("momentum", 0.0), 1.0),
                "dampening": (group.get("dampening", 0.0), 1.0),
                "weight_decay times the rate": (rate * group.get("weight_decay", 0.0), 1.0),
                "betas": (max(group.get("betas", (0.0,))), 0.9999),
                "step_sizes": (max(group.get("step_sizes", (0.0,))), self._most),
            }
            for name, (value, most) in limits.items():
                if not 0 <= value <= most:
                    raise RefusedError(f"'{name}' of the optimizer is {float(value):g}, but this site allows 0 to {most:g}.")
