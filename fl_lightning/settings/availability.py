"""Clients that are not there, do not come back in time, or are slow: simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator

_NAME = "federation.availability."


@dataclass(frozen=True)
class Availability:
    """Simulates clients as they are: all draws depend on the federation's seed and the round alone.

    Args:
        drop_out: probability in [0, 1) with which a client of a round's cohort does not deliver.
        slow: share in [0, 1] of all clients that are slow, the same ones in all rounds.
        slowness: how many times slower they are, >= 1: within the round's deadline they do 1 / slowness of their steps, rounded
            down, at least one.
        leave: probability in [0, 1] with which a client that is there is gone in the next round; in round 0 all are there.
        come_back: probability in (0, 1] with which one that is gone is there again. In the long run the share
            come_back / (leave + come_back) is there; cohorts are drawn among those.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    drop_out: float = 0.0
    slow: float = 0.0
    slowness: float = 2.0
    leave: float = 0.0
    come_back: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.drop_out < 1, _NAME + "drop_out", "from 0 to below 1", self.drop_out)
        require(0 <= self.slow <= 1, _NAME + "slow", "from 0 to 1", self.slow)
        require(self.slowness >= 1, _NAME + "slowness", "1 or above", self.slowness)
        require(0 <= self.leave <= 1, _NAME + "leave", "from 0 to 1", self.leave)
        require(0 < self.come_back <= 1, _NAME + "come_back", "above 0 and at most 1", self.come_back)

    @property
    def loses_clients(self) -> bool:
        """Whether a round may have fewer clients than it asked for."""
        return self.drop_out > 0 or self.leave > 0

    def slow_clients(self, num_clients: int, seed: int) -> frozenset[int]:
        """The slow ones: round(slow * K) of them."""
        order = torch.randperm(num_clients, generator=generator(seed, "slow clients")).tolist()
        return frozenset(order[: round(self.slow * num_clients)])

    def present(self, num_clients: int, seed: int) -> Iterator[list[int]]:
        """Yield who is there in round 0, in round 1, and so on, ascending.

        Each round's draws are its own, so that a resumed run finds the same clients.
        """
        there = torch.ones(num_clients, dtype=torch.bool)
        for round_idx in count():
            yield there.nonzero().flatten().tolist()
            draw = torch.rand(num_clients, generator=generator(seed, round_idx, "coming and going"))
            there = torch.where(there, draw >= self.leave, draw < self.come_back)

    def dropped_out(self, cohort: Sequence[int], seed: int, round_idx: int) -> frozenset[int]:
        """Who of a cohort does not deliver."""
        if not self.drop_out:
            return frozenset()
        draw = torch.rand(len(cohort), generator=generator(seed, round_idx, "drop out"))
        return frozenset(client for client, x in zip(cohort, draw.tolist(), strict=True) if x < self.drop_out)
