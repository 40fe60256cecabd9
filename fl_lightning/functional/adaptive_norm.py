"""Let the clipping norm follow a quantile of the clients' norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fl_lightning.errors import ConfigurationError


class AdaptiveNorm:
    """Count the changes that were not clipped, and move the norm by the noisy count.

    Args:
        norm: the norm of the first round.
        quantile: the share of the clients whose changes should not be clipped.
        rate: the step of the norm's logarithm.

    Attributes:
        norm: the current norm.
    """

    def __init__(self, norm: float, quantile: float, rate: float) -> None:
        self.norm, self._quantile, self._rate = norm, quantile, rate
        self._whole: dict[int, bool] = {}

    def note(self, client: int, norm: float) -> None:
        """Note on a client's rank whether its change was left whole."""
        self._whole[client] = norm <= self.norm

    def take_count(self, delivered: Iterable[int]) -> float:
        """Return the sum over delivered changes of this rank of 1/2 if they were left whole, and of -1/2 if clipped."""
        own = sum(0.5 if self._whole[client] else -0.5 for client in delivered if client in self._whole)
        self._whole.clear()
        return own

    def moved(self, count: float, clients: int) -> float:
        """Return the next round's norm.

        Args:
            count: the noisy sum of all ranks.
            clients: the number of clients in the round, including those that failed, which count as 0.
        """
        return self.norm * math.exp(-self._rate * (count / clients + 0.5 - self._quantile))


def noise_of_changes(multiplier: float, count_noise: float) -> float:
    """Return the noise multiplier of changes that with a noisy count costs what the given multiplier costs alone.

    Replacing a client moves the sum of changes by up to 2 norms, and the count by up to 1, or 2 halves. Both have Gaussian
    noise, so their squared shifts in standard deviations add up (Andrew et al. 2021, Theorem 1):
    ``(z^-2 - (2 sigma_b)^-2)^(-1/2)``.

    Args:
        multiplier: z > 0, the noise multiplier of both together.
        count_noise: sigma_b, the standard deviation of the noise on the count.

    Raises:
        ConfigurationError: if the count alone costs more.
    """
    if not 2 * count_noise > multiplier:
        raise ConfigurationError(
            f"'count_noise' is {count_noise:g}, but must be above {multiplier / 2:g}, half of the noise "
            "multiplier, because the noisy count alone would cost more than both together. Raise it, or leave it out."
        )
    return float((multiplier**-2 - (2 * count_noise) ** -2) ** -0.5)
