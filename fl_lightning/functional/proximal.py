"""Compute FedProx's proximal term (Li et al. 2020, eq. 2): mu / 2 * ||w - w_t||^2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.compat.torch import add_to_each, subtract_each


def proximal_term(parameters: Sequence[Tensor], anchors: Sequence[Tensor], mu: float) -> Tensor:
    """Return mu / 2 times the squared Euclidean distance of the parameters from their anchors, a scalar, >= 0."""
    squares = [(p - a).square().sum() for p, a in zip(parameters, anchors, strict=True)]
    return torch.stack(squares).sum() * (mu / 2)


@torch.no_grad()
def add_proximal_gradient(parameters: Sequence[Tensor], anchors: Sequence[Tensor], mu: float) -> None:
    """Add the term's gradient, mu * (w - w_t), to ``.grad`` of each parameter, in place.

    Call it after unscaling and before clipping, so that the gradient is correct under both. A parameter without a gradient
    gets one, as a term in the loss would give it.
    """
    add_to_gradients(parameters, subtract_each(list(parameters), list(anchors)), mu)


@torch.no_grad()
def add_to_gradients(parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0) -> None:
    """Add ``scale * term`` to ``.grad`` of each parameter, in place; terms have the parameters' shapes."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    add_to_each([p.grad for p in parameters if p.grad is not None], list(terms), alpha=scale)
