"""Apply momentum at the server, as FedAvgM does (Hsu et al. 2019; FedLoss thesis, section 3.3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import nn

from fl_lightning.errors import require
from fl_lightning.strategies.fedavg import FedAvg


class FedAvgM(FedAvg):
    """Apply momentum at the server: ``v <- momentum * v + D; w_{t+1} = w_t - lr * v`` with ``D = w_t - average``.

    In the first round, v = D. For the other members of the FedOpt family, use FedAvg with ``federation.server_optimizer``:
    any torch optimizer, e.g. ``torch.optim.Adam``, ``torch.optim.Adagrad``, or :class:`~fl_lightning.Yogi`.

    Args:
        momentum: the momentum beta, in [0, 1); 0 is FedAvg.
        lr: the server's learning rate, > 0.
        weighting: the weighting of the average, as in FedAvg.

    Example:
        >>> from fl_lightning import FedAvgM, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FedAvgM(momentum=0.9, lr=0.3))
    """

    private_with: tuple[str, ...] = ("central", "local", "examples")

    def __init__(self, momentum: float = 0.9, lr: float = 1.0, weighting: Literal["examples", "uniform"] = "examples") -> None:
        require(0 <= momentum < 1, "federation.strategy.momentum", "at least 0 and below 1", momentum)
        require(lr > 0, "federation.strategy.lr", "above 0", lr)
        super().__init__(weighting)
        self.momentum, self.lr = momentum, lr

    def server_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return SGD with momentum; checkpoints save its state, as they do for every optimizer."""
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)
