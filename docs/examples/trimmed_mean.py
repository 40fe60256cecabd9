"""A strategy in one file outside the package: the coordinate-wise trimmed mean (Yin et al. 2018, Definition 2).

PYTHONPATH=docs/examples fl-lightning fit --config configs/adafed_mnist.yaml --federation.strategy trimmed_mean.TrimmedMean
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning import ClientUpdate, ConfigurationError, JointStrategy, Worth


class TrimmedMean(JointStrategy):
    """Each weight becomes the mean of the clients' weights without the smallest and the largest ``trim`` of them.

    Args:
        trim: how many clients to leave out on either side of each weight, >= 0.

    Raises:
        ConfigurationError: for a negative number, or if no client would be left.
    """

    def __init__(self, trim: int = 1) -> None:
        if trim < 0:
            raise ConfigurationError(f"'federation.strategy.trim' must be 0 or above, but is {trim}. Leave 1 out, say.")
        self.trim = trim

    def combine(self, updates: Sequence[ClientUpdate], worth: Worth) -> tuple[Tensor, list[float]]:
        """The trimmed mean; every client weighs 1."""
        left = len(updates) - 2 * self.trim
        if left < 1:
            raise ConfigurationError(
                f"A trimmed mean without {self.trim} on either side leaves none of {len(updates)} clients. Lower "
                "'federation.strategy.trim', or raise 'federation.clients_per_round'."
            )
        states = torch.stack([update.state.double() for update in updates if update.state is not None])
        kept = states.sort(dim=0).values[self.trim : self.trim + left]
        return kept.mean(dim=0), [1.0] * len(updates)
