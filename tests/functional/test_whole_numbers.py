"""Whole numbers as one number modulo a power of two, checked against Python's own integers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning import ClientError
from fl_lightning.functional.exact_moments import moments_of
from fl_lightning.functional.whole_numbers import WholeLayout, whole_to_words, words_to_whole
from fl_lightning.functional.words import add_words

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
