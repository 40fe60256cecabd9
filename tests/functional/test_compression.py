"""Compressed models: levels without gaps, and the sender's bits at the receiver."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.functional.compression import Levels, compress, largest_level, misfit, pack, restore, unpack
from fl_lightning.types import Snapshot


@given(st.integers(2, 16), st.lists(st.floats(-1, 1), max_size=40))
@settings(max_examples=60, deadline=None)
def test_levels_are_packed_like_python_packs_integers(bits, shares):
    most = largest_level(bits)
    levels = [round(share * most) for share in shares]
    packed = pack(torch.tensor(levels, dtype=torch.int32), bits)
    text = "".join(format(level + most, f"0{bits}b") for level in levels)
    count = math.ceil(len(text) / 8)
    assert bytes(packed.tolist()) == int(text.ljust(8 * count, "0") or "0", 2).to_bytes(count, "big")
    assert unpack(packed, bits, len(levels)).tolist() == levels


def test_more_levels_than_a_chunk():
    levels = torch.randint(-3, 4, (2**20 + 11,), dtype=torch.int32)
    assert torch.equal(unpack(pack(levels, 3), 3, levels.numel()), levels)


def model(bits: int = 6) -> tuple[torch.Tensor, torch.Tensor, Levels]:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(30, generator=draw).double()
    start[4] = -0.0
    levels = Levels(torch.randint(-31, 32, (7,), dtype=torch.int32, generator=draw), torch.rand(3, generator=draw), bits, 3)
    return start, torch.tensor([0, 4, 5, 11, 17, 28, 29]), levels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_receiver_gets_the_senders_bits(dtype):
    """Levels by hand: change = level * largest / (2^(bits - 1) - 1)."""
    start, positions, levels = model()
    steps = [float(levels.scales[k // 3]) / 31 for k in range(7)]
    change = torch.zeros(30, dtype=torch.float64)
    for k, position in enumerate(positions.tolist()):
        change[position] = int(levels.levels[k]) * steps[k]
    vector = torch.cat([(start + change).to(dtype), torch.tensor([9.0, 8.0], dtype=dtype)])
    sent = Snapshot(vector, torch.tensor([3]))
    for given_levels, kind in ((levels, torch.uint8), (None, dtype)):
        small = compress(sent, start, positions, given_levels)
        assert small is not None
        assert small.numbers.dtype == kind
        assert misfit(small, 30, 2) == ""
        found = restore(small, start, dtype)
        assert torch.equal(found.vector.view(torch.int32), vector.view(torch.int32))
        assert found.counters.tolist() == [3]


def test_levels_that_another_transform_has_changed_are_not_sent():
    """A transform after Quantize may clip: the message still has its levels, which no longer describe the change."""
    start, positions, levels = model()
    change = torch.zeros(30, dtype=torch.float64).index_copy(0, positions, levels.values() / 2)
    sent = Snapshot((start + change).float(), torch.zeros(0, dtype=torch.int64))
    small = compress(sent, start, positions, levels)
    assert small is not None
    assert small.scales is None
    assert torch.equal(restore(small, start, torch.float32).vector, sent.vector)
    everywhere = Snapshot(torch.randn(30), sent.counters)
    assert compress(everywhere, start, positions, levels) is None
    assert compress(everywhere, start, None, None) is None
