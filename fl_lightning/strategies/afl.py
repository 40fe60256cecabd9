"""Minimise the loss of the worst mixture of clients, as agnostic federated learning does (Mohri et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import require
from fl_lightning.functional.metric_mode import require_loss
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import WeightedAverage
from fl_lightning.types import ClientUpdate, RoundStart


class AFL(WeightedAverage):
    """Average models with weights lambda that move towards the clients with the highest loss.

    ``w_{t+1} = sum_k lambda_k w_k``, then ``lambda <- P(lambda + rate F)``, where F_k is the loss of w_t on client k's training
    part and P projects onto the probability simplex. lambda starts at 1/K. The paper takes one gradient step per round; here
    clients take as many as ``federation.local`` says. Every client must take part in every round.

    Args:
        rate: the step gamma of lambda, from 0 to 1e6; 0 is FedAvg with ``weighting`` uniform.
        loss: the name under which the module logs the loss in validation, or a torchmetrics metric.

    Example:
        >>> from fl_lightning import AFL, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(AFL(rate=0.1, loss="val_loss"))
    """

    reads = ()
    private_with: tuple[str, ...] = ()
    needs_own_training = True
    needs_all_clients = True

    def __init__(self, rate: float = 0.1, loss: str | Metric = "val_loss") -> None:
        require(0 <= rate <= 1e6, "federation.strategy.rate", "0 or above and at most 1e6", rate)
        require_loss(loss)
        self.rate = rate
        self.loss = self.global_metric = loss
        self._mixture: Tensor | None = None

    def reset(self) -> None:
        """Set lambda to 1/K."""
        self._mixture = None

    def start_round(self, start: RoundStart) -> None:
        """Set lambda to 1/K in the first round."""
        if self._mixture is None:
            self._mixture = torch.full((start.num_clients,), 1 / start.num_clients, dtype=torch.float64)

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return 1, the largest weight that a client can have."""
        return 1.0

    def weight(self, update: ClientUpdate) -> float:
        """Return lambda_k."""
        assert self._mixture is not None
        return float(self._mixture[update.client])

    def sum_sizes(self, size: int, parameters: int) -> None:
        """Return that clients cannot mask their parts: only the server knows the mixture that weighs them."""
        return

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update and its loss; see :meth:`WeightedAverage.accumulate`."""
        assert self._mixture is not None
        assert update.global_score is not None
        losses = torch.zeros_like(self._mixture)
        losses[update.client] = update.global_score
        sums.add("losses", losses)
        return super().accumulate(update, sums)

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the weighted average, and move lambda."""
        assert self._mixture is not None
        self._mixture = project_to_simplex(self._mixture + self.rate * sums.value("losses").cpu())
        return super().aggregate(sums)

    def figures(self) -> dict[str, float]:
        """Return the largest weight of the next round as ``largest_share``."""
        return {} if self._mixture is None else {"largest_share": float(self._mixture.max())}

    def state_dict(self) -> dict[str, Any]:
        """Return lambda."""
        return {} if self._mixture is None else {"mixture": self._mixture}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore lambda."""
        self._mixture = state.get("mixture")


def project_to_simplex(values: Tensor) -> Tensor:
    """Return the point nearest to ``values``, shape (n,), whose entries are >= 0 and sum to 1 (Duchi et al. 2008, Figure 1).

    >>> project_to_simplex(torch.tensor([0.5, 1.5, -1.0])).tolist()
    [0.0, 1.0, 0.0]
    """
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    last = int((ordered > excess).sum()) - 1
    return (values - excess[last]).clamp(min=0)
