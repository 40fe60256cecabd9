"""Run Adagrad at the server, as FedAdagrad does (Reddi et al. 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from fl_lightning.errors import require
from fl_lightning.strategies.fedavg import FedAvg


class FedAdagrad(FedAvg):
    """Divide the mean change D_t by the root of its summed squares: ``w_{t+1} = w_t + lr D_t / (sqrt(v_t) + tau)``.

    ``v_t = v_{t-1} + D_t^2`` with ``v_{-1} = tau^2``, and no momentum (beta_1 = 0), as in the paper's experiments. torch's own
    Adagrad starts v at 0, with which the first step is lr in every coordinate, however small its change.

    Args:
        lr: the server's learning rate eta, > 0.
        tau: the degree of adaptivity, above 0 and at most 1e15; smaller values are more adaptive.
        weighting: the weighting of the average, as in FedAvg.

    Example:
        >>> from fl_lightning import FedAdagrad, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FedAdagrad(lr=0.03))
    """

    private_with: tuple[str, ...] = ("central", "local", "examples")
    averages = False

    def __init__(self, lr: float = 0.03, tau: float = 1e-3, weighting: Literal["examples", "uniform"] = "examples") -> None:
        require(lr > 0, "federation.strategy.lr", "above 0", lr)
        require(0 < tau <= 1e15, "federation.strategy.tau", "above 0 and at most 1e15", tau)
        super().__init__(weighting)
        self.lr, self.tau = lr, tau

    def server_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return Adagrad that starts from tau^2; checkpoints save its state, as they do for every optimizer."""
        return torch.optim.Adagrad(parameters, lr=self.lr, eps=self.tau, initial_accumulator_value=self.tau**2)
