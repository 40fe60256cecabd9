"""Weigh clients by Shapley values: their contributions (Wang et al. 2020; named as future work in AdaFed)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.functional.seeding import generator
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
        self.exact_up_to, self.orders, self.tolerance, self.seed = exact_up_to, orders, tolerance, seed
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


Coalition = frozenset[int]
Worth = Callable[[Sequence[Coalition]], Sequence[float]]
"""The worth v(S) of several coalitions, requested together so that they can be distributed over ranks."""


def exact_shapley(players: Sequence[int], worth: Worth) -> list[float]:
    """Return ``phi_i = sum over S without i of |S|! (m - |S| - 1)! / m! * (v(S + i) - v(S))`` (Shapley 1953).

    Args:
        players: m distinct ids.
        worth: called once, for all 2^m coalitions.

    Returns:
        m values, which sum to v(all) - v(none).
    """
    m = len(players)
    coalitions = [frozenset(chosen) for size in range(m + 1) for chosen in combinations(players, size)]
    value = dict(zip(coalitions, worth(coalitions), strict=True))
    shares = [1.0 / (m * math.comb(m - 1, size)) for size in range(m)]
    return [math.fsum(shares[len(s)] * (value[s | {i}] - value[s]) for s in coalitions if i not in s) for i in players]


def monte_carlo_shapley(
    players: Sequence[int], orders: Sequence[Sequence[int]], worth: Worth, tolerance: float = 0.0
) -> list[float]:
    """Average each client's added worth over some orders of joining, truncated (Ghorbani and Zou 2019, Algorithm 1).

    Args:
        players: m distinct ids.
        orders: permutations of the players.
        worth: called once for both extremes, then once per position in the orders, for new coalitions only.
        tolerance: an order stops once its coalition's worth is within this of v(all), >= 0; players who join later
            add nothing. If it is below 0, no order stops early, and the values sum to v(all) - v(none).

    Returns:
        m values.
    """
    everyone, nobody = frozenset(players), frozenset[int]()
    value = dict(zip((everyone, nobody), worth([everyone, nobody]), strict=True))
    added: dict[int, list[float]] = {player: [] for player in players}
    running = dict.fromkeys(range(len(orders)), nobody)
    for step in range(len(players)):
        running = {k: s for k, s in running.items() if abs(value[everyone] - value[s]) > tolerance}
        joined = {k: s | {orders[k][step]} for k, s in running.items()}
        unknown = sorted({s for s in joined.values() if s not in value}, key=sorted)
        if unknown:
            value |= zip(unknown, worth(unknown), strict=True)
        for k, s in joined.items():
            added[orders[k][step]].append(value[s] - value[running[k]])
        running = joined
    return [math.fsum(added[player]) / len(orders) for player in players]
