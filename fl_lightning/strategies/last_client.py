"""Keeping one client's weights: what an average over one shared network object computes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart


class LastClient(RunningStrategy):
    """``w_{t+1} = w_k`` of the client that happens to be the last of the round: a baseline, not a method.

    The listing of the FedNova comparison thesis gives every client the same network object, so that what it calls FedAvg
    and FedProx keeps only the last client's weights. This reproduces its tables. Which client is last is drawn each round.

    Args:
        seed: of the draw.
    """

    needs_own_training = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def start_round(self, start: RoundStart) -> None:
        """Draw who is last."""
        self._last = start.cohort[derive_seed(self.seed, start.round_idx, "last") % len(start.cohort)]

    def largest_weight(self, examples: Sequence[int]) -> float:
        """The last one's, 1."""
        return 1.0

    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """See :meth:`RunningStrategy.take_in`."""
        assert update.state is not None
        if update.client != self._last:
            return 0.0
        sums.add("state", update.state)
        return 1.0

    def aggregate(self, sums: Sums) -> Tensor:
        """That client's state."""
        return sums.take("state")
