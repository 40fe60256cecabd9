"""Compute the coordinate-wise median, as FedMedian does (Yin et al. 2018; FedLoss thesis, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.robust import coordinatewise
from fl_lightning.strategies.base import JointStrategy, ModelScorer
from fl_lightning.strategies.broken import warn_of_broken
from fl_lightning.types import ClientUpdate


class FedMedian(JointStrategy):
    """Set each weight to the median of the clients' weights, or to the mean of the two middle ones for an even cohort.

    The median ignores the numbers of examples. Up to half of the clients may send arbitrary values; a warning names
    clients whose weights are not finite.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, FedMedian
        >>> federation = FederatedOrchestrator(FedMedian())
    """

    reads = ()
    private_with: tuple[str, ...] = ("local", "examples")
    tolerates_broken = True

    def combine(self, updates: Sequence[ClientUpdate], scorer: ModelScorer) -> tuple[Tensor, list[float]]:
        """Return the median; see :meth:`JointStrategy.combine`. Every client weighs 1.

        Raises:
            ClientError: if so many models are not finite that the median is not finite either.
        """
        median = coordinatewise([update.snapshot.vector for update in updates], _median)
        if not bool(torch.isfinite(median).all()):
            raise ClientError(
                f"The median of {len(updates)} models is not finite: at least half of them have diverged. Lower the clients' "
                "learning rate, or clip with 'federation.local.gradient_clip_val'."
            )
        warn_of_broken("FedMedian", updates)
        return median, [1.0] * len(updates)


def _median(ordered: Tensor) -> Tensor:
    return (to_float64(ordered[(len(ordered) - 1) // 2]) + to_float64(ordered[len(ordered) // 2])) / 2
