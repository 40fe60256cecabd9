"""The scores of a round: of clients' models on the server's set and on clients' examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.messages import EvalOrder
from fl_lightning.server.evaluators import STRATEGY_METRIC
from fl_lightning.server.federation import Federation
from fl_lightning.types import ClientUpdate, Snapshot


class RoundScores:
    """Measure the models of one round.

    Args:
        federation: what stays.
        round_idx: from 0.
        last_scores: by client, the score that its model had when it was measured last.
    """

    def __init__(self, federation: Federation, round_idx: int, last_scores: Mapping[int, float]) -> None:
        self._federation, self._evaluators, self._last = federation, federation.evaluators, last_scores
        self.due = federation.evaluators.settings.due(round_idx)
        """Whether clients' models are measured in this round; in others their last scores count."""

    def of(self, update: ClientUpdate, metric: str | Metric) -> float:
        """Return the score of a client's model on the server's set, as the strategy weighs it."""
        kept = None if self.due else self._last.get(update.client)
        return self._evaluators.score(update.snapshot, metric) if kept is None else kept

    def spread(
        self, models: Sequence[Callable[[], Snapshot]], metric: str | Metric, setting: str = STRATEGY_METRIC
    ) -> list[float]:
        """Return a metric of models on the server's set, spread over the ranks; call it on every rank.

        Args:
            models: each makes a model, on the rank that measures it.
            metric: the metric.
            setting: the setting that asks for it, for messages.
        """
        return self._federation.comm.spread(len(models), lambda k: self._evaluators.score(models[k](), metric, setting))

    def local(self, updates: Sequence[ClientUpdate], version: int) -> list[float | None]:
        """Return the scores of models on their clients' validation parts; None if the strategy does not ask for them."""
        if self._federation.strategy.local_metric is None:
            return [None] * len(updates)
        orders = [EvalOrder(version, update.client, "validation", "sent", update.snapshot) for update in updates]
        return [report.value for report in self._federation.pool.evaluate(orders)]

    def cross(self, updates: Sequence[ClientUpdate], version: int) -> Tensor:
        """Return the route's metric of each model on each client's training data; see :meth:`Cohort.cross_scores`."""
        pairs = [(holder, model) for model in updates for holder in updates]
        orders = [EvalOrder(version, holder.client, "training", "route", model.snapshot) for holder, model in pairs]
        values = [report.value for report in self._federation.pool.evaluate(orders)]
        return torch.tensor(values, dtype=torch.float64).view(len(updates), len(updates)).T
