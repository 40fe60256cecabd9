"""Statistics of repeated runs: means over seeds, paired tests, rounds to a target."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Curves = Mapping[int, Mapping[int, float]]
"""A metric by seed, then by round."""


_ROUNDING = 2e-6
"""Tolerance for equal differences: tables have 6 digits, and rounding is not spread."""


@dataclass(frozen=True)
class Sample:
    """Hold values over seeds.

    Attributes:
        values: one value for each seed that has one.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean; NaN if there are no values, or one is not finite."""
        return statistics.fmean(self.values) if self.values and self._is_finite else math.nan

    @property
    def std(self) -> float:
        """The sample's standard deviation (n - 1); 0 for one value."""
        if not self._is_finite:
            return math.nan
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def _is_finite(self) -> bool:
        return all(map(math.isfinite, self.values))


def at_round(curves: Curves, round_idx: int) -> Sample:
    """Return a metric after one round."""
    return Sample(tuple(curve[round_idx] for curve in curves.values() if round_idx in curve))


def last_rounds(curves: Curves, count: int = 1) -> dict[int, float]:
    """Return the mean of the last rounds, by seed."""
    return {seed: Sample(tuple(curve.values())[-count:]).mean for seed, curve in curves.items() if curve}


def best(curves: Curves, higher: bool) -> tuple[Sample, Sample]:
    """Return the best finite value of each seed's curve, and the round (from 1) that first reached it."""
    choose = max if higher else min
    numbers = [{r: value for r, value in curve.items() if math.isfinite(value)} for curve in curves.values()]
    tops = [choose(curve.items(), key=lambda pair: pair[1]) for curve in numbers if curve]  # the first if several are equal
    return Sample(tuple(value for _, value in tops)), Sample(tuple(1.0 + round_idx for round_idx, _ in tops))


def rounds_to(curves: Curves, target: float, higher: bool) -> list[int | None]:
    """Return the rounds until each seed first reaches the target, counted from 1; None if it never does."""

    def reaches(curve: Mapping[int, float]) -> int | None:
        there = (round_idx + 1 for round_idx, x in curve.items() if (x >= target if higher else x <= target))
        return next(there, None)

    return [reaches(curve) for curve in curves.values()]


@dataclass(frozen=True)
class PairedTest:
    """Hold the comparison of one setting with another over the seeds that both have.

    Attributes:
        pairs: number of pairs.
        difference: mean of the differences.
        half_width: half width of the mean's 95 % confidence interval (Student's t, pairs - 1 degrees of freedom); NaN for one
            pair.
        p: two-sided p of the paired t-test; NaN if the differences do not vary.
    """

    pairs: int
    difference: float
    half_width: float
    p: float


def paired_test(one: Mapping[int, float], other: Mapping[int, float]) -> PairedTest:
    """Run Student's paired t-test of ``one - other``.

    Args:
        one: value for each seed.
        other: value for each seed; seeds that only one of both has, or whose value is not finite, are left out.
    """
    from scipy import stats  # an optional dependency

    both = [seed for seed in sorted(one.keys() & other.keys()) if math.isfinite(one[seed]) and math.isfinite(other[seed])]
    differences = [one[seed] - other[seed] for seed in both]
    mean = statistics.fmean(differences) if differences else math.nan
    if len(differences) < 2:
        return PairedTest(len(differences), mean, math.nan, math.nan)
    size = max(abs(values[seed]) for values in (one, other) for seed in both)
    spread = statistics.stdev(differences)
    error = spread / math.sqrt(len(differences)) if spread > _ROUNDING * size else 0.0
    freedom = len(differences) - 1
    p = float(2 * stats.t.sf(abs(mean) / error, freedom)) if error else math.nan
    return PairedTest(len(differences), mean, float(stats.t.ppf(0.975, freedom)) * error, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests (Holm 1979): the k-th smallest of m is multiplied by m - k + 1, never decreasing.

    NaN stays NaN and is not counted.
    """
    order = sorted((p, position) for position, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = list(p_values), 0.0
    for k, (p, position) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - k)))
        adjusted[position] = largest
    return adjusted
