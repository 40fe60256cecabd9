"""Weigh clients by their loss for a fairer model, as q-FedAvg does (Li et al. 2020, q-FFL, Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.metric_mode import require_loss
from fl_lightning.functional.spread import squared_distance
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.strategies.base import ModelGrid, RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart

_TINY = 1e-10
"""Added to the loss, as in the authors' code, so that a client without any loss has a finite weight."""
_DIGITS = 280
"""Powers of a loss from 1e-280 to 1e280 leave room for sums of their products in float64."""


class QFedAvg(RunningStrategy):
    """Minimise ``sum_k F_k^{q+1} / (q + 1)``: clients with a high loss weigh more.

    With ``D_k = (w_t - w_k) / lr`` and F_k the loss of w_t on client k's training part, ``w_{t+1} = w_t - sum_k F_k^q D_k /
    sum_k h_k``, where ``h_k = q F_k^{q-1} |D_k|^2 + F_k^q / lr``. With q = 0 it is FedAvg with ``weighting`` uniform. Buffers
    are averaged with the weights F_k^q.

    Args:
        q: the fairness, >= 0; the paper tunes it between 0.001 and 15.
        lr: the clients' learning rate, > 0; 1 / lr estimates the Lipschitz constant.
        loss: the name under which the module logs the loss in validation, or a torchmetrics metric.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, QFedAvg
        >>> federation = FederatedOrchestrator(QFedAvg(q=2, lr=0.05))
    """

    reads = ()
    private_with: tuple[str, ...] = ()
    needs_own_training = True

    def __init__(self, q: float = 1.0, lr: float = 0.1, loss: str | Metric = "val_loss") -> None:
        require(q >= 0, "federation.strategy.q", "0 or above", q)
        require(lr > 0, "federation.strategy.lr", "above 0", lr)
        require_loss(loss)
        self.q, self.lr = q, lr
        self.loss = self.global_metric = loss

    def start_round(self, start: RoundStart) -> None:
        """Note w_t."""
        self._start = start.server_state[: start.num_parameters]

    @property
    def weight_power(self) -> float:
        """See :attr:`RunningStrategy.weight_power`."""
        return max(1.0, self.q)

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return the weight of a loss of 1; losses far from it are summed on finer or coarser grids."""
        return 1.0

    def grids(self, examples: Sequence[int], model_grid: ModelGrid) -> dict[str, Grid]:
        """Return the grids of the models and of their weights, and one for h_k."""
        found = super().grids(examples, model_grid)
        return found | ({"scale": found["weight"]} if found else {})

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int]:
        """See :meth:`RunningStrategy.sum_sizes`."""
        return {"state": size, "weight": 1, "scale": 1}

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update, and return F_k^q.

        Raises:
            ClientError: if the loss is negative or not finite, or if its power is too small or too large for an exact sum.
        """
        assert update.global_score is not None
        loss = update.global_score + _TINY
        if not (math.isfinite(loss) and loss > 0):
            raise ClientError(
                f"q-FedAvg cannot weigh client {update.client} in round {update.round_idx}: its loss is {update.global_score}. "
                "Lower the clients' learning rate, or check its data."
            )
        exponent = self.q * math.log10(loss)
        weight = loss**self.q if abs(exponent) < _DIGITS else math.inf
        if not sums.resolves("state", weight) or math.isinf(weight):
            raise ClientError(
                f"q-FedAvg cannot weigh client {update.client} in round {update.round_idx}: its loss {update.global_score} to "
                f"the power of q = {self.q} is about 1e{exponent:.0f}, which cannot be summed exactly. Lower "
                "'federation.strategy.q', or scale the loss that the module logs towards 1."
            )
        squares = squared_distance(update.snapshot.vector[: len(self._start)], self._start)
        sums.add("state", update.snapshot.vector, weight)
        sums.add("weight", 1.0, weight)
        sums.add("scale", 1.0, weight * (1 + self.q * squares / (self.lr * loss)))  # lr * h_k
        return weight

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the new state."""
        weight, scale = sums.scalar("weight"), sums.scalar("scale")
        mean = sums.take("state").div_(weight)
        start = to_float64(self._start).to(mean.device)
        mean[: len(start)] = start + (mean[: len(start)] - start) * (weight / scale)
        return mean
