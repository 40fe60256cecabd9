"""Add up the updates of a round, for a strategy that needs only sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fl_lightning.functional.returned import as_number
from fl_lightning.functional.sums import Sums
from fl_lightning.server.federation import Federation
from fl_lightning.server.moved_tensors import MovedTensors
from fl_lightning.server.round_result import Aggregate
from fl_lightning.strategies.base import ModelScorer, RunningStrategy
from fl_lightning.types import ClientUpdate


class RoundSums:
    """Add up the updates that arrive on this rank.

    Args:
        federation: the parts of the federation.
    """

    def __init__(self, federation: Federation) -> None:
        self._strategy, self._server, self._comm = federation.strategy, federation.server, federation.comm
        self._moved = MovedTensors(federation.server)
        self._sums = Sums(federation.trainer.strategy.root_device)

    def begin(self, examples: Sequence[int]) -> None:
        """Choose the resolution of the sums, equally on every rank, after the strategy has begun the round.

        Args:
            examples: the number of examples of each expected update, on any rank.
        """
        assert isinstance(self._strategy, RunningStrategy)
        self._sums = Sums(self._sums.device, self._strategy.grids(examples, self._server.grid))

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Add an update, and return it with its weight."""
        weight = self.accumulated(update, self._sums)
        self._moved.add(update.snapshot.moved, weight, self._sums)
        return replace(update, weight=weight)

    def accumulated(self, update: ClientUpdate, sums: Sums) -> float:
        """Let the strategy add an update to sums, and return its weight."""
        assert isinstance(self._strategy, RunningStrategy)
        source = f"{type(self._strategy).__name__}.accumulate returned"
        return as_number(self._strategy.accumulate(update, sums), source, "Return the update's weight, for the log.")

    def total(self) -> Sums:
        """Return the sums over all ranks; ranks exchange data."""
        self._comm.add_sums(self._sums)
        return self._sums

    def aggregate(self, updates: list[ClientUpdate], chains: Sequence[Sequence[int]], scorer: ModelScorer) -> Aggregate:
        """Return the strategy's aggregate; see :meth:`UpdateBuffer.aggregate`."""
        assert isinstance(self._strategy, RunningStrategy)
        sums = self.total()
        weight_of = {update.client: update.weight for update in updates}
        weights = [math.fsum(weight_of[client] for client in chain) for chain in chains if chain]
        return Aggregate(self._strategy.aggregate(sums), updates, self._moved.result(weights, sums, self._comm))

    def close(self) -> None:
        """Do nothing: sums are in memory."""
