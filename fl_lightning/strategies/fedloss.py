"""Weigh clients by their validation loss (FedLoss thesis, section 3.1, Algorithm 1)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.metric_mode import require_loss
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import WeightedAverage
from fl_lightning.strategies.broken import is_finite
from fl_lightning.types import ClientUpdate

_HIGH_LOSS = 16.0


class FedLoss(WeightedAverage):
    """Weigh clients by their validation loss: ``p_k = l_k * n_k ** examples``, l_k the loss of w_k on client k's own part.

    A client whose model performs poorly on its own data knows something that the average has yet to learn, so it weighs
    more. The thesis uses a validation part of 10 % (``data.client_validation: 0.1``). Under quantity skew FedLoss falls
    behind FedAvg (its Table 6). The product with n_k, ``examples`` of 1, is meant to repair this; the thesis names it as
    future work.

    Args:
        loss: the name under which the module logs the loss in validation, or a torchmetrics metric.
        examples: the exponent of the number of examples, from 0 to 10: 0 is FedLoss, 1 the product, others a mixture.

    Raises:
        ConfigurationError: if the exponent is negative, or if higher is better for the metric.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, FedLoss
        >>> federation = FederatedOrchestrator(FedLoss(loss="val_loss", examples=1))
    """

    private_with: tuple[str, ...] = ()
    needs_own_training = True
    tolerates_broken = True

    def __init__(self, loss: str | Metric = "val_loss", examples: float = 0.0) -> None:
        require(0 <= examples <= 10, "federation.strategy.examples", "from 0 to 10", examples)
        require_loss(loss)
        self.loss = self.local_metric = loss
        self.examples = examples
        self.reads = ("examples",) if examples else ()

    @property
    def weight_power(self) -> float:
        """See :attr:`RunningStrategy.weight_power`."""
        return max(1.0, self.examples)

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return the weight of a loss of 16; few models that learn anything reach it."""
        return float(_HIGH_LOSS * max(examples) ** self.examples)

    def weight(self, update: ClientUpdate) -> float:
        """Return p_k."""
        assert update.local_score is not None
        return float(update.local_score * update.num_examples**self.examples)

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update; see :meth:`WeightedAverage.accumulate`. Warn about and reject a non-finite update or loss."""
        assert update.local_score is not None
        why = "" if is_finite(update.snapshot.vector) else "its weights are not finite"
        why = why if math.isfinite(update.local_score) else f"its validation loss is {update.local_score}"
        if why:
            who = f"the update of client {update.client} in round {update.round_idx}"
            warnings.warn(f"FedLoss rejects {who}: {why}.", stacklevel=2)
            return 0.0
        return super().accumulate(update, sums)

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the average; see :meth:`WeightedAverage.aggregate`.

        Raises:
            ClientError: if every update was rejected.
        """
        if not sums.sizes():
            raise ClientError(
                "FedLoss rejected every client of the round: no update had finite weights and a finite validation loss. "
                "Lower the clients' learning rate, or clip with 'federation.local.gradient_clip_val'."
            )
        return super().aggregate(sums)
