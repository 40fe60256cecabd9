"""Sums of floating-point tensors in which the order cannot matter.

Floating-point addition is not associative: the same clients spread over another number of ranks would give other
last bits. Each summand is therefore split into two 64-bit integers in fixed point, whose sums are exact and
associative: ``x = high * 2**-14 + low * 2**-62``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import ClientError

_HIGH = 2.0**14
_LOW = 2.0**62
_LIMIT = 2.0**42
"""Largest sum of absolute values on one rank: its high limb then has 56 bits, which leaves room for 64 ranks."""

_TOO_LARGE = (
    "Weighted updates hold values that are not finite or add up to more than 4e12: they cannot be summed exactly. Lower the "
    "clients' learning rate (they diverge), or the scale of the strategy's weights."
)
_QUICK = 2.0**36
_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = int(torch.tensor(_MAGIC, dtype=torch.float64).view(torch.int64))
_BLOCK = 2**16
"""Numbers that are summed at once: what comes in between stays in the processor's cache."""


def wide(tensor: Tensor) -> Tensor:
    """A tensor in float64; on the CPU where its device has none (Apple's GPUs)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


class ExactSum:
    """A running sum of weighted tensors, independent of order and of the number of ranks.

    Resolution: every summand is a float64 product, kept to an absolute 2**-63, about 1e-19. Up to 2**15 summands.

    Attributes:
        limbs: the two integer sums, int64, shape (2, d). Adding the limbs of two sums adds the sums.
        bound: what the largest element could have reached, sum of the summands' largest absolute values.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.limbs = torch.zeros(2, size, dtype=torch.int64, device=device)
        self.bound = 0.0

    def add(self, values: Tensor, weight: float = 1.0) -> None:
        """Add ``weight * values``.

        Args:
            values: shape (d,), any floating dtype, finite.
            weight: finite factor; the product is taken in float64.

        Raises:
            ClientError: if a value is not finite, or the sum could leave the representable range, 2**42; it is as it was.
        """
        if not values.numel():
            return
        low, high = torch.aminmax(values)
        bound = self.bound + float(torch.maximum(-low, high)) * abs(weight)
        if not bound < _LIMIT:  # NaN is not below it either
            raise ClientError(_TOO_LARGE)
        self.bound = bound
        add = _add_quickly if self.bound < _QUICK else _add
        block = _BLOCK if values.device.type == "cpu" else values.numel()
        highs, lows = torch.split(self.limbs[0], block), torch.split(self.limbs[1], block)
        for part, high_limb, low_limb in zip(torch.split(values, block), highs, lows, strict=True):
            add(part.double() * weight, high_limb, low_limb)

    def merge(self, other: ExactSum) -> None:
        """Add another sum, of the same length, which may be masked: then its limbs are numbers modulo 2**64.

        Raises:
            ClientError: if the sum could leave the representable range.
        """
        if not self.bound + other.bound < _LIMIT:
            raise ClientError(_TOO_LARGE)
        self.bound += other.bound
        self.limbs += other.limbs

    def value(self) -> Tensor:
        """The sum, float64, shape (d,)."""
        high, low = self.limbs
        total: Tensor = high.double().div_(_HIGH).add_(low.double().div_(_LOW))
        return total


def _add(product: Tensor, high: Tensor, low: Tensor) -> None:
    upper = product.mul(_HIGH).round_()
    high += upper.long()
    low += product.sub_(upper.div_(_HIGH)).mul_(_LOW).round_().long()


def _add_quickly(product: Tensor, high: Tensor, low: Tensor) -> None:
    """The same for summands below 2**37: adding 1.5 * 2**52 rounds a double and leaves the integer in its low bits."""
    upper = product.mul(_HIGH).add_(_MAGIC)
    high.add_(upper.view(torch.int64).sub(_MAGIC_BITS))
    product.sub_(upper.sub_(_MAGIC), alpha=1 / _HIGH).mul_(_LOW).add_(_MAGIC)
    low.add_(product.view(torch.int64).sub_(_MAGIC_BITS))


class Sums:
    """Named exact sums: what a strategy keeps of a round. Ranks add theirs name by name."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        # Apple's GPUs have no float64.
        self.device = torch.device("cpu") if torch.device(device).type == "mps" else torch.device(device)
        self._sums: dict[str, ExactSum] = {}

    def add(self, name: str, values: Tensor | float, weight: float = 1.0) -> None:
        """Add ``weight * values`` to the sum of that name; the first summand sets its size."""
        vector = torch.as_tensor(values, dtype=None if isinstance(values, Tensor) else torch.float64).reshape(-1)
        self.ensure(name, vector.numel()).add(vector.to(self.device), weight)

    def ensure(self, name: str, size: int) -> ExactSum:
        """The sum of that name, begun with ``size`` zeros where there is none."""
        return self._sums.setdefault(name, ExactSum(size, self.device))

    def merge(self, other: Sums) -> None:
        """Add another's sums, name by name."""
        for name, total in other._sums.items():
            self.ensure(name, total.limbs.shape[1]).merge(total)

    def value(self, name: str) -> Tensor:
        """The sum of that name as float64, shape (d,)."""
        return self._sums[name].value()

    def scalar(self, name: str) -> float:
        """The sum of that name as a number; 0 where nothing was added."""
        return float(self._sums[name].value()) if name in self._sums else 0.0

    def sizes(self) -> dict[str, int]:
        """Length of each sum, by name."""
        return {name: total.limbs.shape[1] for name, total in self._sums.items()}
