"""Write sums as words of 64 bits that add up modulo a power of two, so that masks on them cancel exactly.

A number on a grid that is known beforehand takes one word, modulo 2**64; a number on the finest grid takes two, modulo
2**128. All words of a message form one vector: the single words, then the low and the high words of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_sum import SPLIT, ExactSum
from fl_lightning.functional.sums import Grid, Sums

_SIGN = -(2**63)
_ROOM = 2.0**62
_WIDEST = 2**40
"""The limit of the high word of a sum: sums of numbers on the finest grid stay below 2**42."""


@dataclass(frozen=True)
class WordLayout:
    """Arrange sums as words.

    Attributes:
        sizes: the length of each sum, by name.
        grids: the grids of those that have one.
    """

    sizes: Mapping[str, int]
    grids: Mapping[str, Grid]

    def pieces(self) -> Iterator[tuple[str, int, int, bool]]:
        """Yield for each piece of a sum the sum's name, the piece's number and length, and whether it takes two words."""
        for name in sorted(self.sizes):
            grid = self.grids.get(name)
            fractions = [(self.sizes[name], None)] if grid is None else grid.fractions()
            for number, (size, fraction) in enumerate(fractions):
                yield name, number, size, fraction is None

    @cached_property
    def wide(self) -> int:
        """Return how many numbers take two words."""
        return sum(size for _, _, size, wide in self.pieces() if wide)

    @cached_property
    def narrow(self) -> int:
        """Return how many numbers take one word."""
        return sum(size for _, _, size, wide in self.pieces() if not wide)

    @property
    def words(self) -> int:
        """Return the number of words."""
        return self.narrow + 2 * self.wide

    def zeros(self) -> Tensor:
        """Return the words of sums of nothing."""
        return torch.zeros(self.words, dtype=torch.int64)

    def add_rest(self, total: Tensor, words: Tensor, sign: int) -> None:
        """Add the words behind the single ones to those of a total, or subtract them, in place."""
        add_wide(total, words, sign)


def to_words(sums: Sums, layout: WordLayout, terms: int) -> Tensor:
    """Return one client's summands as words, int64. Sums that it did not add to are 0.

    Args:
        sums: the summands, without masks.
        layout: the arrangement of the words.
        terms: how many such messages will be added at most.

    Raises:
        ConfigurationError: if there is a sum that the layout does not name, or one of another length.
        ClientError: if a number is so large that the sum could leave its range.
    """
    words, sizes = layout.zeros(), sums.sizes()
    for name, size in sizes.items():
        if layout.sizes.get(name) != size:
            raise ConfigurationError(
                f"The strategy adds {size} numbers to a sum '{name}', which its 'sum_sizes' does not announce. Let the method "
                "return the length of every sum that 'accumulate' adds to."
            )
    for name, number, part, low, high in _places(words, layout):
        if name not in sizes:
            continue
        exact = sums.parts(name)[number]
        exact.settle()
        if high is None:
            if not exact.bound * 2.0**exact.fraction < _ROOM / terms:
                raise ClientError(
                    f"A number of '{name}' is too large to be added under masks: it moved much further than the grid of the "
                    "round expects. Lower the learning rate, or clip with 'federation.local.gradient_clip_val'."
                )
            low.copy_(exact.low if exact.high is None else exact.low + (exact.high << SPLIT))
        else:
            assert exact.high is not None
            shifted = exact.high << SPLIT
            torch.add(shifted, exact.low.view(part), out=low)
            high.copy_((exact.high >> (64 - SPLIT)) + (exact.low >> 63) + _below(low, shifted))
    return words


def from_words(words: Tensor, layout: WordLayout, device: torch.device | str = "cpu") -> Sums:
    """Return the sums that words hold after all masks have been removed.

    Raises:
        ClientError: if a sum is outside its range, so that a client sent something else or a mask is left.
    """
    sums = Sums(device, layout.grids, for_masks=True)
    for name, number, _, low, high in _places(words, layout):
        exact = sums.parts(name, layout.sizes[name])[number]
        if high is None:
            exact.low.copy_(low)
            continue
        if high.numel() and not -_WIDEST <= int(high.min()) <= int(high.max()) < _WIDEST:
            raise ClientError(
                f"The sum '{name}' of the masked updates is outside its range: a client has sent something else than its "
                "update."
            )
        _set_wide(exact, low.to(exact.low.device), high.to(exact.low.device))
    return sums


def add_words(total: Tensor, words: Tensor, layout: WordLayout, sign: int = 1) -> None:
    """Add words to a total, or subtract them, in place."""
    narrow = layout.narrow
    total[:narrow].add_(words[:narrow], alpha=sign)
    if len(words) > narrow:
        layout.add_rest(total[narrow:], words[narrow:], sign)


def add_wide(total: Tensor, words: Tensor, sign: int) -> None:
    """Add numbers of two words, the low words before the high ones, modulo 2**128 in place."""
    (low, high), (more, more_high) = total.chunk(2), words.chunk(2)
    if sign > 0:
        low.add_(more)
        high.add_(more_high).add_(_below(low, more))
    else:
        borrow = _below(low, more)
        low.sub_(more)
        high.sub_(more_high).sub_(borrow)


def _below(one: Tensor, other: Tensor) -> Tensor:
    """Return 1 where a word is below another, both without a sign."""
    return ((one ^ _SIGN) < (other ^ _SIGN)).long()


def _set_wide(exact: ExactSum, low: Tensor, high: Tensor) -> None:
    assert exact.high is not None
    exact.high.copy_((high << (64 - SPLIT)) | ((low >> SPLIT) & (2 ** (64 - SPLIT) - 1)))
    exact.low.copy_(low & (2**SPLIT - 1))


def _places(words: Tensor, layout: WordLayout) -> Iterator[tuple[str, int, int, Tensor, Tensor | None]]:
    """Yield for each piece the sum's name, the piece's number and length, and its words."""
    narrow, wide = layout.narrow, layout.wide
    single, double = 0, 0
    for name, number, size, two in layout.pieces():
        if two:
            low, high = words[narrow + double :][:size], words[narrow + wide + double :][:size]
            double += size
            yield name, number, size, low, high
        else:
            yield name, number, size, words[single:][:size], None
            single += size


# Large whole numbers take 704 bits each: an exact sum of float32 numbers, or of their squares, has 660 at most
# ('exact_moments.py'). All of them form one number modulo a power of two, since a sum by words would also tell how often the
# clients' words carry over.
_WORDS = 11
_BITS = 64 * _WORDS
_LARGEST = 2**680
"""The limit of one client's number, so that those of a million fit."""


@dataclass(frozen=True)
class WholeLayout(WordLayout):
    """Arrange whole numbers, by the names of their sums, as the words of one number, the low ones first."""

    @property
    def words(self) -> int:
        """Return the number of words."""
        return _WORDS * sum(self.sizes.values())

    def add_rest(self, total: Tensor, words: Tensor, sign: int) -> None:
        """Add one number to the other, or subtract it, modulo a power of two in place."""
        found = (_value(total) + sign * _value(words)) & ((1 << 64 * len(total)) - 1)
        total.copy_(_words(found.to_bytes(8 * len(total), "little")))


def whole_to_words(numbers: Sequence[int]) -> Tensor:
    """Return whole numbers as words, int64.

    Raises:
        ClientError: if one is so large that the sum could leave its range.
    """
    if any(abs(number) >= _LARGEST for number in numbers):
        raise ClientError("A whole number is too large to be added under masks. Scale the inputs to float32's range.")
    parts, carry = [], 0
    for number in numbers:  # a negative one borrows from the next
        carry += number
        parts.append((carry % (1 << _BITS)).to_bytes(8 * _WORDS, "little"))
        carry >>= _BITS
    return _words(b"".join(parts))


def words_to_whole(words: Tensor) -> list[int]:
    """Return the whole numbers, or their sums over clients, that words hold."""
    found, carry = [], 0
    for part in words.view(-1, _WORDS):
        number = _value(part) + carry
        carry = int(number >= 1 << _BITS - 1)
        found.append(number - (carry << _BITS))
    return found


def _value(words: Tensor) -> int:
    return int.from_bytes(words.numpy().tobytes(), "little")


def _words(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.int64).copy())
