"""Personalise by Moreau envelopes, as pFedMe does (Dinh et al. 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from fl_lightning.errors import require
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.own_model import MoreauEnvelope
from fl_lightning.strategies.fedavg import FedAvg


class PFedMe(FedAvg):
    """Minimise the mean of ``min_theta F_k(theta) + strength / 2 |theta - w|^2`` over the clients.

    A client moves its own model theta by ``steps`` steps of its optimizer along ``g + strength (theta - w)``, then
    ``w <- w - lr * strength (w - theta)``, and so on. It sends w, and keeps theta, which ``client_evaluation`` measures. Then
    ``w_{t+1} = (1 - beta) w_t + beta * average``. A client stores a second model.

    Args:
        strength: the strength lambda, > 0; the paper uses 15 to 30.
        steps: the number K of steps of theta for one of w, >= 1.
        lr: the learning rate eta of w, > 0; lr * strength is at most 1.
        beta: the server's rate, > 0.
        weighting: the weighting of the average, as in FedAvg; the paper uses ``uniform``.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, PFedMe
        >>> federation = FederatedOrchestrator(PFedMe(strength=15, steps=5))
    """

    private_with: tuple[str, ...] = ("central", "local")
    averages = False
    compares_clients = True
    own_models = True
    needs_own_training = True

    def __init__(
        self,
        strength: float = 15.0,
        steps: int = 5,
        lr: float = 0.005,
        beta: float = 1.0,
        weighting: Literal["examples", "uniform"] = "uniform",
    ) -> None:
        require(strength > 0, "federation.strategy.strength", "above 0", strength)
        require(steps >= 1, "federation.strategy.steps", "1 or above", steps)
        require(0 < lr * strength <= 1, "federation.strategy.lr", f"above 0 and at most 1 / strength, 1 / {strength:g}", lr)
        require(beta > 0, "federation.strategy.beta", "above 0", beta)
        super().__init__(weighting)
        self.strength, self.steps, self.lr, self.beta = strength, steps, lr, beta

    def client_rule(self) -> ClientRule:
        """Return the clients' half: theta near w, and w that follows it."""
        return MoreauEnvelope(self.strength, self.steps, self.lr)

    def server_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return SGD of rate beta."""
        return torch.optim.SGD(parameters, lr=self.beta)
