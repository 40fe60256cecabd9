"""Train the body below a head that stays as it was initialised, as FedBABU does (Oh et al. 2022, Algorithm 1)."""

from __future__ import annotations

from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.phases import Phases
from fl_lightning.strategies.fedavg import FedAvg


class FedBABU(FedAvg):
    """Average the body; the head, which ``federation.personal`` matches, keeps its first values at every client.

    At the end, clients fine-tune the whole model on their own data: ``federation.client_evaluation.personal_epochs`` measures
    what they reach. The common head keeps the clients' features aligned, and is left out of messages.

    Args:
        weighting: the weighting of the average, as in FedAvg.

    Example:
        >>> from fl_lightning import FedBABU, FederatedOrchestrator, PersonalPart
        >>> federation = FederatedOrchestrator(FedBABU(), personal=[PersonalPart(names="head.*")])
    """

    private_with: tuple[str, ...] = ("central", "local", "examples")
    needs_held_parts = True
    compares_clients = True

    def client_rule(self) -> ClientRule:
        """Return the clients' half, which keeps the head frozen."""
        return Phases(0)
