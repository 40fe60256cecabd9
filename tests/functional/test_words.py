"""Sums as words, and sums of whole numbers: modulo 2**64 and 2**128, checked against Python's own integers."""

import math
import re
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning import ClientError, ConfigurationError
from fl_lightning.functional.exact_moments import moments_of
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.functional.words import (
    WholeLayout,
    WordLayout,
    add_wide,
    add_words,
    from_words,
    to_words,
    whole_to_words,
    words_to_whole,
)

GRIDS = {"state": Grid(((3, 1.0), (2, None)), 10.0)}
LAYOUT = WordLayout({"state": 5, "weight": 1}, GRIDS)
WORD = st.integers(-(2**63), 2**63 - 1)
UNSIGNED = 2**64


def whole(tensor: torch.Tensor) -> list[int]:
    """Return numbers of two words as Python's integers modulo 2**128."""
    low, high = (part.tolist() for part in tensor.chunk(2))
    return [(h % UNSIGNED) * UNSIGNED + lo % UNSIGNED for lo, h in zip(low, high, strict=True)]


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=20), st.sampled_from([1, -1]))
def test_numbers_of_two_words_carry(numbers, sign):
    low, high, more, more_high = (torch.tensor(column) for column in zip(*numbers, strict=True))
    total, words = torch.cat([low, high]), torch.cat([more, more_high])
    expected = [(a + sign * b) % UNSIGNED**2 for a, b in zip(whole(total), whole(words), strict=True)]
    add_wide(total, words, sign)
    assert whole(total) == expected


FLOATS = st.floats(-100, 100, allow_nan=False)


@given(st.lists(st.tuples(st.lists(FLOATS, min_size=5, max_size=5), st.floats(0.01, 10)), min_size=1, max_size=6), st.data())
def test_words_add_up_to_the_bits_of_plain_sums(clients, data):
    """Each client's part alone, under masks that cancel, in any order."""
    plain, total = Sums(grids=GRIDS), LAYOUT.zeros()
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    masks = [torch.empty(LAYOUT.words, dtype=torch.int64).random_(-(2**63), None, generator=draw) for _ in clients]
    for (values, weight), mask in zip(clients, masks, strict=True):
        own = Sums(grids=GRIDS, for_masks=True)
        for sums in (plain, own):
            sums.add("state", torch.tensor(values, dtype=torch.float64), weight)
            sums.add("weight", 1.0, weight)
        words = to_words(own, LAYOUT, 6)
        add_words(words, mask, LAYOUT)
        add_words(total, words, LAYOUT)
    for mask in masks:
        add_words(total, mask, LAYOUT, -1)
    opened = from_words(total, LAYOUT)
    assert torch.equal(opened.value("state"), plain.value("state"))
    assert opened.scalar("weight") == plain.scalar("weight")
    exact = math.fsum(float(Fraction(v[4]) * Fraction(w)) for v, w in clients)
    assert float(opened.value("state")[4]) == pytest.approx(exact, abs=1e-12)


def test_a_number_takes_one_word_on_a_known_grid_and_two_elsewhere():
    assert (LAYOUT.narrow, LAYOUT.wide, LAYOUT.words) == (3, 3, 9)


def test_a_sum_that_nobody_announced_is_named():
    own = Sums(for_masks=True)
    own.add("squares", 1.0)
    with pytest.raises(ConfigurationError, match=r"adds 1 numbers to a sum 'squares', which its 'sum_sizes' does not announce"):
        to_words(own, LAYOUT, 3)


def test_a_number_that_could_leave_the_range_of_the_sum_is_refused():
    """A word has room for 2**62: with 100 clients, for numbers 130 times as large as expected."""
    for factor, fits in ((100.0, True), (200.0, False)):
        own = Sums(grids=GRIDS, for_masks=True)
        own.add("state", torch.tensor([factor, 0, 0, 1.0, 1.0], dtype=torch.float64), 10.0)
        if fits:
            assert float(from_words(to_words(own, LAYOUT, 100), LAYOUT).value("state")[0]) == 10 * factor
            continue
        with pytest.raises(ClientError, match=r"A number of 'state' is too large to be added under masks"):
            to_words(own, LAYOUT, 100)


def test_a_sum_outside_its_range_is_noticed():
    """As one is that a client made up, or on which a mask is left."""
    words = LAYOUT.zeros()
    words[-1] = 2**50
    with pytest.raises(ClientError, match=re.escape("The sum 'weight' of the masked updates is outside its range")):
        from_words(words, LAYOUT)


@pytest.mark.parametrize(("weight", "fits"), [(10.0, True), (10 / 4000, True), (1e-3, False), (1e6, False)])
def test_a_weight_needs_the_grid_of_the_round(weight, fits):
    own = Sums(grids=GRIDS, for_masks=True)
    if fits:
        own.add("state", torch.ones(5), weight)
    else:
        with pytest.raises(ClientError, match=r"The weight \S+ in the sum 'state' is too far from .* about 10 or up to 4,096"):
            own.add("state", torch.ones(5), weight)


def test_a_light_client_needs_no_grid_of_its_own_where_the_largest_weight_is_certain():
    """A site of 50 rows beside one of 1,000,000: its part is rounded to 2**-49 of the largest."""
    grid = Grid(((1, 1.0),), 1e6, certain=True)
    sums = Sums(grids={"state": grid}, for_masks=True)
    for value, weight in ((0.3, 50.0), (0.7, 1e6)):
        sums.add("state", torch.tensor([value], dtype=torch.float64), weight)
    assert float(sums.value("state")) == pytest.approx(0.3 * 50 + 0.7e6, abs=2e6 * 2**-48)


NUMBER = st.one_of(st.integers(-3, 3), st.integers(1 - 2**680, 2**680 - 1))


@given(st.integers(1, 5).flatmap(lambda size: st.lists(st.lists(NUMBER, min_size=size, max_size=size), min_size=1, max_size=5)))
def test_totals_are_those_of_whole_numbers_and_words_cancel(clients):
    layout = WholeLayout({"a": len(clients[0])}, {})
    mask = torch.randint(-(2**63), 2**63 - 1, (layout.words,), dtype=torch.int64)
    total = layout.zeros()
    add_words(total, mask, layout)
    for numbers in clients:
        add_words(total, whole_to_words(numbers), layout)
    add_words(total, mask, layout, -1)
    assert words_to_whole(total) == [sum(column) for column in zip(*clients, strict=True)]


def test_the_sums_of_the_largest_numbers_have_room_for_a_million_clients():
    found = moments_of(torch.full((2**20, 1), -3.4e38))
    numbers = [*found.counts, *found.totals, *found.squares]
    assert 2**20 * max(map(abs, numbers)) < 2**703
    assert words_to_whole(whole_to_words(numbers)) == numbers


def test_a_number_that_could_leave_the_range_is_refused():
    with pytest.raises(ClientError, match="A whole number is too large to be added under masks"):
        whole_to_words([0, -(2**680)])
