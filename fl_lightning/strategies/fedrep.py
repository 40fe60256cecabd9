"""Train heads and a common representation in turns, as FedRep does (Collins et al. 2021, Algorithm 1)."""

from __future__ import annotations

from typing import Literal

from fl_lightning.errors import require
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.phases import Phases
from fl_lightning.strategies.fedavg import FedAvg


class FedRep(FedAvg):
    """Average a representation; in each turn, a client first trains its own head for ``head_epochs`` local epochs.

    The head is what ``federation.personal`` matches. In a turn, a client trains its head on the representation that it
    received, and then the representation below the new head; only the latter is sent. FedPer trains both together.

    Args:
        head_epochs: the first local epochs of a turn, which train the head, >= 1 and below ``federation.local.max_epochs``. The
            paper trains the head for 10 epochs and the representation for 1 to 5.
        weighting: the weighting of the average, as in FedAvg.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, FedRep, LocalTraining, PersonalPart
        >>> local = LocalTraining(max_epochs=5)
        >>> federation = FederatedOrchestrator(FedRep(head_epochs=2), local, personal=[PersonalPart(names="head.*")])
    """

    private_with: tuple[str, ...] = ("central", "local", "examples")
    needs_held_parts = True
    compares_clients = True

    def __init__(self, head_epochs: int = 1, weighting: Literal["examples", "uniform"] = "examples") -> None:
        require(head_epochs >= 1, "federation.strategy.head_epochs", "1 or above", head_epochs)
        super().__init__(weighting)
        self.head_epochs = head_epochs

    @property
    def least_epochs(self) -> int:
        """Return the smallest number of local epochs, in which both parts are trained."""
        return self.head_epochs + 1

    def client_rule(self) -> ClientRule:
        """Return the clients' half: first the head, then the representation."""
        return Phases(self.head_epochs)
