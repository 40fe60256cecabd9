"""Train a model of each client's own beside the global one, as Ditto does (Li et al. 2021, Algorithm 1)."""

from __future__ import annotations

from typing import Literal

from fl_lightning.errors import require
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.own_model import OwnModel
from fl_lightning.strategies.fedavg import FedAvg


class Ditto(FedAvg):
    """FedAvg for the global model w; each client also trains ``v_k`` on ``F_k(v) + strength / 2 |v - w_t|^2``.

    After its turn for w, a client trains v_k for as many local epochs, from where it left off, pulled towards the w_t that it
    received. v_k starts at the first w_t that the client receives, is never sent, and is what ``client_evaluation`` measures. A
    client stores a second model, and trains twice as long.

    Args:
        strength: the strength lambda, >= 0; 0 is training alone, a large one is w itself. The paper uses 0.01 to 2.
        weighting: the weighting of the average, as in FedAvg.

    Example:
        >>> from fl_lightning import Ditto, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(Ditto(strength=0.1))
    """

    private_with: tuple[str, ...] = ("central", "local")
    own_models = True

    def __init__(self, strength: float = 0.1, weighting: Literal["examples", "uniform"] = "examples") -> None:
        require(strength >= 0, "federation.strategy.strength", "0 or above", strength)
        super().__init__(weighting)
        self.strength = strength

    def client_rule(self) -> ClientRule:
        """Return the clients' half: a second turn for the client's own model."""
        return OwnModel(self.strength)
