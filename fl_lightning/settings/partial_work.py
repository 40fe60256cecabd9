"""Clients that do less work than asked (FedProx, Li et al. 2020, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator
from fl_lightning.utilities.argument_types import checks_types


@checks_types
@dataclass(frozen=True)
class PartialWork:
    """Give a share of each round's clients, drawn anew, fewer local epochs: a number from 1 to E - 1, drawn uniformly.

    Args:
        share: share of the cohort in [0, 1]; round(share * m) of its m clients are stragglers.
        stragglers: ``keep`` the work of stragglers, as FedProx does, or ``drop`` them from the round, as FedAvg does.

    Raises:
        ConfigurationError: for a share outside its range, or if every client would be dropped.
    """

    share: float = 0.0
    stragglers: Literal["keep", "drop"] = "keep"
    on_resume = ResumeRule(on_purpose="share stragglers")

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, "federation.local.partial_work.share", "from 0 to 1", self.share)

    @property
    def drops(self) -> bool:
        """Whether a cohort loses clients."""
        return self.share > 0 and self.stragglers == "drop"

    def check(self, epochs: int, cohort_size: int) -> None:
        """Reject settings that leave less than one epoch to train, or no clients in a round.

        Raises:
            ConfigurationError: naming the setting to change.
        """
        if self.share:
            require(epochs >= 2, "federation.local.max_epochs", "2 or above, since 'partial_work' lets some do fewer", epochs)
        if self.drops:
            left = cohort_size - round(self.share * cohort_size)
            wanted = f"a share that leaves at least one of the round's {cohort_size} clients"
            require(left >= 1, "federation.local.partial_work.share", wanted, self.share)

    def epochs(self, cohort: Sequence[int], epochs: int, seed: int, round_idx: int) -> dict[int, int]:
        """Return the local epochs of this round's stragglers, by client; they depend only on (seed, round_idx)."""
        draw = generator(seed, round_idx, "partial work")
        order = torch.randperm(len(cohort), generator=draw).tolist()[: round(self.share * len(cohort))]
        return {cohort[position]: int(torch.randint(1, epochs, (1,), generator=draw)) for position in order}
