"""FOCUS: credibility from cross evaluation (Chen et al. 2020, eq. 3-5; AdaFed, section 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.metric_mode import known_direction
from fl_lightning.strategies.base import JointStrategy, Worth, average
from fl_lightning.types import ClientUpdate


class Focus(JointStrategy):
    """``p_k = n_k * softmax(-e_k / temperature)``, e_k the loss of w_t on client k's data plus that of w_k on the server's.

    A client whose labels are wrong disagrees with the global model at home and with the server's data abroad. That a
    credible client's data are distributed like the server's is assumed: with skewed clients it punishes skew, too.

    Args:
        loss: the name under which the module logs it in validation, or a torchmetrics metric.
        temperature: > 0; the higher, the nearer to FedAvg.

    Raises:
        ConfigurationError: for a temperature that is not positive, or a metric of which higher is better.
    """

    needs_own_training = True

    def __init__(self, loss: str | Metric = "val_loss", temperature: float = 1.0) -> None:
        require(temperature > 0, "federation.strategy.temperature", "above 0", temperature)
        wanted = "a loss, of which lower is better"
        require(known_direction(loss) is not True, "federation.strategy.loss", wanted, loss)
        self.loss = self.metric = self.global_metric = loss
        self.temperature = temperature

    def combine(self, updates: Sequence[ClientUpdate], worth: Worth) -> tuple[Tensor, list[float]]:
        """See :meth:`JointStrategy.combine`.

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
                    f"{update.global_score} and {update.score}. Lower the clients' learning rate, or look at its data."
                )
        least = min(errors)
        credibility = [math.exp((least - error) / self.temperature) for error in errors]
        total = math.fsum(credibility)
        weights = [update.num_examples * c / total for update, c in zip(updates, credibility, strict=True)]
        return average(updates, weights), weights
