"""Simulate clients whose tasks are related: their true weights, and examples drawn from them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["regression", "classification", "clusters"]


def related_weights(num_clients: int, groups: int, features: int, spread: float, generator: torch.Generator) -> Tensor:
    """Draw true weights: ``w_t = centre of group (t mod G) + spread * own deviation``, all from N(0, I).

    Args:
        num_clients: the number of clients K.
        groups: the number of groups G, at least 1.
        features: the number of features d.
        spread: the size of the deviations; 0 gives all clients of a group the same weights.
        generator: draws centres, then deviations.

    Returns:
        The weights, shape (K, d), float64.
    """
    centres = torch.randn(groups, features, generator=generator, dtype=torch.float64)
    deviations = torch.randn(num_clients, features, generator=generator, dtype=torch.float64)
    return centres[torch.arange(num_clients) % groups] + spread * deviations


def related_examples(
    weights: Tensor, shifts: Tensor, clients: Tensor, groups: int, kind: Kind, noise: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw examples of the clients' tasks; eps is standard normal noise of each example.

    ==================  ============================  =========================================
    kind                inputs of client t            target
    ==================  ============================  =========================================
    ``regression``      x ~ N(shift_t, I)             y = <w_t, x> + noise * eps
    ``classification``  x ~ N(shift_t, I)             1 if <w_t, x> + noise * eps > 0, else 0
    ``clusters``        x ~ N(w_t + shift_t,          the client's group, t mod G
                        noise**2 I)
    ==================  ============================  =========================================

    Args:
        weights: w_t, float64, shape (K, d).
        shifts: shift_t, float64, shape (K, d).
        clients: the client of each example, int64, shape (n,).
        groups: the number of groups G.
        kind: see above.
        noise: the size of the noise, at least 0.
        generator: draws inputs, then noise.

    Returns:
        Inputs, float64, shape (n, d), and targets, shape (n,), float64 for ``regression`` and int64 otherwise.
    """
    normal = torch.randn(len(clients), weights.shape[1], generator=generator, dtype=torch.float64)
    own = weights[clients]
    if kind == "clusters":
        return own + shifts[clients] + noise * normal, clients % groups
    inputs = normal + shifts[clients]
    eps = torch.randn(len(clients), generator=generator, dtype=torch.float64)
    values = (own * inputs).sum(dim=1) + noise * eps
    return inputs, values if kind == "regression" else (values > 0).long()


def with_outliers(targets: Tensor, share: float, noise: float, generator: torch.Generator) -> Tensor:
    """Return targets of which a share has a second noise: ``y + noise * eps`` with eps from N(0, 1).

    Args:
        targets: y, shape (n,), floating point.
        share: the probability that a target is an outlier, from 0 to 1.
        noise: the size of the outliers' noise, at least 0.
        generator: draws which ones, then eps of all.

    Returns:
        Targets of the same shape and dtype.
    """
    chosen = torch.rand(len(targets), generator=generator, dtype=torch.float64) < share
    eps = torch.randn(len(targets), generator=generator, dtype=torch.float64)
    return targets + (noise * eps * chosen).to(targets.dtype)
