"""Compress a change of a model for sending, so that the receiver gets the sender's bits.

Only some parameters may be sent, with their positions. Their changes may have 16 bits, or be levels of a scale for each block
of them: ``change = level * largest / (2^(bits - 1) - 1)``, with ``largest`` the block's largest absolute change as a float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fl_lightning.types import Compressed, Snapshot

_CHUNK = 2**20
"""How many levels are packed at a time, a multiple of 8."""


@dataclass(frozen=True)
class Levels:
    """Hold quantised numbers.

    Attributes:
        levels: whole numbers from -(2^(bits - 1) - 1) to 2^(bits - 1) - 1, int32, shape (s,).
        scales: the largest absolute value of each block, float32, shape (ceil(s / block),).
        bits: the bits of a level, from 2 to 16.
        block: the number of values that share a scale.
    """

    levels: Tensor
    scales: Tensor
    bits: int
    block: int

    def values(self) -> Tensor:
        """Return the numbers, float64, shape (s,)."""
        steps = steps_of(self.scales, self.bits).repeat_interleave(self.block)[: self.levels.numel()]
        return self.levels.double() * steps


def steps_of(scales: Tensor, bits: int) -> Tensor:
    """Return the distance of two levels of each block, float64; a block of zeros has any."""
    scales = scales.double()
    return torch.where(scales > 0, scales, torch.ones_like(scales)) / largest_level(bits)


def largest_level(bits: int) -> int:
    """Return the largest level that fits into ``bits`` bits, including the sign."""
    return (1 << (bits - 1)) - 1


def pack(levels: Tensor, bits: int) -> Tensor:
    """Return levels as bytes without gaps, uint8, shape (ceil(s * bits / 8),)."""
    shifted = (levels.cpu().numpy() + largest_level(bits)).astype(">u2")
    parts = []
    for begin in range(0, len(shifted), _CHUNK):
        single = np.unpackbits(shifted[begin : begin + _CHUNK].view(np.uint8).reshape(-1, 2), axis=1)
        parts.append(np.packbits(single[:, 16 - bits :]))
    return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, np.uint8))


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the levels in these bytes, int32, shape (count,)."""
    content, levels = packed.numpy(), np.empty(count, np.int32)
    for begin in range(0, count, _CHUNK):
        number = min(_CHUNK, count - begin)
        single = np.unpackbits(content[begin * bits // 8 :][: math.ceil(number * bits / 8)], count=number * bits)
        wide = np.zeros((number, 16), np.uint8)
        wide[:, 16 - bits :] = single.reshape(number, bits)
        levels[begin : begin + number] = np.packbits(wide, axis=1).view(">u2").reshape(-1)
    return torch.from_numpy(levels - largest_level(bits))


def compress(
    model: Snapshot, start: Tensor, positions: Tensor | None, levels: Levels | None, changes: Tensor | None = None
) -> Compressed | None:
    """Return a model in a smaller form from which :func:`restore` gives the same bits, or None if no smaller form exists.

    Args:
        model: the model, whose first p entries are parameters.
        start: the parameters of the global model, float64, shape (p,).
        positions: the positions of the parameters that may have changed, ascending, shape (s,); None for all.
        levels: the changes at these positions as levels, if they are.
        changes: the changes at these positions in a type of 16 bits, shape (s,), if it has them.
    """
    size, vector = start.numel(), model.vector
    width = torch.int32 if size < 2**31 else torch.int64
    where = None if positions is None else positions.to(width)
    whole = Compressed(vector[:0], vector[size:], model.counters, where)
    forms = []
    if levels is not None:
        packed, scales = pack(levels.levels, levels.bits), levels.scales.cpu()
        forms.append(replace(whole, numbers=packed, scales=scales, bits=levels.bits, block=levels.block))
    if changes is not None:
        forms.append(replace(whole, numbers=changes, changes=True))
    if positions is not None:
        forms.append(replace(whole, numbers=vector[:size][positions]))
    return next((form for form in forms if torch.equal(restore(form, start, vector.dtype).vector, vector)), None)


def restore(sent: Compressed, start: Tensor, dtype: torch.dtype) -> Snapshot:
    """Return the model that was compressed.

    Args:
        sent: the compressed model, which :func:`misfit` accepts.
        start: the parameters of the global model, in their own type or float64, shape (p,).
        dtype: the type of the model's vector.
    """
    start = start.cpu() if start.device.type == "mps" else start
    size = start.numel()
    vector = torch.empty(size + sent.rest.numel(), dtype=dtype, device=start.device)
    vector[size:] = sent.rest
    moved, where = vector[:size], None if sent.positions is None else sent.positions.long().to(start.device)
    if where is not None:
        for begin in range(0, size, _CHUNK):  # 0 is added because it turns -0 into 0, as at the sender
            moved[begin : begin + _CHUNK] = start[begin : begin + _CHUNK].double() + 0.0
    if sent.scales is None and not sent.changes:
        moved[slice(None) if where is None else where] = sent.numbers.to(moved)
        return Snapshot(vector, sent.counters)
    count = size if where is None else where.numel()
    sent = replace(sent, block=min(sent.block, count))
    for begin in range(0, count, _CHUNK):
        end = min(begin + _CHUNK, count)
        place = slice(begin, end) if where is None else where[begin:end]
        moved[place] = (start[place].double() + _changes(sent, begin, end).to(start.device)).to(dtype)
    return Snapshot(vector, sent.counters)


def _changes(sent: Compressed, begin: int, end: int) -> Tensor:
    """Return some of the changes that were sent, float64; ``begin`` is a multiple of 8."""
    if sent.scales is None:
        return sent.numbers[begin:end].double()
    first, bits = begin // sent.block, sent.bits
    packed = sent.numbers[begin * bits // 8 : math.ceil(end * bits / 8)].cpu()
    steps = steps_of(sent.scales[first : math.ceil(end / sent.block)].cpu(), bits)
    return unpack(packed, bits, end - begin).double() * steps[torch.arange(begin, end) // sent.block - first]


def misfit(sent: Compressed, size: int, rest: int) -> str:
    """Return why a compressed model from a stranger does not fit a model; empty if it does.

    Args:
        sent: the compressed model.
        size: the number p of parameters.
        rest: the number of floating-point buffers.
    """
    count, positions = size, sent.positions
    if positions is not None:
        if positions.dtype not in (torch.int32, torch.int64) or positions.dim() != 1 or not 0 < positions.numel() <= size:
            return "its positions have the wrong type or number"
        count = positions.numel()
        ascending = bool((positions.diff() > 0).all())
        if not ascending or int(positions[0]) < 0 or int(positions[-1]) >= size:
            return "its positions are not ascending positions of parameters"
    if sent.rest.shape != (rest,) or not sent.rest.is_floating_point():
        return f"it must have {rest} floating-point buffers"
    if sent.scales is None and sent.changes:
        fits = sent.numbers.shape == (count,) and sent.numbers.dtype in (torch.float16, torch.bfloat16)
        return "" if fits else f"it must have {count} changes of 16 bits"
    if sent.scales is None:
        fits = sent.numbers.shape == (count,) and sent.numbers.is_floating_point()
        return "" if fits else f"it must have {count} floating-point numbers"
    if not 2 <= sent.bits <= 16 or sent.block < 1:
        return "its bits or block are outside their range"
    if sent.numbers.dtype != torch.uint8 or sent.numbers.shape != (math.ceil(count * sent.bits / 8),):
        return f"it must have {count} levels of {sent.bits} bits"
    scales = sent.scales
    if scales.dtype != torch.float32 or scales.shape != (math.ceil(count / sent.block),):
        return "its scales have the wrong type or number"
    return "" if bool(torch.isfinite(scales).all()) and bool((scales >= 0).all()) else "its scales are not finite"
