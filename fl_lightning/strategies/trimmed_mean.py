"""Compute the coordinate-wise trimmed mean (Yin et al. 2018, Definition 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.robust import check_attackers, coordinatewise, expected_attackers
from fl_lightning.strategies.base import JointStrategy, ModelScorer
from fl_lightning.strategies.broken import warn_of_broken
from fl_lightning.types import ClientUpdate


class TrimmedMean(JointStrategy):
    """Set each weight to the mean of the clients' weights without the f smallest and the f largest of them.

    The mean ignores the numbers of examples. A warning names clients whose weights are not finite.

    Args:
        attackers: f as a number, or as a share of the round's models in [0, 0.5), rounded up.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, TrimmedMean
        >>> federation = FederatedOrchestrator(TrimmedMean(attackers=1))
    """

    reads = ()
    private_with: tuple[str, ...] = ("local", "examples")
    tolerates_broken = True

    def __init__(self, attackers: int | float = 0.25) -> None:
        check_attackers(attackers)
        self.attackers = attackers

    def combine(self, updates: Sequence[ClientUpdate], scorer: ModelScorer) -> tuple[Tensor, list[float]]:
        """Return the trimmed mean; see :meth:`JointStrategy.combine`. Every client weighs 1.

        Raises:
            ConfigurationError: if no model would be left.
            ClientError: if more models than f are not finite.
        """
        trim = expected_attackers(self.attackers, len(updates))
        left = len(updates) - 2 * trim
        if left < 1:
            raise ConfigurationError(
                f"A trimmed mean that removes {trim} models on each side leaves none of a round's {len(updates)}. Lower "
                "'federation.strategy.attackers', or raise 'federation.clients_per_round'."
            )
        states = [update.snapshot.vector for update in updates]
        mean = coordinatewise(states, lambda ordered: to_float64(ordered[trim : trim + left]).mean(dim=0))
        if not bool(torch.isfinite(mean).all()):
            raise ClientError(
                f"The trimmed mean of {len(updates)} models is not finite: more than {trim} have diverged. Lower the clients' "
                "learning rate, clip with 'federation.local.gradient_clip_val', or raise 'federation.strategy.attackers'."
            )
        warn_of_broken("TrimmedMean", updates)
        return mean, [1.0] * len(updates)
