"""What happens to updates on their way: against closed forms, and in a federation against the same by hand."""

import math

import numpy as np
import pytest
import torch
from against_hand import Updates, assert_follows, sending
from federations import Plain, federate
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning import ClipUpdate, HalfPrecision, Quantize, TopK
from fl_lightning.errors import ClientError
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.transforms import Message, Sender


def sender(seed=0):
    secret = SecretKey.from_seed(seed).stream("test", 0)
    return Sender(0, 0, torch.Generator().manual_seed(seed), {}, secret)


def message(values):
    return Message(torch.tensor(values, dtype=torch.float64), 32)


NUMBERS = st.lists(st.floats(-100, 100), min_size=1, max_size=60)


@given(NUMBERS, st.integers(2, 12), st.integers(1, 20))
def test_quantised_numbers_are_levels_near_by(values, bits, block):
    sent = Quantize(bits, block).apply(message(values), sender())
    levels = 2 ** (bits - 1) - 1
    for start in range(0, len(values), block):
        own, received = np.array(values[start : start + block]), sent.change[start : start + block].numpy()
        step = np.float32(np.abs(own).max()) / levels
        assert np.abs(received - own).max() <= step * (1 + 1e-6) + 1e-37
        if step > 1e-30:
            np.testing.assert_allclose(received / step, np.round(received / step), atol=1e-3)
    assert sent.nbytes == math.ceil(len(values) * bits / 8) + 4 * math.ceil(len(values) / block)


@pytest.mark.slow
def test_quantisation_is_unbiased():
    """The mean of 4,000 draws is the number itself, within five of its standard errors."""
    values = [0.3, -0.7, 1.0, 0.01, -0.33]
    draws = torch.stack([Quantize(3).apply(message(values), sender(k)).change for k in range(4000)])
    error = (draws.mean(dim=0) - torch.tensor(values)).abs()
    assert bool((error <= 5 * draws.std(dim=0) / math.sqrt(4000) + 1e-7).all())
    assert float(draws.std(dim=0).max()) > 0.1


def nearest_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 numbers to their upper 16 bits, to the nearest, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


@given(st.lists(st.floats(-60000, 60000) | st.floats(-1e-4, 1e-4), min_size=1, max_size=40))
def test_halves_are_the_nearest_ones(values):
    """NumPy has float16; bfloat16 is the upper half of a float32."""
    single = np.array(values, np.float32)
    for dtype, expected in (("bfloat16", nearest_bfloat16(single)), ("float16", single.astype(np.float16))):
        sent = HalfPrecision(dtype).apply(message(single.tolist()), sender())
        np.testing.assert_array_equal(sent.change.numpy(), expected.astype(np.float64))
        assert sent.nbytes == 2 * len(values)
        assert sent.numbers().element_size() == 2


def test_a_change_that_float16_lacks_is_named():
    with pytest.raises(
        ClientError, match=r"Client 0 changes a weight by 7e\+04 in round 0.*\(up to 65504\).*bfloat16, or lower"
    ):
        HalfPrecision("float16").apply(message([1.0, -7e4]), sender())
    assert HalfPrecision().apply(message([1.0, -7e4]), sender()).change[1] == pytest.approx(-7e4, rel=1 / 256)


@given(NUMBERS, st.floats(0.01, 1))
def test_the_largest_numbers_are_sent(values, share):
    sent = TopK(share, error_feedback=False).apply(message(values), sender())
    count = max(1, round(share * len(values)))
    assert sent.count == count
    assert sent.nbytes == count * (4 + 4)
    expected = np.sort(np.abs(values))[::-1][:count]  # which of equal ones is sent is open
    np.testing.assert_allclose(np.sort(np.abs(sent.change.numpy()))[::-1][:count], expected)
    assert int((sent.change != 0).sum()) <= count
    kept = sent.change != 0
    assert torch.equal(sent.change[kept], torch.tensor(values, dtype=torch.float64)[kept])


def test_numbers_that_are_not_sent_are_not_quantised():
    sparse = TopK(0.5, error_feedback=False).apply(message([1.0, -2.0, 0.1, 0.2]), sender())
    sent = Quantize(8).apply(sparse, sender())
    assert sent.change[2:].tolist() == [0, 0]
    assert sent.nbytes == 2 * 1 + 2 * 4 + 4  # numbers, positions, one scale
    assert sent.change[1] == pytest.approx(-2.0)


def test_clipped_updates_in_a_federation():
    lengths = []

    def clip(k, changes):
        lengths.append(np.linalg.norm(changes[k]))
        return changes[k] * min(1, 0.5 / lengths[-1])

    assert_follows(torch.float64, sending(clip), transforms=[ClipUpdate(0.5)])
    assert min(lengths) < 0.5 < max(lengths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_halved_updates_in_a_federation(dtype):
    # one change in a few thousand lies so near the middle between two halves that the last bits of training decide
    halved = sending(lambda k, changes: nearest_bfloat16(changes[k]))
    _, rounds = assert_follows(dtype, halved, transforms=[HalfPrecision()], tolerance=1e-4)
    width = 4 if dtype == torch.float32 else 8
    parameters = sum(p.numel() for p in Plain(batchnorm=True).parameters())
    assert {u.bytes_down - u.bytes_up for r in rounds for u in r} == {(width - 2) * parameters}


@pytest.mark.parametrize(
    ("transforms", "bits"),
    [
        ([HalfPrecision()], 16),
        ([TopK(1.0, error_feedback=False), HalfPrecision("float16")], 16 + 32),
        ([HalfPrecision(), TopK(1.0, error_feedback=False)], 16 + 32),
        ([HalfPrecision(), ClipUpdate(1e-3)], 32),
        ([HalfPrecision(), HalfPrecision("float16")], 16),
        ([Quantize(8, 10**6), HalfPrecision()], 16),
    ],
)
def test_numbers_are_counted_as_halves_as_long_as_they_are(transforms, bits):
    """A transform that changes them again sends them in the model's type."""
    updates = Updates()
    federate(Plain(), 1, updates, transforms=transforms)
    parameters = sum(p.numel() for p in Plain().parameters())
    assert {u.bytes_up for r in updates.rounds for u in r} == {parameters * bits // 8}


def test_sparse_updates_in_a_federation():
    """A tenth of the numbers, and what each client has kept over three rounds."""
    kept = {}

    def largest(k, changes):
        change = changes[k] + kept.get(k, 0)
        chosen = np.argsort(np.abs(change))[-max(1, round(0.1 * len(change))) :]
        sent = np.zeros_like(change)
        sent[chosen] = change[chosen]
        kept[k] = np.float32(change - sent).astype(float)
        return sent

    _, rounds = assert_follows(torch.float64, sending(largest), transforms=[TopK(0.1)], tolerance=1e-7)
    width = 8
    parameters = sum(p.numel() for p in Plain(batchnorm=True).parameters())
    whole, count = rounds[0][0].bytes_down, round(0.1 * parameters)
    assert {u.bytes_up for r in rounds for u in r} == {whole - width * parameters + count * (width + 4)}


def test_a_transform_s_figures_are_logged():
    class Counted(Quantize):
        def figures(self, rounds, drawn):
            return {"rounds_times_drawn": float(rounds * drawn)}

    run = federate(Plain(), 2, transforms=[Counted(8)])
    assert float(run.callback_metrics["federation/rounds_times_drawn"]) == 6.0
