"""Random numbers from a key: by hand from hashlib, their distribution, and who can repeat them."""

import copy
import pickle

import numpy as np
import pytest
import shake
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fl_lightning.functional.keyed_noise import SecretKey, encode

KEY = bytes(range(32))
FIELDS = (3, 5, 7, 1, "noise")


def stream():
    return SecretKey(KEY).stream("noise", 3, client=5, step=7, attempt=1)


@pytest.mark.parametrize("count", [1, 2, 7, 2**16 + 3, 2**17 + 2])
def test_numbers_by_hand(count):
    drawn = stream()
    np.testing.assert_array_equal(drawn.uniforms(count).numpy(), shake.uniforms(count, KEY, *FIELDS))
    np.testing.assert_allclose(drawn.normals(count).numpy(), shake.normals(count, KEY, *FIELDS, call=1), rtol=0, atol=1e-13)


def test_an_order_by_hand():
    words = [word for block in shake.words(50, 0, KEY, *FIELDS) for word in block]
    assert stream().permutation(50) == sorted(range(50), key=words.__getitem__)
    assert stream().permutation(0) == []
    assert stream().integer() == shake.words(1, 0, KEY, *FIELDS)[0][0] >> 1


def test_normals_are_normal():
    drawn = stream().normals(400_000).numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert stats.kstest(drawn[:1000], "norm").pvalue > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        spread = np.sqrt(stats.norm.moment(2 * power) / len(drawn))
        assert abs(np.mean(drawn**power) - moment) < 5 * spread
    halves = drawn[: 2**15], drawn[2**15 : 2**16]  # one radius gave both
    assert abs(stats.pearsonr(*halves).statistic) < 5 / 2**7.5
    assert abs(stats.pearsonr(*(h**2 for h in halves)).statistic) < 5 / 2**7.5


@given(st.lists(st.one_of(st.integers(), st.text(), st.binary()), max_size=4), st.lists(st.text(), max_size=4))
def test_fields_are_told_apart(one, other):
    assert (encode(*one) == encode(*other)) == (one == other)


def test_a_key_gets_into_no_file():
    secret = SecretKey(KEY)
    with pytest.raises(TypeError, match="must not be in any file"):
        pickle.dumps({"state": secret})
    assert copy.deepcopy([secret])[0] is secret
    assert copy.copy(secret) is secret
    assert repr(secret) == "SecretKey(...)"


def test_a_seed_gives_its_key():
    assert SecretKey.from_seed(7, 0).reveal() == shake.key_of(7)
    assert len({SecretKey.from_seed(*seeds).reveal() for seeds in ((7, 0), (0, 7), (7, 1), (70,), (7,))}) == 5
