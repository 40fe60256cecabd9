"""Compute the privacy loss of noisy releases with different noises, as of several federations on the same data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fl_lightning.functional.privacy import epsilon_of_client_releases, epsilon_of_example_releases

Case = tuple[tuple[int, float, int], ...]
"""What is released about an example or a client: the number of a noise, a rate, and the number of releases with both."""
Protected = Literal["examples", "clients"]
"""What a noise hides: single examples (or persons, if the data name them), or a whole client."""


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


def epsilon_of_releases(releases: Iterable[Release], delta: float) -> float:
    """Return the epsilon of all releases together. Each may depend on the results of earlier ones.

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
