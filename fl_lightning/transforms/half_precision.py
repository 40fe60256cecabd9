"""Send changes in 16 bits per number."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.transforms.base import Message, Sender, Transform


class HalfPrecision(Transform):
    """Round each number of the change to 16 bits, to the nearest.

    Changes are rounded, not weights: ``w_t + round(w_k - w_t)``. bfloat16 keeps 8 binary digits of a change of any size, so it
    is off by at most 1/256 of it. float16 keeps 11 digits from 6e-5 to 65504, with an error of at most 1/2048, and fewer
    below: changes under 3e-8 become 0.

    Args:
        dtype: the type of the numbers that are sent.
    """

    def __init__(self, dtype: Literal["bfloat16", "float16"] = "bfloat16") -> None:
        self.dtype = dtype

    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the rounded message; see :meth:`Transform.apply`.

        Raises:
            ClientError: if a change is too large for the type.
        """
        kind: torch.dtype = getattr(torch, self.dtype)
        largest = magnitude(message.change)
        if torch.finfo(kind).max < largest < float("inf"):
            raise ClientError(
                f"Client {sender.client} changes a weight by {largest:.3g} in round {sender.round_idx}, which is too large for "
                f"{self.dtype} (up to {torch.finfo(kind).max:.5g}). Set 'federation.transforms.dtype' to bfloat16, or lower "
                "its learning rate."
            )
        rounded = message.change.to(kind).to(message.change)
        scales = 0 if message.levels is None else message.levels.scales.nbytes  # levels are not sent any more
        return replace(message, change=rounded, bits=16, overhead=message.overhead - scales, levels=None, dtype=kind)
