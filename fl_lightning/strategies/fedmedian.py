"""FedMedian: the coordinate-wise median (Yin et al. 2018; FedLoss thesis, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.strategies.base import JointStrategy, Worth
from fl_lightning.types import ClientUpdate


class FedMedian(JointStrategy):
    """Each weight becomes the median of the clients' weights, the mean of the two middle ones for an even cohort.

    Numbers of examples do not count. Up to half of the clients may send anything.
    """

    def combine(self, updates: Sequence[ClientUpdate], worth: Worth) -> tuple[Tensor, list[float]]:
        """See :meth:`JointStrategy.combine`. Every client weighs 1."""
        states = torch.stack([update.state for update in updates if update.state is not None])
        ordered = states.sort(dim=0).values
        lower, upper = ordered[(len(updates) - 1) // 2], ordered[len(updates) // 2]
        return (lower.double() + upper.double()) / 2, [1.0] * len(updates)
