"""What hostile clients send instead of what they have trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.errors import require

_NAME = "federation.attackers.model."


@dataclass(frozen=True)
class Crowd:
    """What attackers that act together know of the honest clients' updates of the round.

    Attributes:
        mean: of the changes ``w_k - w_t``, float64, shape (p,).
        std: likewise, with m - 1 in the denominator; 0 for a single one.
        honest: how many honest clients there are.
        attackers: how many attackers.
    """

    mean: Tensor
    std: Tensor
    honest: int
    attackers: int


class ModelAttack(ABC):
    """Changes an attacker's update. Buffers such as BatchNorm's statistics are sent as they are.

    Attributes:
        needs_crowd: whether it looks at the honest clients' updates: attackers then answer last.
    """

    needs_crowd: bool = False

    @abstractmethod
    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """What the attacker says that it has changed.

        Args:
            change: ``w_k - w_t`` after honest training, float64, shape (p,).
            crowd: where :attr:`needs_crowd`; None in a round without honest clients.
            generator: of this client and round, on the CPU.

        Returns:
            float64, shape (p,).
        """


class SignFlip(ModelAttack):
    """The opposite of what was learnt, ``-scale * change``.

    Args:
        scale: > 0.
    """

    def __init__(self, scale: float = 1.0) -> None:
        require(0 < scale < math.inf, _NAME + "scale", "above 0 and finite", scale)
        self.scale = scale

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """See :meth:`ModelAttack.forge`."""
        return -self.scale * change


class ScaledUpdate(ModelAttack):
    """``scale * change``, more weight than is due; with wrong labels, model replacement (Bagdasaryan et al. 2020).

    Args:
        scale: > 0; the number of clients replaces the whole average.
    """

    def __init__(self, scale: float = 10.0) -> None:
        require(0 < scale < math.inf, _NAME + "scale", "above 0 and finite", scale)
        self.scale = scale

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """See :meth:`ModelAttack.forge`."""
        return self.scale * change


class GaussianUpdate(ModelAttack):
    """Noise instead of an update, each number from N(0, std^2).

    Args:
        std: > 0, in the units of the weights.
    """

    def __init__(self, std: float = 1.0) -> None:
        require(0 < std < math.inf, _NAME + "std", "above 0 and finite", std)
        self.std = std

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """See :meth:`ModelAttack.forge`."""
        noise = torch.randn(change.shape, generator=generator, dtype=torch.float64)
        return self.std * noise.to(change.device)


class ALIE(ModelAttack):
    """A Little Is Enough: the honest mean, z standard deviations aside in every number (Baruch et al. 2019, Algorithm 3).

    Close enough to the honest ones to be kept by medians, trimmed means and Krum. In a round without two honest clients it
    sends the mean.

    Args:
        z: null for the paper's: with m clients, f of them attackers, and s = floor(m / 2 + 1) - f whom they must win over,
            the largest z with P(Z < z) <= (m - f - s) / (m - f).
    """

    needs_crowd = True

    def __init__(self, z: float | None = None) -> None:
        require(z is None or math.isfinite(z), _NAME + "z", "finite, or null", z)
        self.z = z

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """See :meth:`ModelAttack.forge`."""
        if crowd is None:
            return change
        return crowd.mean - self._deviations(crowd) * crowd.std

    def _deviations(self, crowd: Crowd) -> float:
        if self.z is not None:
            return self.z
        size = crowd.honest + crowd.attackers
        to_win = size // 2 + 1 - crowd.attackers
        share = (crowd.honest - to_win) / crowd.honest
        # Beyond the last honest one the quantile is infinite: with half of all, one honest client is worth the rest.
        share = min(share, 1 - 1 / (2 * crowd.honest))
        return max(0.0, float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64))))


class InnerProductManipulation(ModelAttack):
    """``-scale`` times the honest mean: the aggregate's inner product with it turns negative (Xie et al. 2020).

    Args:
        scale: epsilon, > 0; small ones pass filters by distance, large ones turn averages.
    """

    needs_crowd = True

    def __init__(self, scale: float = 1.0) -> None:
        require(0 < scale < math.inf, _NAME + "scale", "above 0 and finite", scale)
        self.scale = scale

    def forge(self, change: Tensor, crowd: Crowd | None, generator: torch.Generator) -> Tensor:
        """See :meth:`ModelAttack.forge`."""
        return -self.scale * (change if crowd is None else crowd.mean)
