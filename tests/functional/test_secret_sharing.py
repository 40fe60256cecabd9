"""Shares of a secret: enough of them give it, fewer say nothing."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_lightning.functional.secret_sharing import PRIME, join_shares, split_secret


def test_the_field_is_a_field():
    """2**256 + 297 passes Miller and Rabin's test to 40 bases, and no number between it and 2**256 does."""

    def is_prime(number: int) -> bool:
        odd, twos = number - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in range(2, 42):
            x = pow(base, odd, number)
            if x in (1, number - 1):
                continue
            if not any((x := x * x % number) == number - 1 for _ in range(twos - 1)):
                return False
        return True

    assert PRIME == 2**256 + 297
    assert is_prime(PRIME)
    assert not any(is_prime(2**256 + k) for k in range(1, 297, 2))


@given(st.integers(0, PRIME - 1), st.integers(1, 12), st.data())
def test_enough_shares_give_the_secret(secret, holders, data):
    threshold = data.draw(st.integers(1, holders))
    ids = data.draw(st.lists(st.integers(0, 10**6), min_size=holders, max_size=holders, unique=True))
    draw = random.Random(3)
    shares = split_secret(secret, threshold, ids, lambda: draw.randrange(PRIME))
    some = data.draw(st.lists(st.sampled_from(ids), min_size=threshold, max_size=holders, unique=True))
    assert join_shares({holder: shares[holder] for holder in some}) == secret


@pytest.mark.parametrize("secret", [0, 12345, PRIME - 1])
def test_fewer_shares_say_nothing(secret):
    """Two shares of a secret that takes three are uniform, whatever it is, and independent of each other."""
    draw = random.Random(1)
    draws = [split_secret(secret, 3, [0, 1, 2, 3], lambda: draw.randrange(PRIME)) for _ in range(2000)]
    first, second = (np.array([float(shares[holder]) / PRIME for shares in draws]) for holder in (1, 3))
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert stats.kstest(second, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
