"""Track how local gradients enter a client's update: FedNova's ||a_k||, and SCAFFOLD's control variates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.functional.blocks import blocks
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.recycling import large_empty

_BLOCK = 2**15
"""The number of elements processed at once, so that they stay in the processor's cache."""


@dataclass
class StepCoefficients:
    """Follow SGD step by step and add up the coefficients of the local gradients (Wang et al. 2020, section 4).

    With gradients g_i, SGD of rate eta, momentum rho and a proximal term mu ends at ``w_t - eta * sum_i a_i g_i``. The sum of
    the coefficients follows from running the same recursion with every gradient set to 1 (torch's SGD, whose momentum
    buffer starts as the first gradient): ``u <- rho u + 1 - eta mu A; A <- A + u``, from u = A = 0. It is tau for plain SGD
    and ``[tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)`` for momentum alone. If the rate changes during the round,
    steps count in proportion to the largest rate.

    Attributes:
        distance: the sum of the coefficients times the rates.
        rates: the sum of the rates of all steps.
    """

    distance: float = 0.0
    rates: float = 0.0
    _buffer: float | None = None
    _largest_rate: float = 0.0

    def step(self, rate: float, momentum: float = 0.0, dampening: float = 0.0, nesterov: bool = False, mu: float = 0.0) -> None:
        """Add one step of SGD with these settings and a proximal term of strength ``mu``."""
        gradient = 1.0 - mu * self.distance
        move = gradient
        if momentum:
            self._buffer = gradient if self._buffer is None else momentum * self._buffer + (1.0 - dampening) * gradient
            move = gradient + momentum * self._buffer if nesterov else self._buffer
        self._largest_rate = max(self._largest_rate, rate)
        self.distance += rate * move
        self.rates += rate

    @property
    def normalizer(self) -> float:
        """Return ||a_k||; 0 before the first step of a rate above 0."""
        return self.distance / self._largest_rate if self._largest_rate else 0.0


def control_change(control: Tensor, start: Sequence[Tensor], end: Tensor, rates: float) -> Tensor:
    """Return c_k+ - c_k of SCAFFOLD, option II: (w_t - y) / (sum of the K rates) - c (Karimireddy et al. 2020, Algorithm 1).

    Args:
        control: the server's c, shape (p,).
        start: the parameters before local training, one after another: p numbers in all.
        end: the parameters y after it, shape (p,).
        rates: the sum of the steps' learning rates, K * eta if the rate is constant.

    Returns:
        The change, shape (p,), in the dtype and on the device of ``end``; 0 if no step moved the client.
    """
    if not rates:
        return torch.zeros_like(end)
    change = large_empty(end.numel(), end.dtype, end.device)
    sizes = [tensor.numel() for tensor in start]
    for before, *others in zip(start, *(torch.split(v, sizes) for v in (change, control, end)), strict=True):
        for w, own, c, y in zip(*(blocks(v, _BLOCK, end.device) for v in (before.reshape(-1), *others)), strict=True):
            difference = to_float64(w.to(y.device)) - y
            own.copy_(difference.div_(rates).sub_(c.to(difference.device)))
    return change


def control_correction(control: Tensor, own: Tensor | None) -> Tensor:
    """Return c - c_k, which SCAFFOLD adds to each step's gradients (Karimireddy et al. 2020, Algorithm 1).

    Args:
        control: the server's c, float64, shape (p,).
        own: the client's c_k, shape (p,); None if it is 0.

    Returns:
        The correction, shape (p,), in the dtype of c_k.
    """
    if own is None:
        return control
    correction = large_empty(own.numel(), own.dtype)
    for result, c, mine in zip(*(blocks(v, _BLOCK, control.device) for v in (correction, control, own)), strict=True):
        result.copy_(c.to(mine.device) - mine)
    return correction
