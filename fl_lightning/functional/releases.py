"""Compute the privacy loss of noisy releases with different noises, as of several federations on the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fl_lightning.functional.privacy import epsilon_of_client_releases, epsilon_of_example_releases

Case = tuple[tuple[int, float, int], ...]
"""What is released about an example or a client: the number of a noise, a rate, and the number of releases with both."""
Protected = Literal["examples", "clients"]
"""What a noise hides: single examples (or persons, if the data name them), or a whole client."""
_MOST_RATES = 64
"""The number of rates from which on cases are compared at every other one only."""


@dataclass(frozen=True)
class Release:
    """Describe noisy numbers that leave a client.

    Attributes:
        protects: what the noise hides.
        noise_multiplier: the noise in units of the clipping norm, > 0.
        rate: the probability that an example is in a batch, or a client in a secret cohort, in (0, 1].
        count: the number of batches, or of messages, >= 0.
    """

    protects: Protected
    noise_multiplier: float
    rate: float = 1.0
    count: int = 1


def hardest(cases: Collection[Case], most: int = 16) -> list[Case]:
    """Return cases of which one costs at least as much as any of those given.

    A case is left out if another one has as many releases with each noise, at the same or at higher rates. If more than
    ``most`` are left, rates are rounded up to the next other one, then to the next fourth one, and so on.

    Args:
        cases: what may be released, of which the most expensive is looked for.
        most: how many of them may be left without rounding.
    """
    kinds = sorted({(noise, -rate) for case in cases for noise, rate, _ in case})  # for each noise, the highest rate first
    noises = np.array([noise for noise, _ in kinds])
    first = np.searchsorted(noises, noises)
    step = 1 + len(kinds) // _MOST_RATES
    while True:
        place = np.arange(len(kinds)) - (np.arange(len(kinds)) - first) % step
        rounded = {kind: int(column) for kind, column in zip(kinds, place, strict=True)}
        counts = np.zeros((len(cases), len(kinds)), dtype=np.int64)
        for row, case in enumerate(cases):
            for noise, rate, count in case:
                counts[row, rounded[noise, -rate]] += count
        left = _highest(counts, first, len(cases) if step >= len(kinds) else most)
        if left is not None:
            return [tuple((kinds[k][0], -kinds[k][1], int(row[k])) for k in row.nonzero()[0]) for row in left]
        step *= 2


def _highest(counts: np.ndarray[Any, Any], first: np.ndarray[Any, Any], most: int) -> list[np.ndarray[Any, Any]] | None:
    """Return the rows that no other one exceeds; None if there are more than ``most``."""
    counts = np.unique(counts, axis=0)
    sums = np.concatenate([np.zeros((len(counts), 1), dtype=np.int64), counts.cumsum(1)], 1)
    reached = sums[:, 1:] - sums[:, first]  # of each noise, the releases at this rate or a higher one
    kept: list[int] = []
    for row in reached.sum(1).argsort(kind="stable")[::-1].tolist():
        if not (reached[kept] >= reached[row]).all(1).any():
            kept.append(row)
        if len(kept) > most:
            return None
    return [counts[row] for row in kept]


def epsilon_of_releases(releases: Iterable[Release], delta: float) -> float:
    """Return epsilon of all releases together, of which each may depend on the results of those before.

    Args:
        releases: the releases, all with the same protection.
        delta: delta, in (0, 1).

    Returns:
        An upper bound; infinity if no bound is available.

    Raises:
        ValueError: if the releases protect different things, whose losses have no sum.
    """
    counts: Counter[tuple[float, float]] = Counter()
    protections = set[Protected]()
    for one in releases:
        counts[one.noise_multiplier, one.rate] += one.count
        protections.add(one.protects)
    if len(protections) > 1:
        raise ValueError("Epsilons of examples and of clients have no sum.")
    parts = tuple((noise, rate, count) for (noise, rate), count in sorted(counts.items()) if count)
    if not parts:
        return 0.0
    return (epsilon_of_client_releases if protections == {"clients"} else epsilon_of_example_releases)(parts, delta)
