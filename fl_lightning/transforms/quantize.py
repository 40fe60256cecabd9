"""Quantise updates stochastically (Alistarh et al. 2017, QSGD)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from fl_lightning.errors import require
from fl_lightning.functional.compression import Levels, largest_level, steps_of
from fl_lightning.transforms.base import Message, Sender, Transform

_SCALE = 4
"""The bytes of a block's scale, a float32."""


class Quantize(Transform):
    """Send each number as one of 2^bits - 1 levels from -s to s, with unbiased random rounding.

    s is the largest absolute value of the number's block.

    Args:
        bits: the bits per number, from 2 to 16.
        block: the number of values that share a scale, >= 1.
    """

    def __init__(self, bits: int = 8, block: int = 4096) -> None:
        require(2 <= bits <= 16, "federation.transforms.bits", "from 2 to 16", bits)
        require(block >= 1, "federation.transforms.block", "1 or above", block)
        self.bits, self.block = bits, block

    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the quantised message; see :meth:`Transform.apply`."""
        change, positions = message.change, message.positions
        values = change if positions is None else change[positions]
        blocks = math.ceil(values.numel() / self.block)
        padded = torch.nn.functional.pad(values, (0, blocks * self.block - values.numel())).view(blocks, self.block)
        most = largest_level(self.bits)
        scales = padded.abs().amax(dim=1).float()  # as sent
        draw = torch.rand(padded.shape, generator=sender.draw, dtype=torch.float64).to(padded.device)
        rounded = torch.floor(padded / steps_of(scales, self.bits)[:, None] + draw).clamp(-most, most)
        levels = Levels(rounded.int().view(-1)[: values.numel()], scales, self.bits, self.block)
        received = levels.values()
        result = received if positions is None else torch.zeros_like(change).index_copy(0, positions, received)
        overhead = message.overhead + blocks * _SCALE
        return replace(message, change=result, bits=self.bits, overhead=overhead, levels=levels, dtype=None)
