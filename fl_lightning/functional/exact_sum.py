"""Sum floating-point tensors so that the order does not matter.

Floating-point addition is not associative: distributing the same clients over another number of ranks would change the
last bits. Each summand is therefore rounded once to a grid, the multiples of ``2**-fraction``, and the multiples are
added as integers, which is exact. One int64 holds a number as long as it has room. When it runs out, a second one takes
the carries: ``x = (high * 2**48 + low) * 2**-fraction``. Carries change no value, so their timing does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.errors import ClientError
from fl_lightning.functional.blocks import blocks

FRACTION = 62
"""The grid to use if no coarser one is known to suffice: it resolves 2**-62, about 2e-19, with two integers a number."""

_LIMIT = 2.0**42
"""Largest sum of absolute values: at FRACTION, its high integers then have 56 bits, which leaves room for 64 ranks."""
SPLIT = 48
"""A number in two integers is ``high * 2**SPLIT + low``."""
_ROOM = 2.0**61
"""Upper limit of the sum of the low integers, on all ranks together."""
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = int(torch.tensor(_MAGIC, dtype=torch.float64).view(torch.int64))
_QUICK = 2.0**51
"""Adding _MAGIC rounds a double below this to an integer, and leaves that integer in the low bits."""

_TOO_LARGE = (
    "Weighted updates contain values that are not finite or add up to more than 4e12, so they cannot be summed exactly. Lower "
    "the clients' learning rate (they diverge), or the scale of the strategy's weights."
)


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU if its device does not support float64 (Apple's GPUs)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def magnitude(values: Tensor) -> float:
    """Return the largest absolute value, 0 for an empty tensor, NaN if any value is NaN."""
    return magnitudes([values])[0]


def magnitudes(tensors: Sequence[Tensor]) -> list[float]:
    """Return the :func:`magnitude` of each tensor of a list, all on one device, which is waited for once."""
    ends = [end for tensor in tensors if tensor.numel() for end in torch.aminmax(tensor)]
    found = iter(torch.stack(ends).tolist() if ends else ())
    return [max(-next(found), next(found)) if tensor.numel() else 0.0 for tensor in tensors]


class ExactSum:
    """Keep a running sum of weighted tensors that does not depend on the order or the number of summands or ranks.

    Args:
        size: the length d.
        device: the device of the sum.
        fraction: rounds each summand, a float64 product, to a multiple of ``2**-fraction``, at most 62. One int64 a number is
            enough while the summands are below ``2**(51 - fraction)`` and their sum below ``2**(61 - fraction)``. None means
            62 with two integers from the start.
        low: the memory to use, int64, shape (d,), zeros; allocated by default.

    Attributes:
        low: the low integers, int64, shape (d,).
        high: the high integers, int64, shape (d,), or None as long as ``low`` has room.
        bound: the largest value an element could have reached, the sum of the summands' largest absolute values.
    """

    def __init__(
        self, size: int, device: torch.device | str = "cpu", fraction: int | None = None, low: Tensor | None = None
    ) -> None:
        self.low = torch.zeros(size, dtype=torch.int64, device=device) if low is None else low
        self.high = torch.zeros_like(self.low) if fraction is None else None
        self.fraction = FRACTION if fraction is None else fraction
        self.bound = 0.0
        self.load = 0.0
        """The largest value that ``low`` could have reached."""
        self._biases = 0
        """How often _MAGIC_BITS must still be subtracted from ``low``, modulo 2**64; once at the end is enough."""

    def admit(self, largest: float) -> None:
        """Reject a summand before anything is added.

        Args:
            largest: its largest absolute value, weighted.

        Raises:
            ClientError: if it is not finite, or if the sum could exceed 2**42.
        """
        if not self.bound + largest < _LIMIT:  # NaN is not below it either
            raise ClientError(_TOO_LARGE)

    def add(self, values: Tensor, weight: float = 1.0, largest: float | None = None) -> None:
        """Add ``weight * values``.

        Args:
            values: the summand, shape (d,), any floating dtype, finite.
            weight: a finite factor; the product is taken in float64.
            largest: the largest absolute value, if it is known.

        Raises:
            ClientError: as :meth:`admit` does; the sum is unchanged.
        """
        reach = (magnitude(values) if largest is None else largest) * abs(weight)
        self.admit(reach)
        self.bound += reach
        self._make_room(self._weight_of(reach), reach * 2.0**self.fraction >= _QUICK)
        scale = weight * 2.0**self.fraction
        parts, lows = blocks(values), blocks(self.low)
        if self.high is None:
            _add_narrow(parts, lows, scale)
            self._biases += 1
        else:
            _add_wide(parts, lows, blocks(self.high), scale, reach * 2.0 ** (self.fraction - SPLIT) < _QUICK)

    def merge(self, other: ExactSum) -> None:
        """Add another sum of the same length and fraction.

        Raises:
            ClientError: if the sum could leave the representable range.
        """
        self.admit(other.bound)
        self.bound += other.bound
        self.settle()
        other.settle()
        self._make_room(other.load, other.high is not None)
        self.low += other.low
        if other.high is not None:
            assert self.high is not None
            self.high += other.high

    def ready(self, load: float, high: bool) -> None:
        """Prepare for adding the integers of all ranks.

        Args:
            load: the sum of :attr:`load` over the ranks.
            high: whether a rank has a second integer.
        """
        self.settle()
        if high or load > _ROOM:
            self._carry()

    def value(self, out: Tensor | None = None) -> Tensor:
        """Return the sum, float64, shape (d,), correctly rounded up to 2**53 times 2**(48 - fraction).

        Args:
            out: the output memory; it may be the memory of ``low``, which ends the sum. By default the sum can continue.
        """
        if self.high is not None:
            self._carry()
        result = torch.empty(self.low.shape, dtype=torch.float64, device=self.low.device) if out is None else out
        highs = blocks(self.low if self.high is None else self.high)
        for low, high, total in zip(blocks(self.low), highs, blocks(result), strict=True):
            units = low.sub(_as_int64(self._biases)).double()
            if self.high is not None:
                units.add_(high.double(), alpha=2.0**SPLIT)
            torch.mul(units, 2.0**-self.fraction, out=total)
        return result

    def _weight_of(self, reach: float) -> float:
        """Return the most that a summand can add to the low integers."""
        return min(reach * 2.0**self.fraction + 1.0, 2.0 ** (SPLIT - 1) if self.high is not None else float("inf"))

    def _make_room(self, load: float, high: bool) -> None:
        """Carry if the low integers could overflow, or if a summand is too large for them."""
        if (high and self.high is None) or self.load + load > _ROOM:
            self._carry()
            load = min(load, 2.0 ** (SPLIT - 1))
        self.load += load

    def settle(self) -> None:
        """Leave in ``low`` and ``high`` nothing but the sum."""
        if self._biases:
            self.low -= _as_int64(self._biases)
            self._biases = 0

    def _carry(self) -> None:
        self.settle()
        self.high = torch.zeros_like(self.low) if self.high is None else self.high
        for low, high in zip(blocks(self.low), blocks(self.high), strict=True):
            carries = (low + 2 ** (SPLIT - 1)) >> SPLIT
            high += carries
            low -= carries << SPLIT
        self.load = 2.0 ** (SPLIT - 1)


class ExactNumber:
    """Keep the exact sum of weighted numbers on the finest grid. Python's integers hold any multiple of it.

    Attributes:
        bound: see :class:`ExactSum`.
    """

    def __init__(self) -> None:
        self.bound = 0.0
        self._units = 0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add ``weight * value``, as :meth:`ExactSum.add` does.

        Raises:
            ClientError: as :meth:`ExactSum.admit` does; the sum is unchanged.
        """
        reach = abs(value) * abs(weight)
        if not self.bound + reach < _LIMIT:
            raise ClientError(_TOO_LARGE)
        self.bound += reach
        self._units += round(value * (weight * 2.0**FRACTION))

    def move_to(self, total: ExactSum) -> None:
        """Add the sum to another of one number on the finest grid, which has none yet."""
        assert total.high is not None
        high, low = self._split()
        total.high += high
        total.low += low
        total.bound, total.load = self.bound, 2.0 ** (SPLIT - 1)

    def value(self) -> float:
        """Return the sum, rounded as :meth:`ExactSum.value` rounds it."""
        high, low = self._split()
        return (float(low) + float(high) * 2.0**SPLIT) * 2.0**-FRACTION

    def _split(self) -> tuple[int, int]:
        high = (self._units + 2 ** (SPLIT - 1)) >> SPLIT
        return high, self._units - (high << SPLIT)


def _as_int64(biases: int) -> int:
    """Return this many _MAGIC_BITS modulo 2**64, as a signed number."""
    return (biases * _MAGIC_BITS + 2**63) % 2**64 - 2**63


def _add_narrow(parts: tuple[Tensor, ...], lows: tuple[Tensor, ...], scale: float) -> None:
    """Add products below 2**51, rounded to integers, and _MAGIC_BITS."""
    scratch = torch.empty(lows[0].shape if lows else 0, dtype=torch.float64, device=lows[0].device if lows else None)
    bits = scratch.view(torch.int64)
    # On a GPU one kernel converts and multiplies: these sums take as long as the bytes that they move.
    factor = torch.full((1,), scale, dtype=torch.float64, device=scratch.device) if scratch.is_cuda else None
    for part, low in zip(parts, lows, strict=True):
        size = low.numel()
        product = scratch[:size]
        if factor is None:
            product.copy_(part).mul_(scale)
        else:
            torch.mul(part, factor, out=product)
        product.add_(_MAGIC)
        low.add_(bits[:size])


def _add_wide(
    parts: tuple[Tensor, ...], lows: tuple[Tensor, ...], highs: tuple[Tensor, ...], scale: float, quick: bool
) -> None:
    for part, low, high in zip(parts, lows, highs, strict=True):
        product = part.double() * scale
        upper = product.mul(2.0**-SPLIT)
        if quick:
            upper.add_(_MAGIC)
            high.add_(upper.view(torch.int64).sub(_MAGIC_BITS))
            product.sub_(upper.sub_(_MAGIC), alpha=2.0**SPLIT).add_(_MAGIC)
            low.add_(product.view(torch.int64).sub_(_MAGIC_BITS))
        else:
            high.add_(upper.round_().long())
            low.add_(product.sub_(upper, alpha=2.0**SPLIT).round_().long())
