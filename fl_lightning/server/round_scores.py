"""Score the clients' models of a round on the server's set and on clients' examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.evaluate import STRATEGY_METRIC
from fl_lightning.messages import EvalOrder
from fl_lightning.server.federation import Federation
from fl_lightning.types import ClientUpdate, Snapshot


class RoundScores:
    """Score the models of one round.

    Args:
        federation: the parts of the federation.
        round_idx: the communication round, from 0.
        last_scores: the last score of each client's model, by client.
    """

    def __init__(self, federation: Federation, round_idx: int, last_scores: Mapping[int, float]) -> None:
        self._federation, self._evaluators, self._last = federation, federation.evaluators, last_scores
        self.due = federation.evaluators.settings.due(round_idx)
        """Whether clients' models are scored in this round; in other rounds their last scores are used."""

    def of(self, update: ClientUpdate, metric: str | Metric) -> float:
        """Return the score of a client's model on the server's set, for the strategy's weights."""
        kept = None if self.due else self._last.get(update.client)
        return self._evaluators.score(update.snapshot, metric) if kept is None else kept

    def spread(
        self, models: Sequence[Callable[[], Snapshot]], metric: str | Metric, setting: str = STRATEGY_METRIC
    ) -> list[float]:
        """Return the scores of models on the server's set, divided among the ranks; call it on every rank.

        Args:
            models: functions that return a model each, called on the rank that scores it.
            metric: the metric.
            setting: the setting that names the metric, for messages.
        """
        return self._federation.comm.spread(len(models), lambda k: self._evaluators.score(models[k](), metric, setting))

    def local(self, updates: Sequence[ClientUpdate], version: int) -> list[float | None]:
        """Return the scores of models on their clients' validation parts; None if the strategy does not need them."""
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
