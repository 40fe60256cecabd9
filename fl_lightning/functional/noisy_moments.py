"""Add up bounded columns with the noise of differential privacy, in integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fl_lightning.functional.exact_moments import UNIT_BITS, Moments, inputs_of

RandBelow = Callable[[int], int]
"""Draws a whole number from 0 to below its argument, such as ``secrets.randbelow``."""
_STEPS = 2**24
"""The steps between the smallest and the largest value of a column: values are rounded to them."""


@dataclass(frozen=True)
class BoundedField:
    """Describe the channels of a column whose values are bounded.

    Args:
        channels: its channels: one, or one of 0 and 1 for each category.
        low: the smallest value.
        high: the largest value; values outside are clipped.
        gaps: whether values may be missing (NaN); otherwise every row has one.
        is_binary: whether the values are zeros and ones.
    """

    channels: tuple[int, ...]
    low: float = 0.0
    high: float = 1.0
    gaps: bool = False
    is_binary: bool = False

    @property
    def sensitivity(self) -> int:
        """Return the most by which a replaced row changes the field's sums together, each in units of its largest summand."""
        if len(self.channels) > 1:
            return 2  # one category has a row less, and another one more
        return (1 if self.is_binary else 2) + self.gaps


def bounded_sums(batches: Iterable[Any], fields: Sequence[BoundedField]) -> tuple[int, list[list[int]]]:
    """Return the number of rows, and of each field the sums that its moments follow from.

    These are the rows of each category; or, in steps, the sum of a column, that of its squares unless it is of zeros and ones,
    and the number of its values if some may be missing.
    """
    rows, found = 0, [[0] * len(_sums(np.zeros((0, 1 + max(f.channels))), f)) for f in fields]
    for batch in batches:
        columns = inputs_of(batch).to("cpu").double().numpy()
        rows += len(columns)
        found = [[a + b for a, b in zip(one, _sums(columns, f), strict=True)] for one, f in zip(found, fields, strict=True)]
    return rows, found


def _sums(columns: np.ndarray[Any, Any], field: BoundedField) -> list[int]:
    own = columns[:, list(field.channels)]
    there = ~np.isnan(own)
    shares = np.where(there, np.clip((own - field.low) / (field.high - field.low), 0, 1), 0)
    if len(field.channels) > 1:
        return [int(n) for n in (shares.round().astype(np.int64)).sum(0)]
    powers = [shares] if field.is_binary else [shares, shares**2]
    return [int((one * _STEPS).round().astype(np.int64).sum()) for one in powers] + [int(there.sum()) * _STEPS] * field.gaps


def noisy_moments(
    batches: Iterable[Any], fields: Sequence[BoundedField], channels: int, epsilon: float, draw: RandBelow
) -> Moments:
    """Return moments that are epsilon-differentially private for a row that is replaced; the number of rows is public.

    Each sum gets noise of the discrete Laplace distribution (Ghosh, Roughgarden and Sundararajan 2012). Its scale is the most
    by which a replaced row changes all sums together, by epsilon. Channels of no field count no numbers.

    Args:
        batches: the rows.
        fields: the columns whose sums are told.
        channels: the number of channels.
        epsilon: the privacy loss, > 0.
        draw: draws the noise.
    """
    rows, sums = bounded_sums(batches, fields)
    scale = sum(one.sensitivity for one in fields) / Fraction(str(epsilon))
    every = [(0, 0, 0)] * channels
    for field, exact in zip(fields, sums, strict=True):
        step = 1 if len(field.channels) > 1 else _STEPS
        told = [Fraction(n + discrete_laplace(scale * step, draw), step) for n in exact]
        for k, one in zip(field.channels, _possible(field, told, rows), strict=True):
            every[k] = one
    return Moments(*zip(*every, strict=True))


def _possible(field: BoundedField, told: Sequence[Fraction], rows: int) -> list[tuple[int, int, int]]:
    """Return the count, total and total of squares of each channel that numbers can have and that are nearest to noisy sums."""
    if len(field.channels) > 1:
        cells = [min(max(n, Fraction(0)), Fraction(rows)) for n in told]
        count = min(max(1, round(sum(cells))), rows) if field.gaps else rows
        return [_moments(count, min(n / count, Fraction(1)), min(n / count, Fraction(1)), field) for n in cells]
    count = min(max(1, round(told[-1])), rows) if field.gaps else rows
    mean = min(max(told[0] / count, Fraction(0)), Fraction(1))
    square = mean if field.is_binary else min(max(told[1] / count, mean * mean), mean)
    return [_moments(count, mean, square, field)]


def _moments(count: int, mean: Fraction, square: Fraction, field: BoundedField) -> tuple[int, int, int]:
    """Return the sums of numbers whose place in the range has this mean and mean square."""
    low, width = Fraction(field.low), Fraction(field.high) - Fraction(field.low)
    total = count * (low + width * mean) * 2**UNIT_BITS
    squares = count * (low * low + 2 * low * width * mean + width * width * square) * 2 ** (2 * UNIT_BITS)
    return count, int(total), -int(-squares // 1)  # towards zero and up, so that such numbers exist


def discrete_laplace(scale: Fraction, draw: RandBelow) -> int:
    """Draw a whole number k with a probability proportional to ``exp(-|k| / scale)``, exactly.

    The algorithm is that of Canonne, Kamath and Steinke (2020), Algorithm 2.
    """
    top, bottom = scale.numerator, scale.denominator
    while True:
        part = draw(top)
        if not _with_probability_exp(part, top, draw):
            continue
        whole = 0
        while _with_probability_exp(1, 1, draw):
            whole += 1
        size, negative = (part + top * whole) // bottom, draw(2)
        if size or not negative:
            return -size if negative else size


def _with_probability_exp(top: int, bottom: int, draw: RandBelow) -> bool:
    """Return true with the probability ``exp(-top / bottom)``, for at most 1."""
    k = 1
    while draw(bottom * k) < top:
        k += 1
    return k % 2 == 1
