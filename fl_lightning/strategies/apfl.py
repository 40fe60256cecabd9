"""Mix a model of each client with the global one, as APFL does (Deng, Kamani and Mahdavi 2020, Algorithm 1)."""

from __future__ import annotations

from typing import Literal

from fl_lightning.errors import require
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.mixture import Mixture
from fl_lightning.strategies.fedavg import FedAvg


class APFL(FedAvg):
    """FedAvg for the global model w; each client also trains v_k such that ``alpha_k v_k + (1 - alpha_k) w`` fits its data.

    In each step, w moves along the gradient of its own loss, and v_k along alpha_k times the gradient g of the mixture's loss.
    Once a turn, at its first step, ``alpha_k <- alpha_k - alpha_lr <v_k - w, g>``, clipped to [0, 1]. v_k starts at the first w
    that the client receives, and is never sent. ``client_evaluation`` measures the mixture. A client stores two more models,
    and passes each batch through two.

    Args:
        alpha: the first share of v_k in the mixture, in [0, 1]; 0 is w itself, 1 is training alone.
        alpha_lr: the learning rate of alpha_k, >= 0; 0 keeps alpha. The paper uses the clients' own learning rate.
        weighting: the weighting of the average, as in FedAvg; the paper uses ``uniform``.

    Example:
        >>> from fl_lightning import APFL, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(APFL(alpha=0.5, alpha_lr=0.01))
    """

    private_with: tuple[str, ...] = ("central", "local")
    compares_clients = True
    own_models = True
    needs_own_training = True

    def __init__(
        self, alpha: float = 0.5, alpha_lr: float = 0.0, weighting: Literal["examples", "uniform"] = "examples"
    ) -> None:
        require(0 <= alpha <= 1, "federation.strategy.alpha", "in [0, 1]", alpha)
        require(alpha_lr >= 0, "federation.strategy.alpha_lr", "0 or above", alpha_lr)
        super().__init__(weighting)
        self.alpha, self.alpha_lr = alpha, alpha_lr

    def client_rule(self) -> ClientRule:
        """Return the clients' half."""
        return Mixture(self.alpha, self.alpha_lr)
