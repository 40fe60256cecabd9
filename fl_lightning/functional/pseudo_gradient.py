"""Turn the clients' aggregate into a gradient for the server's optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fl_lightning.functional.blocks import blocks


@torch.no_grad()
def set_pseudo_gradient(parameters: Iterable[nn.Parameter], aggregate: Tensor) -> float:
    """Put the pseudo-gradient ``w_t - aggregate`` into ``.grad`` of each trained parameter (Reddi et al. 2021, Algorithm 1).

    Args:
        parameters: the global model's trained parameters w_t, p numbers in all.
        aggregate: the aggregate, whose first p entries are parameters; float64 for full precision.

    Returns:
        The L2 norm of the pseudo-gradient.
    """
    offset = 0
    squares: list[Tensor] = []
    for parameter in parameters:
        target = aggregate[offset : offset + parameter.numel()]
        offset += parameter.numel()
        if parameter.is_contiguous():  # block by block: avoids a second model in float64
            parameter.grad = torch.empty_like(parameter)
            flat = (parameter.detach().view(-1), parameter.grad.view(-1), target)
            pieces = (blocks(vector, device=parameter.device) for vector in flat)
            for weights, gradient, wanted in zip(*pieces, strict=True):
                difference = weights.to(wanted) - wanted
                gradient.copy_(difference)
                squares.append(torch.dot(difference, difference))
        else:
            difference = parameter.to(target) - target.view_as(parameter)
            parameter.grad = difference.to(parameter)
            squares.append(difference.square().sum())
    return math.sqrt(float(torch.stack(squares).double().sum())) if squares else 0.0
