"""Write large whole numbers as one number modulo a power of two, so that masks cancel exactly and reveal only totals.

Each number takes 704 bits: an exact sum of float32 numbers, or of their squares, has 660 at most (``exact_moments.py``). All of
them form one number, since a sum by words would also tell how often the clients' words carry over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import ClientError
from fl_lightning.functional.words import WordLayout

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
