"""Keep one client's weights, as an average over one shared network object does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from fl_lightning.core.capabilities import Capability, Need, ResumeRule
from fl_lightning.errors import ClientError
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import ONLY_SUMS, RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart


class LastClient(RunningStrategy):
    """Keep the model of the last client of the round, ``w_{t+1} = w_k``: a baseline, not a method.

    The listing of the FedNova comparison thesis gives every client the same network object, so its FedAvg and FedProx keep
    only the last client's weights. This strategy reproduces its tables. It draws the last client at random each round.

    Args:
        seed: the seed of the draw.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, LastClient
        >>> federation = FederatedOrchestrator(LastClient(seed=1))
    """

    reads = ()
    private_with: tuple[str, ...] = ("local", "examples")
    needs_own_training = True
    on_resume = ResumeRule(stays="seed")

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def needs(self) -> Iterator[Need]:
        """Return what the strategy needs of other parts of a federation."""
        yield Need(Capability.SINGLE_UPDATES, "LastClient keeps one client's model", ONLY_SUMS)
        yield from super().needs()

    def start_round(self, start: RoundStart) -> None:
        """Draw the last client."""
        self._round_idx = start.round_idx
        self._last = start.cohort[derive_seed(self.seed, start.round_idx, "last") % len(start.cohort)]

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return the last client's weight, 1."""
        return 1.0

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add the last client's update; see :meth:`RunningStrategy.accumulate`."""
        if update.client != self._last:
            return 0.0
        sums.add("state", update.snapshot.vector)
        return 1.0

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the last client's state.

        Raises:
            ClientError: if the last client's update is missing.
        """
        if not sums.sizes():
            raise ClientError(
                f"LastClient drew client {self._last} as the last one of round {self._round_idx}, but has no update from it: "
                "the client failed. Let it try again with 'federation.faults.retries', or use FedAvg."
            )
        return sums.take("state")
