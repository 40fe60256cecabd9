"""What can be said in closed form about a client's optimizer: torch's SGD, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.optim import Optimizer

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.local_steps import StepCoefficients


class SGDSettings(NamedTuple):
    """Hold the settings that decide with which coefficient a gradient enters SGD's result."""

    rate: float
    momentum: float
    dampening: float
    nesterov: bool


def plain(optimizer: Any) -> Optimizer:
    """Return the optimizer inside of Lightning's wrapper, or the optimizer itself."""
    inner: Optimizer = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
    return inner


def describe(optimizer: Optimizer) -> str:
    """An optimizer in words, e.g. ``SGD with momentum 0.9``."""
    inner = plain(optimizer)
    momenta = {float(group.get("momentum", 0.0)) for group in inner.param_groups} - {0.0}
    return type(inner).__name__ + (f" with momentum {', '.join(map(str, sorted(momenta)))}" if momenta else "")


def sgd_settings(optimizer: Optimizer) -> SGDSettings | None:
    """SGD's settings at this step; None for another optimizer, or where its parameter groups differ."""
    inner = plain(optimizer)
    if type(inner) is not torch.optim.SGD:
        return None
    found = {
        SGDSettings(float(g["lr"]), float(g["momentum"]), float(g["dampening"]), bool(g["nesterov"]))
        for g in inner.param_groups
        if not g["maximize"]
    }
    return found.pop() if len(found) == 1 else None


def follow(steps: StepCoefficients, settings: SGDSettings | None, mu: float) -> StepCoefficients | None:
    """Add a step with these settings; None as soon as one has no rule."""
    if settings is None:
        return None
    steps.step(settings.rate, settings.momentum, settings.dampening, settings.nesterov, mu)
    return steps


def require_plain_sgd(optimizers: Sequence[Optimizer], words: str) -> None:
    """Refuse what SCAFFOLD's control variates are not defined for.

    Raises:
        ConfigurationError: naming the optimizer.
    """
    settings = sgd_settings(optimizers[0]) if len(optimizers) == 1 else None
    if settings is None or settings.momentum:
        raise ConfigurationError(
            f"SCAFFOLD is defined for plain SGD with one learning rate, but the clients train with {words}. "
            "Let the module's 'configure_optimizers' give torch.optim.SGD without momentum, or use another strategy."
        )
