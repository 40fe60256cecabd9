"""What a federation does where a client fails: raises, runs out of memory, diverges, stalls or has no data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fl_lightning.errors import require

_NAME = "federation.faults."


@dataclass(frozen=True)
class Faults:
    """Configure what happens when a client fails in a round.

    A failure is any error in the client's own training or data, MemoryError and the GPU's included; a loss or weights that are
    not finite (unless the strategy copes with them); weights of another shape than the global model's; training beyond the
    deadline; no examples. Wrong settings are none: they end the run.

    Args:
        policy: ``fatal`` ends the run with the client's error; ``skip`` leaves the client out of the round, and says so.
        retries: how often a client that failed tries again from the same model with the same random numbers, >= 0, before the
            policy counts: after a moment's lack of memory it comes to what it would have come to.
        min_updates: good updates that a round needs, of those that it was drawn to have: a whole number >= 1, or a share in
            (0, 1], rounded up. With fewer the run ends; it can be resumed from the round before.
        deadline: seconds that a client's training may take in a round, > 0, looked at between steps; null for any.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    policy: Literal["fatal", "skip"] = "fatal"
    retries: int = 0
    min_updates: int | float = 1
    deadline: float | None = None

    def __post_init__(self) -> None:
        require(self.policy in ("fatal", "skip"), _NAME + "policy", "fatal or skip", self.policy)
        whole = isinstance(self.retries, int) and self.retries >= 0
        require(whole, _NAME + "retries", "a whole number of 0 or above", self.retries)
        least = self.min_updates
        fits = least >= 1 if isinstance(least, int) else 0 < least <= 1
        require(fits, _NAME + "min_updates", "a number of 1 or above, or a share in (0, 1]", least)
        require(self.deadline is None or self.deadline > 0, _NAME + "deadline", "above 0 seconds, or null", self.deadline)

    @property
    def skips(self) -> bool:
        """Whether a round goes on without those who fail."""
        return self.policy == "skip"

    def needed(self, drawn: int) -> int:
        """The good updates that a round of ``drawn`` clients needs."""
        return self.min_updates if isinstance(self.min_updates, int) else math.ceil(self.min_updates * drawn - 1e-9)

    def check(self, drawn: int) -> None:
        """Refuse more good updates than a round has clients.

        Raises:
            ConfigurationError: naming the setting.
        """
        wanted = f"at most the {drawn} clients of a round"
        require(self.needed(drawn) <= drawn, _NAME + "min_updates", wanted, self.min_updates)
