"""Train without a federation: the baseline that shows what a client gains by taking part."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torchmetrics import Metric

from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.routes.base import Cohort, Route


class LocalOnly(Route):
    """Train every client from its own model on its own data, for as many steps a round as in a federation.

    Each client's model is scored on the server's set (``client_score/<client>``, and their mean as
    ``federation/score``). The server's module holds the best of them, so ``val_*`` report what the best client reaches
    alone. Only the server's set can show which client is best.

    Args:
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        mode: whether the ``max`` or the ``min`` is best. The default follows the torchmetrics metric's own direction, or
            the metric's name; see :func:`~fl_lightning.functional.metric_mode.known_direction`.

    Raises:
        ConfigurationError: if no mode is given and the metric's direction is unknown.
    """

    needs_all_clients = True
    single_model = True
    keeps_models = True

    def __init__(self, metric: str | Metric = "val_accuracy", mode: Literal["max", "min"] | None = None) -> None:
        self.metric = self.server_metric = metric
        self.mode = "max" if higher_is_better(metric, mode, "federation.route.mode") else "min"

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        assert self.server_metric is not None
        updates = cohort.train([[client] for client in cohort.clients])
        scores = cohort.server_scores(updates, self.server_metric)
        scored = [replace(update, score=score, bytes_down=0, bytes_up=0) for update, score in zip(updates, scores, strict=True)]
        best = max(scores) if self.mode == "max" else min(scores)
        cohort.conclude(scored, scored[scores.index(best)])
