"""Add up numbers and their squares exactly, so that the sums of parts are those of the whole to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import DataError

_BITS = 24
"""The bits of a float32's significand."""
UNIT_BITS = 172
"""Sums are in units of 2^-172, and sums of squares in units of 2^-344."""
_LOWEST = -UNIT_BITS
"""The exponent of the smallest unit: subnormal numbers are multiples of 2^-149, with 23 bits of their significand below."""
_BINS = 128 - _BITS - _LOWEST + 1
_HALF = 12
"""Squares of significands are added as three parts, each far below 2^53."""
_DIGITS = 200
"""The most hexadecimal digits of a sum of squares and its sign, with room to spare."""
_ROWS = 2**20
"""Numbers that are added at once in float64, which holds their sums exactly."""


@dataclass(frozen=True)
class Moments:
    """Hold the sums of the numbers of each channel, without the missing ones (NaN).

    Attributes:
        counts: how many numbers there are, by channel.
        totals: their sums in units of 2^-172.
        squares: the sums of their squares in units of 2^-344.
        bounds: the smallest and the largest number of each channel, which are in no message; empty if they are not known.
    """

    counts: tuple[int, ...]
    totals: tuple[int, ...]
    squares: tuple[int, ...]
    bounds: tuple[tuple[float, float], ...] = field(default=(), compare=False)

    def texts(self) -> tuple[tuple[str, ...], ...]:
        """Return the numbers in hexadecimal: messages hold no whole numbers of more than 63 bits."""
        return tuple(tuple(f"{number:x}" for number in numbers) for numbers in (self.counts, self.totals, self.squares))

    @staticmethod
    def of_texts(texts: Sequence[Sequence[str]]) -> Moments:
        """Return the moments that :meth:`texts` describes.

        Raises:
            ValueError: if no float32 numbers can have them.
        """
        if (
            len(texts) != 3
            or len({len(one) for one in texts}) != 1
            or any(len(text) > _DIGITS for one in texts for text in one)
        ):
            raise ValueError("There are not three short numbers for each channel.")
        counts, totals, squares = (tuple(int(text, 16) for text in one) for one in texts)
        return Moments(counts, totals, squares).possible()

    def possible(self) -> Moments:
        """Return these moments.

        Raises:
            ValueError: if no float32 numbers can have them.
        """
        for n, total, square in zip(self.counts, self.totals, self.squares, strict=True):
            fits = 0 <= n < 2**60 and abs(total) <= n << 300 and 0 <= square <= n << 600 and total * total <= n * square
            if not fits:
                raise ValueError("No numbers have these sums.")
        return self

    def without(self, part: Moments) -> Moments:
        """Return the moments of the other numbers, where these contain the part's."""
        pairs = (zip(getattr(self, name), getattr(part, name), strict=True) for name in _FIELDS)
        return Moments(*(tuple(whole - own for whole, own in numbers) for numbers in pairs))

    def means(self) -> list[float]:
        """Return the mean of each channel, rounded once; 0 for a channel without numbers."""
        return [float(Fraction(total, n << -_LOWEST)) if n else 0.0 for n, total in zip(self.counts, self.totals, strict=True)]

    def deviations(self) -> list[float]:
        """Return the standard deviation of each channel (of the population); 0 for a channel without numbers.

        The variance is exact before it is rounded, however far the numbers are from 0.
        """
        found = []
        for n, total, square in zip(self.counts, self.totals, self.squares, strict=True):
            variance = Fraction(n * square - total * total, (n * n) << (-2 * _LOWEST)) if n else Fraction(0)
            found.append(math.sqrt(float(variance)))
        return found


def is_binary(moments: Moments, channel: int) -> bool:
    """Return whether the sums of a channel are those of zeros and ones."""
    return moments.totals[channel] << -_LOWEST == moments.squares[channel]


def number_of_ones(moments: Moments, channel: int) -> int:
    """Return how many ones there are in a channel of zeros and ones."""
    return moments.totals[channel] >> -_LOWEST


def number_of_largest(moments: Moments, channel: int) -> int | None:
    """Return how many numbers of a channel are its largest, if all others are its smallest; None if it has further ones.

    The sum of (x - smallest)(x - largest) has no term above 0, so it is 0 exactly if there are no further numbers. Without
    bounds, they are 0 and 1.
    """
    n, total, square = moments.counts[channel], moments.totals[channel], moments.squares[channel]
    if not n:
        return 0
    bounds = moments.bounds[channel] if moments.bounds else (0.0, 1.0)
    low, high = (int(Fraction(bound) * (1 << UNIT_BITS)) for bound in bounds)  # float32 numbers are multiples of the unit
    if square != (low + high) * total - n * low * high:
        return None
    return n if low == high else (total - n * low) // (high - low)


def together(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all parts; their order does not matter.

    Raises:
        DataError: if there is none, or if they differ in their number of channels.
    """
    found = list(parts)
    sizes = sorted({len(part.counts) for part in found})
    if not sizes:
        raise DataError("There are no examples to measure.")
    if len(sizes) > 1:
        raise DataError(
            f"Inputs have different numbers of channels: {' and '.join(map(str, sizes))}. Give all clients the same features."
        )
    columns = [[sum(values) for values in zip(*(getattr(p, name) for p in found), strict=True)] for name in _FIELDS]
    known = zip(*(part.bounds for part in found), strict=True) if all(part.bounds for part in found) else ()
    bounds = tuple((min(low for low, _ in own), max(high for _, high in own)) for own in known)
    counts, totals, squares = map(tuple, columns)
    return Moments(counts, totals, squares, bounds)


_FIELDS = ("counts", "totals", "squares")


def moments_of(numbers: Tensor) -> Moments:
    """Return the moments of numbers of shape (n,), (n, d) or (n, d, ...), for each of the d channels, as float32.

    Raises:
        ValueError: if a number is infinite, also as float32.
    """
    if numbers.dim() < 2:
        numbers = numbers.reshape(-1, 1)
    channels = numbers.movedim(1, 0).flatten(1).to("cpu", torch.float32)
    if bool(torch.isinf(channels).any()):
        raise ValueError("A number is infinite.")
    return together(
        Moments(*zip(*(_channel(part) for part in piece.numpy()), strict=True)) for piece in torch.split(channels, _ROWS, dim=1)
    )


def _channel(numbers: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> tuple[int, int, int, tuple[float, float]]:
    """Return the count, the total, the total of the squares, and the smallest and largest number of one channel."""
    there = numbers[~np.isnan(numbers)].astype(np.float64)
    fraction, exponent = np.frexp(there)
    significand = np.ldexp(fraction, _BITS).astype(np.int64)  # 24 bits and a sign
    bins = exponent - _BITS - _LOWEST
    high, low = np.abs(significand) >> _HALF, np.abs(significand) & ((1 << _HALF) - 1)
    total = _whole(bins, significand, 1)
    square = (
        (_whole(bins, high * high, 2) << 2 * _HALF) + (_whole(bins, 2 * high * low, 2) << _HALF) + _whole(bins, low * low, 2)
    )
    return len(there), total, square, (float(there.min(initial=math.inf)), float(there.max(initial=-math.inf)))


def _whole(
    bins: np.ndarray[tuple[int, ...], np.dtype[np.int64]], values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], power: int
) -> int:
    """Return the sum of ``values * 2 ** (power * bin)``: values of equal exponent are added first, exactly in float64."""
    sums = np.bincount(bins, weights=values, minlength=_BINS)
    return sum(int(found) << (power * place) for place, found in enumerate(sums.tolist()) if found)


def moments_of_batches(batches: Iterable[Any]) -> Moments:
    """Return the moments of the inputs in batches: of a batch that is a tensor, otherwise of its first entry.

    Raises:
        DataError: if a batch has no such tensor, if there is none, or if a number is infinite.
    """
    found = []
    for batch in batches:
        try:
            found.append(moments_of(inputs_of(batch)))
        except ValueError as error:
            raise DataError(f"The inputs cannot be measured: {error} Correct the data.") from error
    return together(found)


def inputs_of(batch: Any) -> Tensor:
    """Return the inputs in a batch: the batch if it is a tensor, otherwise its first entry.

    Raises:
        DataError: if they are no tensor.
    """
    inputs = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if not isinstance(inputs, Tensor):
        raise DataError(
            f"Inputs can be measured if they are a tensor, or the first entry of a batch, but a batch is a "
            f"{type(batch).__name__}. Scale such inputs in the module itself, without Standardized, or give the datamodule "
            "a method 'statistics(batches)'."
        )
    return inputs
