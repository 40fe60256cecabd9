"""Weigh clients by Shapley values: their contributions (Wang et al. 2020; named as future work in AdaFed)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.shapley import Coalition, exact_shapley, monte_carlo_shapley
from fl_lightning.strategies.base import JointStrategy, ModelScorer, average
from fl_lightning.types import ClientUpdate, RoundStart


class ShapleyValues(JointStrategy):
    """Weigh clients by their contribution: ``p_k = max(phi_k, 0)``, phi_k the Shapley value on the server's set.

    The value of a coalition is the metric of its clients' average, weighted by examples; the empty coalition's value is that
    of w_t. Values are exact for small cohorts (2^m evaluations a round). For larger cohorts they are estimated from random
    orders of joining; each order stops once its coalition's value is close to that of all clients. If no value is positive,
    clients weigh by examples, as in FedAvg.

    Args:
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        mode: ``max`` if higher is better. The default follows the torchmetrics metric's own direction, or the metric's
            name; see :func:`~fl_lightning.functional.metric_mode.known_direction`.
        exact_up_to: the largest cohort with exact values, 0 to 16; 0 always estimates.
        orders: the number of random orders per round for larger cohorts, >= 1.
        tolerance: an order stops when its coalition's value is within ``tolerance`` of v(all), >= 0, in the metric's units;
            -1 never stops early.
        seed: the seed of the orders.

    Raises:
        ConfigurationError: if a value is outside its range, or if no mode is given and the metric's direction is unknown.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, ShapleyValues
        >>> federation = FederatedOrchestrator(ShapleyValues(metric="val_accuracy", orders=10))
    """

    private_with: tuple[str, ...] = ("local", "examples")
    averages = True
    on_resume = ResumeRule(stays="seed")

    def __init__(
        self,
        metric: str | Metric = "val_accuracy",
        mode: Literal["max", "min"] | None = None,
        exact_up_to: int = 6,
        orders: int = 20,
        tolerance: float = 0.01,
        seed: int = 0,
    ) -> None:
        require(0 <= exact_up_to <= 16, "federation.strategy.exact_up_to", "from 0 to 16 (2 ** m evaluations)", exact_up_to)
        require(orders >= 1, "federation.strategy.orders", "1 or above", orders)
        require(tolerance >= 0 or tolerance == -1, "federation.strategy.tolerance", "0 or above, or -1 for none", tolerance)
        self._metric = self.worth_metric = metric
        self.mode = "max" if higher_is_better(metric, mode, "federation.strategy.mode") else "min"
        self.exact_up_to = exact_up_to
        self.orders = orders
        self.tolerance = tolerance
        self.seed = seed
        self.values: dict[int, float] = {}
        self._evaluations = 0

    def start_round(self, start: RoundStart) -> None:
        """Keep w_t, the model of the empty coalition."""
        self._start = start
        self._evaluations = 0

    def combine(self, updates: Sequence[ClientUpdate], scorer: ModelScorer) -> tuple[Tensor, list[float]]:
        """Return the weighted average; see :meth:`JointStrategy.combine`."""
        players = [update.client for update in updates]
        by_client = {update.client: update for update in updates}
        sign = 1.0 if self.mode == "max" else -1.0

        def ask(coalitions: Sequence[Coalition]) -> list[float]:
            self._evaluations += len(coalitions)
            return [sign * value for value in scorer([self._model(by_client, coalition) for coalition in coalitions])]

        if len(players) <= self.exact_up_to:
            values = exact_shapley(players, ask)
        else:
            draw = generator(self.seed, self._start.round_idx, "shapley")
            drawn = [torch.randperm(len(players), generator=draw).tolist() for _ in range(self.orders)]
            values = monte_carlo_shapley(players, [[players[i] for i in order] for order in drawn], ask, self.tolerance)
        self.values = dict(zip(players, values, strict=True))
        weights = [max(value, 0.0) for value in values]
        if not any(weights):
            weights = [float(update.num_examples) for update in updates]
        return average(updates, weights), weights

    def _model(self, updates: dict[int, ClientUpdate], coalition: Coalition) -> Callable[[], Tensor]:
        def make() -> Tensor:
            if not coalition:
                return self._start.server_state
            members = [updates[client] for client in sorted(coalition)]
            return average(members, [float(member.num_examples) for member in members])

        return make

    def figures(self) -> dict[str, float]:
        """Return the number of evaluations that the round's values took, and the values themselves."""
        values = {f"shapley/{client}": value for client, value in self.values.items()}
        return {"shapley_evaluations": float(self._evaluations)} | values
