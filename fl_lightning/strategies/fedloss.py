"""FedLoss: clients weigh by their validation loss (FedLoss thesis, section 3.1, Algorithm 1)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.metric_mode import known_direction
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import WeightedAverage
from fl_lightning.strategies.broken import is_finite
from fl_lightning.types import ClientUpdate

_HIGH_LOSS = 16.0


class FedLoss(WeightedAverage):
    """``p_k = l_k * n_k ** examples``, l_k the loss of w_k on client k's own validation part.

    A client whose model does badly at home holds what the average has yet to learn: it weighs more. The thesis takes a
    validation part of 10 % (``data.client_validation: 0.1``). With quantity skew it falls behind FedAvg (its Table 6),
    which ``examples`` of 1, the product with n_k that it names as future work, is to repair.

    Args:
        loss: the name under which the module logs it in validation, or a torchmetrics metric.
        examples: exponent of the number of examples, >= 0: 0 is FedLoss, 1 the product, between them a mixture.

    Raises:
        ConfigurationError: for a negative exponent, or a metric of which higher is better.
    """

    needs_own_training = True
    tolerates_broken = True

    def __init__(self, loss: str | Metric = "val_loss", examples: float = 0.0) -> None:
        require(examples >= 0, "federation.strategy.examples", "0 or above", examples)
        wanted = "a loss, of which lower is better"
        require(known_direction(loss) is not True, "federation.strategy.loss", wanted, loss)
        self.loss = self.local_metric = loss
        self.examples = examples

    def largest_weight(self, examples: Sequence[int]) -> float:
        """That of a loss of 16, which few models reach that learn anything."""
        return float(_HIGH_LOSS * max(examples) ** self.examples)

    def weight(self, update: ClientUpdate) -> float:
        """p_k."""
        assert update.local_score is not None
        return float(update.local_score * update.num_examples**self.examples)

    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """See :meth:`WeightedAverage.take_in`; rejects an update that is not finite, or whose loss is not, with a warning."""
        assert update.local_score is not None
        assert update.state is not None
        why = "" if is_finite(update.state) else "its weights are not finite"
        why = why if math.isfinite(update.local_score) else f"its validation loss is {update.local_score}"
        if why:
            who = f"the update of client {update.client} in round {update.round_idx}"
            warnings.warn(f"FedLoss rejects {who}: {why}.", stacklevel=2)
            return 0.0
        return super().take_in(update, sums)

    def aggregate(self, sums: Sums) -> Tensor:
        """See :meth:`WeightedAverage.aggregate`.

        Raises:
            ClientError: if every update was rejected.
        """
        if not sums.sizes():
            raise ClientError(
                "FedLoss has rejected every client of the round: no update had finite weights and a finite validation loss. "
                "Lower the clients' learning rate, or clip with 'federation.local.gradient_clip_val'."
            )
        return super().aggregate(sums)
