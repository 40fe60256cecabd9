"""Describe the steps of torch's SGD in closed form; other optimizers have no rule."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
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


_settings_in = itemgetter("lr", "momentum", "dampening", "nesterov", "maximize")


class StepTrace:
    """Note the settings of each step of a turn, and sum up the coefficients of the gradients when it has ended.

    Steps like the previous one are only counted, since this runs in every step of every client.

    Attributes:
        mu: the strength of the proximal terms.
        reference: the rate to which steps count in proportion; see :class:`~fl_lightning.functional.StepCoefficients`.
    """

    def __init__(self, mu: float = 0.0, reference: float | None = None) -> None:
        self.mu, self.reference = mu, reference
        self._settings: list[SGDSettings | None] = []
        self._counts: list[int] = []
        self._last: tuple[Any, ...] | None = None

    def refer_to(self, optimizers: Sequence[Any]) -> None:
        """Let steps count in proportion to the first rate of the first optimizer, if that is SGD."""
        if optimizers and sgd_settings(optimizers[0]) is not None:
            group = optimizers[0].param_groups[0]
            self.reference = float(group.get("initial_lr", group["lr"]))

    def note(self, optimizer: Optimizer | None) -> None:
        """Note a step of an optimizer with its current settings; None for a step that has no rule."""
        groups = [] if optimizer is None else optimizer.param_groups
        if self._last is not None and len(groups) == 1 and _settings_in(groups[0]) == self._last:
            self._counts[-1] += 1
            return
        settings = None if optimizer is None else sgd_settings(optimizer)
        self._settings.append(settings)
        self._counts.append(1)
        now = _settings_in(groups[0]) if settings is not None and len(groups) == 1 else ()
        self._last = now if now and all(type(value) in (float, int, bool) for value in now) else None  # no tensors

    def coefficients(self) -> StepCoefficients | None:
        """Return the sum over the steps so far; None if one of them has no rule."""
        total = StepCoefficients(reference=self.reference)
        for settings, count in zip(self._settings, self._counts, strict=True):
            if settings is None:
                return None
            for _ in range(count):
                total.step(*settings, mu=self.mu)
        return total


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
