"""Rounds of several periods, between which clients mix their models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.mixing import mix
from fl_lightning.routes.base import Cohort, Route
from fl_lightning.types import ClientUpdate


class PeriodRoute(Route):
    """P times: every client trains, then mixes its model with others'. At the end the strategy gets the clients' models.

    Counters such as BatchNorm's number of batches stay a client's own. Optimizers start afresh in each period.

    Args:
        periods: P, >= 1; local training happens P times a round.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    needs_all_clients = True
    passes_models = True

    def __init__(self, periods: int) -> None:
        require(periods >= 1, "federation.route.periods", "1 or above", periods)
        self.periods = periods

    @abstractmethod
    def mixing(self, cohort: Cohort, updates: Sequence[ClientUpdate], period: int) -> Tensor | None:
        """Who takes how much of whose model after a period: rows that sum to 1, shape (m, m); None for no mixing."""

    def peers(self, size: int) -> int:
        """How many other clients a client sends its model to, and hears from, at each mixing."""
        return min(1, size - 1)

    def run(self, cohort: Cohort) -> None:
        """See :meth:`Route.run`."""
        updates: list[ClientUpdate] = []
        chains = [[client] for client in cohort.clients]
        for period in range(self.periods):
            starts = {update.client: update.snapshot for update in updates}
            trained = cohort.train(chains, starts, period)
            if updates:  # only the first period's model came from the server, only the last one's goes there
                trained = [replace(new, bytes_down=0, bytes_up=0) for new in trained]
                trained = [new.after(old) for new, old in zip(trained, updates, strict=True)]
            updates = self._mixed(cohort, trained, period)
        cohort.hand_in(updates)

    def _mixed(self, cohort: Cohort, updates: list[ClientUpdate], period: int) -> list[ClientUpdate]:
        matrix = self.mixing(cohort, updates, period)
        if matrix is None:
            return updates
        states = mix(torch.stack([update.snapshot.vector for update in updates]), matrix)
        moved = cohort.model_bytes * self.peers(len(updates))
        return [
            replace(u, state=state, bytes_down=u.bytes_down + moved, bytes_up=u.bytes_up + moved)
            for u, state in zip(updates, states, strict=True)
        ]
