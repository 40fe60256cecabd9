"""Forge the updates that hostile clients send instead of those they have trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import ChecksTypes

_NAME = "federation.attackers.model."


@dataclass(frozen=True)
class Crowd:
    """Hold the knowledge that colluding attackers have of the honest clients' updates of the round.

    Attributes:
        mean: the mean of the changes ``w_k - w_t``, float64, shape (p,).
        std: their standard deviation, float64, shape (p,), with m - 1 in the denominator; 0 for a single one.
        honest: the number of honest clients.
        attackers: the number of attackers.
    """

    mean: Tensor
    std: Tensor
    honest: int
    attackers: int


class ModelAttack(ChecksTypes, ABC):
    """Change an attacker's update. Buffers such as BatchNorm's statistics are sent unchanged.

    Attributes:
        needs_crowd: whether the attack reads the honest clients' updates; attackers then respond last.
    """

    needs_crowd: bool = False

    @abstractmethod
    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """Return the change that the attacker sends.

        Args:
            change: ``w_k - w_t`` after honest training, float64, shape (p,).
            crowd: the honest updates if ``needs_crowd``; None in a round without honest clients.
            generator: the random numbers of this client and round, on the CPU.

        Returns:
            The forged change, float64, shape (p,).
        """


class SignFlip(ModelAttack):
    """Send the opposite of the trained change, ``-scale * change``.

    Args:
        scale: the factor, > 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        require(0 < scale < math.inf, _NAME + "scale", "above 0 and finite", scale)
        self.scale = scale

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """Return the forged change; see :meth:`ModelAttack.forge`."""
        return -self.scale * change


class ScaledUpdate(ModelAttack):
    """Send ``scale * change`` to gain weight; with wrong labels, this is model replacement (Bagdasaryan et al. 2020).

    Args:
        scale: the factor, > 0. With the number of clients as the factor, the update replaces the whole average.
    """

    def __init__(self, scale: float = 10.0) -> None:
        require(0 < scale < math.inf, _NAME + "scale", "above 0 and finite", scale)
        self.scale = scale

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """Return the forged change; see :meth:`ModelAttack.forge`."""
        return self.scale * change


class GaussianUpdate(ModelAttack):
    """Send noise instead of an update, each number from N(0, std^2).

    Args:
        std: the standard deviation, > 0, in the units of the weights.
    """

    def __init__(self, std: float = 1.0) -> None:
        require(0 < std < math.inf, _NAME + "std", "above 0 and finite", std)
        self.std = std

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """Return the forged change; see :meth:`ModelAttack.forge`."""
        noise = torch.randn(change.shape, generator=generator, dtype=torch.float64)
        return self.std * noise.to(change.device)


class ALIE(ModelAttack):
    """Send the honest mean, shifted by z standard deviations in every number (Baruch et al. 2019, Algorithm 3).

    A Little Is Enough is close enough to the honest updates to pass medians, trimmed means and Krum. In a round with
    one honest client, the attack sends that client's change; in a round with none, the attacker's own.

    Args:
        z: the shift; null for the paper's: with m clients, f of them attackers, and s = floor(m / 2 + 1) - f clients that they
            must win over, the largest z >= 0 with P(Z < z) at most (m - f - s) / (m - f) and 1 - 1 / (2 (m - f)).
    """

    needs_crowd = True

    def __init__(self, z: float | None = None) -> None:
        require(z is None or math.isfinite(z), _NAME + "z", "finite, or null", z)
        self.z = z

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """Return the forged change; see :meth:`ModelAttack.forge`."""
        if crowd is None:
            return change
        return crowd.mean - self._deviations(crowd) * crowd.std

    def _deviations(self, crowd: Crowd) -> float:
        if self.z is not None:
            return self.z
        size = crowd.honest + crowd.attackers
        to_win = size // 2 + 1 - crowd.attackers
        share = (crowd.honest - to_win) / crowd.honest
        # Beyond the last honest client the quantile is infinite. With half of all, one honest client is worth the rest.
        share = min(share, 1 - 1 / (2 * crowd.honest))
        return max(0.0, float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64))))


class InnerProductManipulation(ModelAttack):
    """Send ``-scale`` times the honest mean, so that the aggregate's inner product with it is negative (Xie et al. 2020).

    Args:
        scale: epsilon, > 0; small values pass filters by distance, large ones reverse averages.
    """

    needs_crowd = True

    def __init__(self, scale: float = 1.0) -> None:
        require(0 < scale < math.inf, _NAME + "scale", "above 0 and finite", scale)
        self.scale = scale

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """Return the forged change; see :meth:`ModelAttack.forge`."""
        return -self.scale * (change if crowd is None else crowd.mean)
