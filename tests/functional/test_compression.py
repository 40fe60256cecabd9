"""Compressed models: levels without gaps, and the sender's bits at the receiver."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.functional.compression import Levels, compress, largest_level, misfit, pack, restore, unpack
from fl_lightning.types import Compressed, Snapshot


@given(st.integers(2, 16), st.lists(st.floats(-1, 1), max_size=40))
def test_levels_are_packed_like_python_packs_integers(bits, shares):
    most = largest_level(bits)
    levels = [round(share * most) for share in shares]
    packed = pack(torch.tensor(levels, dtype=torch.int32), bits)
    text = "".join(format(level + most, f"0{bits}b") for level in levels)
    count = math.ceil(len(text) / 8)
    assert bytes(packed.tolist()) == int(text.ljust(8 * count, "0") or "0", 2).to_bytes(count, "big")
    assert unpack(packed, bits, len(levels)).tolist() == levels


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


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_changes_of_16_bits_give_the_senders_bits(kind):
    start, positions, _ = model()
    for where in (None, positions):
        count = 30 if where is None else len(where)
        numbers = torch.randn(count, generator=torch.Generator().manual_seed(1)).to(kind)
        change = numbers.double() if where is None else torch.zeros(30).double().index_copy(0, where, numbers.double())
        sent = Snapshot(torch.cat([(start + change).float(), torch.ones(2)]), torch.tensor([3]))
        small = compress(sent, start, where, None, numbers)
        assert small is not None
        assert small.changes
        assert small.numbers.nbytes == 2 * count
        assert misfit(small, 30, 2) == ""
        for begin in (start, start.float()):  # start has no more digits than a float32
            found = restore(small, begin, torch.float32).vector
            assert torch.equal(found.view(torch.int32), sent.vector.view(torch.int32))


def test_many_levels_and_changes_are_restored_in_pieces():
    """As many as two pieces and a bit, in blocks that do not divide a piece."""
    draw, size = torch.Generator().manual_seed(2), 2**21 + 13
    start = torch.randn(size, generator=draw)
    levels = Levels(torch.randint(-3, 4, (size,), generator=draw, dtype=torch.int32), torch.rand(21, generator=draw), 3, 10**5)
    halves = torch.randn(size, generator=draw).bfloat16()
    for change, sent in ((levels.values(), (levels, None)), (halves.double(), (None, halves))):
        snapshot = Snapshot((start.double() + change).float(), torch.zeros(0, dtype=torch.int64))
        small = compress(snapshot, start.double(), None, *sent)
        assert small is not None
        assert torch.equal(restore(small, start, torch.float32).vector, snapshot.vector)


def test_a_block_that_a_stranger_claims_takes_no_memory():
    """The receiver once repeated the scale as often as the block has numbers."""
    one = Compressed(torch.zeros(53, dtype=torch.uint8), torch.zeros(0), torch.zeros(0), None, torch.ones(1), 8, 2**40)
    assert misfit(one, 53, 0) == ""
    assert torch.equal(restore(one, torch.zeros(53), torch.float32).vector, torch.full((53,), -1.0))


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
