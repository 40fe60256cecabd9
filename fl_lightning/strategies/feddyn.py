"""Correct client drift by a dynamic regulariser, as FedDyn does (Acar et al. 2021, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.sums import Sums
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.dynamic import DynamicRegularizer
from fl_lightning.strategies.base import RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart


class FedDyn(RunningStrategy):
    """Let clients minimise ``F_k(w) - <g_k, w> + alpha / 2 |w - w_t|^2``, and correct the mean by what they did together.

    The client keeps ``g_k <- g_k - alpha (w_k - w_t)``, an estimate of its gradient at its last model. The server's rules are
    ``h <- h - alpha / K * sum_k (w_k - w_t)`` over the K clients of the federation, and ``w_{t+1} = mean_k w_k - h / alpha``.
    g_k and h start at 0. Messages are as large as FedAvg's; a client stores a second model, g_k.

    Args:
        alpha: the strength of the regulariser, > 0. The paper uses 0.1, 0.01 and 0.001.

    Example:
        >>> from fl_lightning import FedDyn, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FedDyn(alpha=0.01))
    """

    reads = ()
    private_with: tuple[str, ...] = ("local", "examples")
    needs_own_training = True

    def __init__(self, alpha: float = 0.01) -> None:
        require(alpha > 0, "federation.strategy.alpha", "above 0", alpha)
        self.alpha = alpha
        self._drift: Tensor | None = None

    def client_rule(self) -> ClientRule:
        """Return the clients' half."""
        return DynamicRegularizer(self.alpha)

    def reset(self) -> None:
        """Set h to 0."""
        self._drift = None

    def start_round(self, start: RoundStart) -> None:
        """Note w_t, and set h to 0 in the first round."""
        self._num_clients = start.num_clients
        self._start = to_float64(start.server_state[: start.num_parameters])
        drift = torch.zeros_like(self._start) if self._drift is None else self._drift
        self._drift = drift.to(self._start.device)

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return every client's weight, 1."""
        return 1.0

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int]:
        """See :meth:`RunningStrategy.sum_sizes`."""
        return {"state": size, "clients": 1}

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update; every client of the cohort weighs 1."""
        sums.add("state", update.snapshot.vector)
        sums.add("clients", 1.0)
        return 1.0

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the corrected mean, and update h; buffers are averaged."""
        assert self._drift is not None
        clients = sums.scalar("clients")
        mean = sums.take("state").div_(clients)
        moved = mean[: len(self._start)] - self._start.to(mean.device)
        self._drift = self._drift.to(mean.device) - self.alpha * clients / self._num_clients * moved
        mean[: len(self._start)] -= self._drift / self.alpha
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return h."""
        return {} if self._drift is None else {"drift": self._drift.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore h."""
        self._drift = state.get("drift")
