"""Aggregate a buffer of stale changes, as FedBuff does (Nguyen et al. 2022, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from fl_lightning.errors import require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.staleness import Staleness, check_discount, discount
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.types import ClientUpdate, RoundStart


class FedBuff(FedAvg):
    """Step by the mean of the buffered changes, with less weight for stale ones: ``w <- w + lr * sum_k p_k s(tau_k) D_k``.

    ``D_k = w_k - w_start`` is the change from the model that the client started from, tau_k the number of new models since
    then, and p_k the shares of the buffer's clients, which sum to 1. The factors s(tau_k) are not divided by their sum, so a
    stale buffer makes a smaller step. Averaged buffers, such as BatchNorm's statistics, move towards the clients' by the same
    weights. If no update is stale, it is FedAvg.

    Args:
        lr: the server's learning rate, > 0.
        momentum: the server's momentum, in [0, 1).
        staleness: the discount s of stale updates: ``constant``, ``polynomial`` or ``hinge``; see
            :func:`~fl_lightning.functional.staleness.discount`. The paper's 1 / sqrt(1 + tau) is polynomial with a = 0.5.
        a: how fast the discount falls, >= 0.
        b: the largest staleness without a discount, a whole number >= 0, for ``hinge``.
        weighting: the shares p_k, as in FedAvg; the paper uses ``uniform``.

    Raises:
        ConfigurationError: for a value outside its range.

    Example:
        >>> from fl_lightning import Asynchronous, FedBuff, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FedBuff(lr=0.5), asynchronous=Asynchronous(concurrency=8, buffer=4))
    """

    private_with: tuple[str, ...] = ("local", "examples")
    averages = False
    compares_clients = True
    needs_asynchronous = True

    def __init__(
        self,
        lr: float = 1.0,
        momentum: float = 0.0,
        staleness: Staleness = "polynomial",
        a: float = 0.5,
        b: int = 4,
        weighting: Literal["examples", "uniform"] = "examples",
    ) -> None:
        require(lr > 0, "federation.strategy.lr", "above 0", lr)
        require(0 <= momentum < 1, "federation.strategy.momentum", "at least 0 and below 1", momentum)
        check_discount(a, b)
        super().__init__(weighting)
        self.lr, self.momentum = lr, momentum
        self.staleness, self.a, self.b = staleness, a, b

    def server_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return SGD of the server's rate and momentum; checkpoints save its state."""
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum)

    def start_round(self, start: RoundStart) -> None:
        """Note w_t."""
        self._start = start.server_state

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update, and return its share times its discount."""
        weight = self.weight(update)
        discounted = weight * discount(update.staleness or 0, self.staleness, self.a, self.b)
        sums.add("state", update.snapshot.vector, discounted)
        sums.add("discounted", 1.0, discounted)
        sums.add("weight", 1.0, weight)
        return discounted

    def aggregate(self, sums: Sums) -> Tensor:
        """Return w_t, moved by the discounted mean change."""
        weight = sums.scalar("weight")
        rest = weight - sums.scalar("discounted")
        state = sums.take("state")
        if rest > 0:
            state.add_(to_float64(self._start).to(state.device), alpha=rest)
        return state.div_(weight)
