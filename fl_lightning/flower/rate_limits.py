"""End a training at a site whose learning rates are outside what the site allows."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fl_lightning.flower.policy import Policy
from fl_lightning.flower.recipe import RefusedError


class RateLimits(Callback):
    """Refuse a learning rate outside the policy before any step, because a module or a schedule may set it at any time.

    A rate of 0 leaves the model alone, so that the update tells nothing but averaged buffers; a huge one writes a gradient
    over the weights.

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
