"""Train the shared and the held part one after the other, as FedRep's and FedBABU's clients do."""

from __future__ import annotations

from torch import Tensor

from fl_lightning.rules.base import ClientRule, LocalStart, Part


class Phases(ClientRule):
    """Train only the part that clients hold in the first epochs of a turn, and only the shared part in the others.

    Args:
        held_epochs: the number of first epochs that train the held part, >= 0.
    """

    stacks = False

    def __init__(self, held_epochs: int) -> None:
        self.held_epochs = held_epochs

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return nothing: the rule changes no gradient of the part that trains."""
        return []

    def resting(self, epoch: int) -> Part | None:
        """Return the part that does not train in an epoch of the turn, counted from 0."""
        return "shared" if epoch < self.held_epochs else "held"
