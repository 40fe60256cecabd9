"""Keep a strategy's sums of a round: exact, and by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import FRACTION, ExactNumber, ExactSum, magnitudes
from fl_lightning.functional.recycling import large_empty

_BITS = 50
_PRECISE = 37
_TIER = 12
_DEEPEST = 80
"""The last tier in either direction: 2**(12 * 80) is still a float64."""
_LIGHT = -36
"""Weights below 2**_LIGHT would lose digits on the finest grid, whose steps are 2**-62."""
_SPAN = 5
"""The tiers that the two integers of the finest grid cover together."""
_LIGHTEST = 14 * _SPAN
"""The last tier, after which numbers would leave the range of float64; weights below 1e-260 vanish."""

Loads = dict[tuple[str, int], list[tuple[int, float, bool]]]
"""By name and tier, for each piece of a vector: its length, the load of its low integers, whether it has high ones."""


@dataclass(frozen=True)
class Grid:
    """Define the resolution of a sum whose size and weights are roughly known before the first summand.

    A piece takes one int64 a number, and a summand is rounded by at most ``2**-49 * magnitude * largest``. Summands that are
    larger than expected are still exact, in two int64. Weights below ``2**-12 * largest`` are summed separately, on a
    grid finer by that factor, and so on; the error of a summand stays below ``2**-37`` of its own weight times
    the magnitude. Weights above ``2**12 * largest`` are summed on coarser grids in the same way.

    Args:
        pieces: the length and expected magnitude of consecutive pieces of the vector; None selects the finest grid.
        largest: the largest expected weight, > 0.
        certain: whether a weight is as large as that, so that lighter ones need no finer grid: they hardly change the average.
    """

    pieces: tuple[tuple[int, float | None], ...]
    largest: float
    certain: bool = False

    def fractions(self) -> list[tuple[int, int | None]]:
        """Return the length and fraction of each piece, as :class:`~fl_lightning.functional.exact_sum.ExactSum` takes it."""
        scale = math.frexp(self.largest)[1]
        return [
            (size, None if expected is None else min(FRACTION, _BITS - scale - math.frexp(expected)[1]))
            for size, expected in self.pieces
        ]

    def tier(self, weight: float) -> int:
        """Return how many factors of 2**12 the weight is below the largest; negative if it is far above."""
        if not weight:
            return 0
        tier = (math.frexp(self.largest / abs(weight))[1] - 1) // _TIER
        tier = min(tier, 0) if self.certain else tier
        return 0 if tier == -1 else max(-_DEEPEST, min(_DEEPEST, tier))  # somewhat above: a second integer has room


def grid_of(magnitudes: Sequence[tuple[int, float]], buffers: int, largest: float | None) -> Grid | None:
    """Return the grid for sums of models: parameters are expected to stay near the global model's, buffers anywhere.

    Args:
        magnitudes: the length and largest absolute value of each of the global model's parameters.
        buffers: the length of the averaged buffers behind them.
        largest: the largest expected weight; None if it is unknown.

    Returns:
        None if no grid can be determined beforehand, or if the weights are so small that they need their own.
    """
    if (
        largest is None
        or not 2.0 ** (_LIGHT + _TIER) <= largest < math.inf
        or not all(math.isfinite(value) for _, value in magnitudes)
    ):
        return None
    pieces: list[tuple[int, float | None]] = []
    for size, value in magnitudes:
        expected = 2.0 ** math.frexp(max(value, 0.5))[1]  # at least 1, since a tensor may start at 0
        if pieces and pieces[-1][1] == expected:
            size += pieces.pop()[0]
        pieces.append((size, expected))
    return Grid((*pieces, *([(buffers, None)] if buffers else [])), largest)


def grid_of_model(parameters: Sequence[Tensor], size: int, largest: float | None) -> Grid | None:
    """Return the grid for sums of models like a global one.

    Args:
        parameters: the global model's parameters.
        size: the length of the model with its averaged buffers.
        largest: the largest expected weight; None if it is unknown.

    Returns:
        None if no grid can be determined beforehand.
    """
    if not parameters:
        return None
    finest = any(parameter.dtype == torch.float64 for parameter in parameters)
    known = [] if finest else parameters
    lengths = [parameter.numel() for parameter in known]
    return grid_of([*zip(lengths, magnitudes(known), strict=True)], size - sum(lengths), largest)


class Sums:
    """Keep exact sums by name. Ranks merge theirs name by name.

    Args:
        device: the device of the sums; the CPU replaces a device without float64 (Apple's GPUs).
        grids: the grids by name, for sums whose size is known beforehand.
        for_masks: whether this is one client's part of sums under masks, which has one grid for each sum: a weight that would
            need another one is refused.
    """

    def __init__(
        self, device: torch.device | str = "cpu", grids: Mapping[str, Grid] | None = None, for_masks: bool = False
    ) -> None:
        self.for_masks = for_masks
        self.device = torch.device("cpu") if torch.device(device).type == "mps" else torch.device(device)
        self._grids = dict(grids or {})
        self._sums: dict[tuple[str, int], _Vector] = {}
        self._numbers: dict[tuple[str, int], ExactNumber] = {}  # not yet among them: adding to a tensor of one takes longer

    def add(self, name: str, values: Tensor | float, weight: float = 1.0) -> None:
        """Add ``weight * values`` to the sum of that name; the first summand sets its size.

        Raises:
            ClientError: if a value is not finite, the sum would become too large, or masks do not allow the weight; the sum is
                unchanged.
        """
        grid, weight = self._grids.get(name), float(weight)
        tier = _light_tier(weight) if grid is None else grid.tier(weight)
        if tier and self.for_masks:
            raise ClientError(
                f"The weight {weight:.3g} in the sum '{name}' is too far from what its grid expects, {_expected(grid)}, to be "
                "added under masks. Multiply the weights of all clients by one factor, which cancels in an average."
            )
        key, weight = (name, tier), weight * 2.0 ** (_TIER * tier)
        if isinstance(values, float | int) and key not in self._sums and (grid is None or grid.pieces == ((1, None),)):
            self._numbers.setdefault(key, ExactNumber()).add(values, weight)
            return
        vector = torch.as_tensor(values, dtype=None if isinstance(values, Tensor) else torch.float64).reshape(-1)
        if key in self._numbers:
            self._vectors(name)
        self._ensure(key, vector.numel()).add(vector.to(self.device), weight)

    def _vectors(self, name: str | None = None) -> dict[tuple[str, int], _Vector]:
        """Return the sums, among them all numbers, or at least those of one name."""
        for key in [key for key in self._numbers if name in (None, key[0])]:
            self._numbers.pop(key).move_to(self._ensure(key, 1).parts[0])
        return self._sums

    def _ensure(self, key: tuple[str, int], size: int) -> _Vector:
        if key not in self._sums:
            grid = self._grids.get(key[0])
            self._sums[key] = _Vector([(size, None)] if grid is None else grid.fractions(), self.device)
        return self._sums[key]

    def resolves(self, name: str, weight: float) -> bool:
        """Return whether a summand of this weight, > 0, and magnitude 1 keeps 37 bits of the sum of that name."""
        return name in self._grids or weight <= 2.0**_PRECISE

    def merge(self, other: Sums) -> None:
        """Add another's sums, name by name."""
        self._vectors()
        for key, vector in other._vectors().items():
            self._ensure(key, vector.size).merge(vector)

    def value(self, name: str) -> Tensor:
        """Return the sum of that name as float64, shape (d,)."""
        return self._total(name, end=False)

    def take(self, name: str) -> Tensor:
        """Return :meth:`value` in the memory of the sum, and end the sum."""
        return self._total(name, end=True)

    def _total(self, name: str, end: bool) -> Tensor:
        self._vectors(name)
        tiers = sorted(tier for known, tier in self._sums if known == name)
        total: Tensor | None = None
        for tier in tiers or [0]:
            value = self._sums[name, tier].value(end)
            if end:
                del self._sums[name, tier]
            value = value if not tier else value.mul_(2.0 ** (-_TIER * tier))
            total = value if total is None else total.add_(value)
        assert total is not None
        return total

    def scalar(self, name: str) -> float:
        """Return the sum of that name as a number; 0 if nothing was added."""
        if any(known == name for known, _ in self._sums):
            return float(self.value(name))
        numbers = sorted((tier, number.value()) for (known, tier), number in self._numbers.items() if known == name)
        return float(sum(value * 2.0 ** (-_TIER * tier) for tier, value in numbers))  # no tensor: a GPU would be waited for

    def sizes(self) -> dict[str, int]:
        """Return the length of each sum, by name."""
        return {name: vector.size for (name, _), vector in self._sums.items()} | {name: 1 for name, _ in self._numbers}

    def parts(self, name: str, size: int | None = None) -> list[ExactSum]:
        """Return the pieces of a sum. A sum with a new name starts at 0.

        Args:
            name: the sum's name.
            size: its length, if there may be none yet.
        """
        self._vectors()
        return self._ensure((name, 0), self._sums[name, 0].size if size is None else size).parts

    def loads(self) -> Loads:
        """Return the facts that ranks exchange about their sums before they add them."""
        return {
            key: [(part.low.numel(), part.load, part.high is not None) for part in vector.parts]
            for key, vector in self._vectors().items()
        }

    def integers(self, everyone: Sequence[Loads]) -> Iterator[Tensor]:
        """Yield the integers that ranks add, the same ones in the same order on each rank.

        Args:
            everyone: the :meth:`loads` of all ranks.
        """
        self._vectors()
        for key in sorted({key for loads in everyone for key in loads}):
            known = [loads[key] for loads in everyone if key in loads]
            vector = self._ensure(key, sum(size for size, _, _ in known[0]))
            for part, ranks in zip(vector.parts, zip(*known, strict=True), strict=True):
                part.ready(sum(load for _, load, _ in ranks), any(high for _, _, high in ranks))
            yield from vector.integers()


def _expected(grid: Grid | None) -> str:
    return f"{2.0**_LIGHT:.2g} or above" if grid is None else f"about {grid.largest:.3g} or up to 4,096 times less"


def _light_tier(weight: float) -> int:
    """Return the tier of a weight on the finest grid: 0 unless the weight is light."""
    exponent = math.frexp(weight)[1]
    if exponent > _LIGHT or not weight:
        return 0
    return min(_LIGHTEST, _SPAN * ((_LIGHT - exponent) // (_SPAN * _TIER) + 1))


class _Vector:
    """Keep one sum of consecutive pieces, each on its own grid."""

    def __init__(self, pieces: Sequence[tuple[int, int | None]], device: torch.device) -> None:
        sizes = [size for size, _ in pieces]
        self.size = sum(sizes)
        self._low = large_empty(self.size, torch.int64, device).zero_()
        lows = torch.split(self._low, sizes)
        self.parts = [ExactSum(size, device, fraction, low) for (size, fraction), low in zip(pieces, lows, strict=True)]

    def add(self, values: Tensor, weight: float) -> None:
        whole = len(self.parts) == 1 and len(values) == self.size
        pieces = (values,) if whole else torch.split(values, [part.low.numel() for part in self.parts])
        reaches = magnitudes(pieces)
        for part, reach in zip(self.parts, reaches, strict=True):  # check all before changing any
            part.admit(reach * abs(weight))
        for part, piece, reach in zip(self.parts, pieces, reaches, strict=True):
            part.add(piece, weight, reach)

    def merge(self, other: _Vector) -> None:
        for part, theirs in zip(self.parts, other.parts, strict=True):
            part.merge(theirs)

    def value(self, end: bool) -> Tensor:
        result = self._low.view(torch.float64) if end else torch.empty_like(self._low, dtype=torch.float64)
        for part, out in zip(self.parts, torch.split(result, [part.low.numel() for part in self.parts]), strict=True):
            part.value(out)
        return result

    def integers(self) -> Iterator[Tensor]:
        yield self._low
        yield from (part.high for part in self.parts if part.high is not None)
