"""Settings for clients that fail: that raise an error, run out of memory, diverge, stall or have no data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.faults."


@checks_types
@dataclass(frozen=True)
class Faults:
    """Configure what happens when a client fails in a round.

    A failure is any error in the client's own training or data, including running out of memory on the CPU or GPU; a loss or
    weights that are not finite (unless the strategy copes with them); weights of another shape than the global model's;
    training beyond the deadline; no examples. Configuration errors are not client failures: they end the run.

    Args:
        policy: ``fatal`` ends the run with the client's error; ``skip`` leaves the client out of the round and reports it.
        retries: number of times that a failed client tries again before the policy applies, >= 0. It starts from the same model
            with the same random numbers, so a retry after running out of memory gives the same result.
        min_updates: number of good updates that a round needs: a whole number >= 1, or a share in (0, 1] of the clients drawn
            for the round, rounded up. With fewer the run ends; it can be resumed from the round before.
        deadline: seconds that a client's training may take in a round, > 0, checked between steps; null for no limit.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    policy: Literal["fatal", "skip"] = "fatal"
    retries: int = 0
    min_updates: int | float = 1
    deadline: float | None = None
    on_resume = ResumeRule(free="*")

    def __post_init__(self) -> None:
        require(self.retries >= 0, _NAME + "retries", "a whole number of 0 or above", self.retries)
        least = self.min_updates
        fits = least >= 1 if isinstance(least, int) else 0 < least <= 1
        require(fits, _NAME + "min_updates", "a number of 1 or above, or a share in (0, 1]", least)
        require(self.deadline is None or self.deadline > 0, _NAME + "deadline", "above 0 seconds, or null", self.deadline)

    @property
    def skips(self) -> bool:
        """Whether a round continues without the clients that fail."""
        return self.policy == "skip"

    def needed(self, drawn: int) -> int:
        """Return how many good updates a round of ``drawn`` clients needs."""
        return self.min_updates if isinstance(self.min_updates, int) else math.ceil(self.min_updates * drawn - 1e-9)

    def check(self, drawn: int) -> None:
        """Reject a minimum of good updates that exceeds the clients of a round.

        Raises:
            ConfigurationError: naming the setting.
        """
        wanted = f"at most the {drawn} clients of a round"
        require(self.needed(drawn) <= drawn, _NAME + "min_updates", wanted, self.min_updates)
