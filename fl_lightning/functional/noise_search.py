"""Find the least noise that keeps a run within an epsilon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Case = TypeVar("Case")

_BELOW = 0.995
"""How near to the target epsilon the search ends, as a share."""
_LEAST, _MOST = 1e-3, 1e6
"""The range of the search."""


def least_noise(target: float, cases: Sequence[Case], epsilon: Callable[[float, Case], float]) -> float | None:
    """Return a noise multiplier with which the largest epsilon of all cases is at most a target, and within 1 % of it.

    The noise is searched for one case, and for another one as long as that exceeds the target.

    Args:
        target: the epsilon, > 0.
        cases: what may be released, at least one; the search is fastest if the worst case comes first.
        epsilon: returns the epsilon of a case, which falls with the noise.

    Returns:
        The noise; None if it would have to be above a million.
    """
    worst = cases[0]
    while True:
        noise = _noise_of_one(target, lambda noise, case=worst: epsilon(noise, case))  # type: ignore[misc]
        if noise is None:
            return None
        spent = [epsilon(noise, case) for case in cases]
        if max(spent) <= target:
            return noise
        worst = cases[spent.index(max(spent))]


def _noise_of_one(target: float, epsilon: Callable[[float], float]) -> float | None:
    """Bisect for a noise whose epsilon is just below the target."""
    low, high = _LEAST, 1.0
    while epsilon(high) > target:
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high > low * (1 + 1e-6):
        middle = (low * high) ** 0.5 if low > _LEAST else max(high / 2, _LEAST)
        found = epsilon(middle)
        if found > target:
            low = middle
        else:
            high = middle
            if found >= _BELOW * target:
                break
    return high
