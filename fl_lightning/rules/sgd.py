"""Describe the steps of torch's SGD in closed form; other optimizers have no rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.optim import Optimizer

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.local_steps import StepCoefficients


class SGDSettings(NamedTuple):
    """Hold the settings that determine the coefficient of a gradient in SGD's result."""

    rate: float
    momentum: float
    dampening: float
    nesterov: bool


def plain(optimizer: Any) -> Optimizer:
    """Return the optimizer inside Lightning's wrapper, or the optimizer itself."""
    inner: Optimizer = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
    return inner


def describe(optimizer: Optimizer) -> str:
    """Describe an optimizer in words, e.g. ``SGD with momentum 0.9``."""
    inner = plain(optimizer)
    momenta = {float(group.get("momentum", 0.0)) for group in inner.param_groups} - {0.0}
    return type(inner).__name__ + (f" with momentum {', '.join(map(str, sorted(momenta)))}" if momenta else "")


def sgd_settings(optimizer: Optimizer) -> SGDSettings | None:
    """Return SGD's settings at this step; None for another optimizer, or if its parameter groups differ."""
    inner = plain(optimizer)
    if type(inner) is not torch.optim.SGD:
        return None
    found: SGDSettings | None = None  # runs once per step, so it avoids sets
    for group in inner.param_groups:
        own = SGDSettings(float(group["lr"]), float(group["momentum"]), float(group["dampening"]), bool(group["nesterov"]))
        if group["maximize"] or (found is not None and own != found):
            return None
        found = own
    return found


def follow(steps: StepCoefficients, settings: SGDSettings | None, mu: float) -> StepCoefficients | None:
    """Add a step with these settings, and return the sum; None as soon as a step has no rule."""
    if settings is None:
        return None
    steps.step(settings.rate, settings.momentum, settings.dampening, settings.nesterov, mu)
    return steps


def require_plain_sgd(optimizers: Sequence[Optimizer], words: str) -> None:
    """Refuse optimizers for which SCAFFOLD's control variates are not defined.

    Raises:
        ConfigurationError: if an optimizer is not plain SGD with one learning rate.
    """
    settings = sgd_settings(optimizers[0]) if len(optimizers) == 1 else None
    if settings is None or settings.momentum:
        raise ConfigurationError(
            f"SCAFFOLD is defined for plain SGD with one learning rate, but the clients train with {words}. "
            "Return torch.optim.SGD without momentum from the module's 'configure_optimizers', or use another strategy."
        )
