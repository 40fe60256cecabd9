"""Weigh clients by credibility from cross evaluation, as FOCUS does (Chen et al. 2020, arXiv 2001.11359; AdaFed, section 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.metric_mode import require_loss
from fl_lightning.strategies.base import JointStrategy, ModelScorer, average
from fl_lightning.types import ClientUpdate


class Focus(JointStrategy):
    """Weigh clients by credibility: ``p_k = n_k * (1 - softmax(e / temperature)_k)``.

    e_k is the loss of w_t on client k's data plus the loss of w_k on the server's data. A client with wrong labels disagrees
    both with the global model on its own data and with the server's data. FOCUS assumes that a credible client's data are
    distributed like the server's, so it also penalises skewed clients.

    Args:
        loss: the name under which the module logs the loss in validation, or a torchmetrics metric.
        temperature: the temperature, > 0, 1 / alpha in the paper; higher values are closer to FedAvg.
        credibility: ``complement``, the paper's ``1 - softmax(e / temperature)``, which is almost 1 for all clients of a large
            cohort but the worst; or ``softmax``, ``softmax(-e / temperature)``, which prefers the best clients.

    Raises:
        ConfigurationError: for a value outside its range, or if higher is better for the metric.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, Focus
        >>> federation = FederatedOrchestrator(Focus(loss="val_loss", temperature=0.5))
    """

    private_with: tuple[str, ...] = ()
    averages = True
    needs_own_training = True

    def __init__(
        self,
        loss: str | Metric = "val_loss",
        temperature: float = 1.0,
        credibility: Literal["complement", "softmax"] = "complement",
    ) -> None:
        require(temperature > 0, "federation.strategy.temperature", "above 0", temperature)
        require_loss(loss)
        self.loss = self.metric = self.global_metric = loss
        self.temperature, self.credibility = temperature, credibility

    def combine(self, updates: Sequence[ClientUpdate], scorer: ModelScorer) -> tuple[Tensor, list[float]]:
        """Return the weighted average; see :meth:`JointStrategy.combine`.

        Raises:
            ClientError: if a loss is not finite.
        """
        errors = []
        for update in updates:
            assert update.score is not None
            assert update.global_score is not None
            errors.append(update.score + update.global_score)
            if not math.isfinite(errors[-1]):
                raise ClientError(
                    f"FOCUS cannot weigh client {update.client} in round {update.round_idx}: its losses are "
                    f"{update.global_score} and {update.score}. Lower the clients' learning rate, or check its data."
                )
        weights = [u.num_examples * c for u, c in zip(updates, self._credibility(errors), strict=True)]
        return average(updates, weights), weights

    def _credibility(self, errors: Sequence[float]) -> list[float]:
        """Return each client's credibility in [0, 1]; a client without others to compare it with has 1."""
        sign = 1 if self.credibility == "complement" else -1
        largest = max(sign * error for error in errors)
        powers = [math.exp((sign * error - largest) / self.temperature) for error in errors]
        total = math.fsum(powers)
        if sign < 0 or len(errors) == 1:
            return [power / total for power in powers]
        # Summing the others instead of subtracting from 1 keeps the digits of a credibility near 0.
        return [math.fsum(powers[:k] + powers[k + 1 :]) / total for k in range(len(powers))]
