"""Let clients learn most from models that fit their data least (Fed-Cyclic and Fed-Star thesis, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.metric_mode import known_direction
from fl_lightning.routes.base import Cohort
from fl_lightning.routes.periods import PeriodRoute, star_matrix
from fl_lightning.types import ClientUpdate


class FedStar(PeriodRoute):
    """Mix all models w_j at client k after each of P periods, with weights proportional to
    1 - Acc(w_j, D_k), where D_k is client k's training set.

    The thesis's listing runs its loop P - 1 times and divides its average by K once too often. This route runs P periods and
    uses the strategy's average. The K * K evaluations of a period are the expensive part: each model is evaluated on each
    client's data, in the server's batch size, distributed over the ranks.

    Args:
        periods: the number of periods P, >= 1.
        metric: the accuracy, in [0, 1]: the name under which the module logs it in validation, or a torchmetrics metric.

    Raises:
        ConfigurationError: if lower is better for the metric.
    """

    reads_data = True

    def __init__(self, periods: int = 2, metric: str | Metric = "val_accuracy") -> None:
        super().__init__(periods)
        wanted = "a metric in [0, 1] for which higher is better, such as an accuracy"
        require(known_direction(metric) is not False, "federation.route.metric", wanted, metric)
        self.metric = self.client_metric = metric

    def mixing(self, cohort: Cohort, updates: Sequence[ClientUpdate], period: int) -> Tensor:
        """Return the mixing matrix; see :meth:`PeriodRoute.mixing`.

        Raises:
            ConfigurationError: if a score is outside [0, 1].
        """
        assert self.metric is not None
        scores = cohort.cross_scores(updates)
        if not bool(((scores >= 0) & (scores <= 1)).all()):
            raise ConfigurationError(
                f"Fed-Star weighs models by 1 - accuracy, but 'federation.route.metric' {self.metric!r} returned values from "
                f"{float(scores.min()):.4g} to {float(scores.max()):.4g}. Use a metric in [0, 1], where 1 is best."
            )
        return star_matrix(scores)

    def peers(self, size: int) -> int:
        """Return the number of all other clients."""
        return size - 1
