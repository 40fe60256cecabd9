"""Count numbers in common bins, without counts of few rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fl_lightning.functional.exact_moments import Moments, inputs_of, is_binary, number_of_ones
from fl_lightning.functional.small_counts import told

Cuts = Sequence[Sequence[float]]
"""The borders between bins of each channel; none for a channel without bins. The first and the last bin are open."""
BINS = 10
_OUTERMOST = 2.0
"""The deviations from the mean at which the outermost bins of a channel without a range begin."""


def equal_cuts(low: float, high: float) -> tuple[float, ...]:
    """Return the borders between ten bins of equal width."""
    return tuple(low + (high - low) * k / BINS for k in range(1, BINS))


def cuts_of(moments: Moments, known: Cuts = ()) -> list[Sequence[float]]:
    """Return borders for the numbers of all clients.

    Args:
        moments: their moments.
        known: the borders that a schema gives, which are used where there are some.
    """
    found: list[Sequence[float]] = []
    for k, (mean, deviation) in enumerate(zip(moments.means(), moments.deviations(), strict=True)):
        given = known[k] if k < len(known) else ()
        if is_binary(moments, k):
            found.append((0.5,))
        elif given or deviation == 0:
            found.append(given)
        else:
            step = 2 * _OUTERMOST * deviation / (BINS - 2)
            found.append(tuple(mean + step * (j - (BINS - 2) / 2) for j in range(BINS - 1)))
    return found


def histograms_of(batches: Iterable[Any], cuts: Cuts) -> list[list[int]]:
    """Return how many numbers of each column are in each bin, without missing ones; a border belongs to the bin above it.

    Images have none: few of them may be behind many pixels.

    Args:
        batches: batches as :func:`~fl_lightning.functional.exact_moments.moments_of_batches` reads them.
        cuts: the borders.
    """
    counts = [np.zeros(len(own) + 1, dtype=np.int64) for own in cuts]
    for batch in batches:
        inputs = inputs_of(batch)
        if inputs.dim() > 2:
            return [[] for _ in cuts]
        columns = inputs.reshape(len(inputs), -1).to("cpu", torch.float32).numpy()
        for k, own in enumerate(cuts):
            numbers = columns[~np.isnan(columns[:, k]), k]
            counts[k] += np.bincount(np.searchsorted(own, numbers, side="right"), minlength=len(own) + 1)
    return [one.tolist() if own else [] for one, own in zip(counts, cuts, strict=True)]


def without_few(counts: Sequence[int], least: int) -> tuple[int | None, ...]:
    """Return counts with None for those of few rows, and for those that would reveal them."""
    return tuple(count if tells else None for count, tells in zip(counts, told(counts, least), strict=True))


def shown_counts(
    moments: Moments, histograms: Sequence[Sequence[int | None]], categories: Moments
) -> list[tuple[int | None, ...]]:
    """Return the counts of each channel's bins: of zeros and ones, or of its histogram.

    Args:
        moments: the moments of all clients, which say what a channel of zeros and ones is.
        histograms: a client's histograms.
        categories: its moments, of which channels that tell of few rows count no numbers.
    """
    found: list[tuple[int | None, ...]] = []
    for k, own in enumerate(histograms):
        if not is_binary(moments, k):
            found.append(tuple(own))
        elif categories.counts[k]:
            ones = number_of_ones(categories, k)
            found.append((categories.counts[k] - ones, ones))
        else:
            found.append((None, None))
    return found


def borders(cuts: Sequence[float]) -> list[tuple[float, float]]:
    """Return from where to where each bin goes."""
    whole = [-math.inf, *cuts, math.inf]
    return list(pairwise(whole))
