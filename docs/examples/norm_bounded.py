"""Federated averaging of updates whose Euclidean norm is bounded at the server.

w_{t+1} = w_t + sum_k n_k min(1, bound / ||w_k - w_t||) (w_k - w_t) / sum_k n_k, the norm over the parameters only;
buffers are averaged by examples as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning import ClientUpdate, ConfigurationError, RunningStrategy, Sums
from fl_lightning.types import RoundStart


class NormBounded(RunningStrategy):
    """Average by examples of the clients' updates, each scaled down to a norm of at most ``bound``.

    Args:
        bound: the largest Euclidean norm of the parameters' part of an update, > 0, in units of the weights.

    Raises:
        ConfigurationError: for a bound that is not above 0.
    """

    needs_own_training = True  # the bound is on what one client did to w_t

    def __init__(self, bound: float = 1.0) -> None:
        if not bound > 0:
            raise ConfigurationError(f"'federation.strategy.bound' must be above 0, but is {bound}. Try 1.0, say.")
        self.bound = bound

    def start_round(self, start: RoundStart) -> None:
        """Keep w_t and the number of parameters."""
        self.server_state = start.server_state.double()
        self.num_parameters = start.num_parameters

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add n_k times the bounded update; a client weighs n_k."""
        assert update.state is not None
        change = update.state.double() - self.server_state
        own = change[: self.num_parameters]
        norm = float(torch.linalg.vector_norm(own))
        if norm > self.bound:
            own *= self.bound / norm
        sums.add("change", change, float(update.num_examples))
        sums.add("examples", float(update.num_examples))
        return float(update.num_examples)

    def aggregate(self, sums: Sums) -> Tensor:
        """w_t plus the mean of the bounded updates."""
        return self.server_state + sums.value("change") / sums.scalar("examples")
