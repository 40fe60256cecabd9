"""Weigh clients by credibility from cross evaluation, as FOCUS does (Chen et al. 2020, eq. 3-5; AdaFed, section 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.metric_mode import known_direction
from fl_lightning.strategies.base import JointStrategy, ModelScorer, average
from fl_lightning.types import ClientUpdate


class Focus(JointStrategy):
    """Weigh clients by credibility: ``p_k = n_k * softmax(-e_k / temperature)``.

    e_k is the loss of w_t on client k's data plus the loss of w_k on the server's data. A client with wrong labels disagrees
    both with the global model on its own data and with the server's data. FOCUS assumes that a credible client's data are
    distributed like the server's, so it also penalises skewed clients.

    Args:
        loss: the name under which the module logs the loss in validation, or a torchmetrics metric.
        temperature: the temperature, > 0; higher values are closer to FedAvg.

    Raises:
        ConfigurationError: if the temperature is not positive, or if higher is better for the metric.
    """

    averages = True
    needs_own_training = True

    def __init__(self, loss: str | Metric = "val_loss", temperature: float = 1.0) -> None:
        require(temperature > 0, "federation.strategy.temperature", "above 0", temperature)
        wanted = "a loss, for which lower is better"
        require(known_direction(loss) is not True, "federation.strategy.loss", wanted, loss)
        self.loss = self.metric = self.global_metric = loss
        self.temperature = temperature

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
        least = min(errors)
        credibility = [math.exp((least - error) / self.temperature) for error in errors]
        total = math.fsum(credibility)
        weights = [update.num_examples * c / total for update, c in zip(updates, credibility, strict=True)]
        return average(updates, weights), weights
