"""Compute Shapley values: each client's contribution to a coalition's worth, averaged over all orders of joining."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

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
