"""Shapley values of games that are solved elsewhere: by all orders, and by their axioms."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.strategies.shapley import exact_shapley, monte_carlo_shapley


def game(values: list[float]):
    """A game of four players by a table of 16 worths; counts what is asked."""
    asked = []

    def worth(coalitions):
        asked.extend(coalitions)
        return [values[sum(1 << player for player in s)] for s in coalitions]

    return worth, asked


PLAYERS = (0, 1, 2, 3)
tables = st.lists(st.floats(-10, 10), min_size=16, max_size=16)


@given(tables)
def test_exact_values_are_the_mean_over_all_orders(values):
    worth, asked = game(values)
    phi = exact_shapley(PLAYERS, worth)
    assert len(asked) == 16
    table = lambda members: values[sum(1 << m for m in members)]  # noqa: E731
    for player in PLAYERS:
        added = [table(o[: o.index(player) + 1]) - table(o[: o.index(player)]) for o in permutations(PLAYERS)]
        assert phi[player] == pytest.approx(sum(added) / 24, abs=1e-9)
    assert sum(phi) == pytest.approx(values[15] - values[0], abs=1e-9)


@given(tables)
def test_all_orders_without_truncation_are_exact(values):
    worth, asked = game(values)
    phi = monte_carlo_shapley(PLAYERS, list(permutations(PLAYERS)), worth, tolerance=-1)
    assert phi == pytest.approx(exact_shapley(PLAYERS, worth), abs=1e-9)
    assert len(set(asked[:16])) == 16  # nothing twice


@given(tables, st.lists(st.permutations(PLAYERS), min_size=1, max_size=5))
def test_some_orders_still_share_out_everything(values, orders):
    worth, _ = game(values)
    phi = monte_carlo_shapley(PLAYERS, orders, worth, tolerance=-1)
    assert sum(phi) == pytest.approx(values[15] - values[0], abs=1e-9)


def test_an_order_is_left_when_nothing_is_missing():
    """Player 0 alone is worth everything: whoever joins after it adds nothing and is not asked for."""
    worth, asked = game([0.0 if not coalition & 1 else 1.0 for coalition in range(16)])
    assert monte_carlo_shapley(PLAYERS, [(0, 1, 2, 3), (0, 3, 2, 1)], worth, tolerance=0.01) == [1.0, 0.0, 0.0, 0.0]
    assert len(asked) == 3  # all, nobody, player 0
