"""What an attacker with canaries proves about the noise in one run, beside the epsilon that the accountant computes."""

import math

import numpy as np
import pytest
from audit_privacy import attack, audited_epsilon

from fl_lightning.functional.keyed_noise import KeyedStream


@pytest.mark.parametrize("guesses", [10, 300, 1000])
def test_the_bound_of_correct_guesses_alone_is_the_closed_form(guesses):
    q = 0.05 ** (1 / guesses)
    assert audited_epsilon(guesses, guesses, guesses) == pytest.approx(math.log(q / (1 - q)), abs=1e-3)
    assert audited_epsilon(guesses // 2, guesses, guesses) == 0
    assert audited_epsilon(guesses, guesses, guesses, 1e-3, confidence=0.99) < audited_epsilon(guesses, guesses, guesses)
    assert audited_epsilon(1000, 1000, 1000) == pytest.approx(5.81, abs=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomized_response_is_rarely_convicted(epsilon):
    """Its guesses are right with e^epsilon / (1 + e^epsilon), which the theorem allows at most: 5 % of runs may show more."""
    right = np.random.default_rng(0).binomial(200, 1 / (1 + math.exp(-epsilon)), 2000)
    bounds = {v: audited_epsilon(int(v), 200, 200) for v in set(right.tolist())}
    shown = np.array([bounds[v] for v in right.tolist()])
    assert (shown > epsilon).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    assert np.median(shown) > 0.5 * epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("protects", "noise"), [("examples", 0.7), ("clients", 1.4)])
def test_an_attacker_proves_less_than_the_run_computes_and_not_much_less(protects, noise):
    computed, shown = attack(protects, noise, rounds=1, canaries=240, seed=1)[:2]
    assert 0.15 * computed < shown < computed


@pytest.mark.slow
@pytest.mark.parametrize("protects", ["examples", "clients"])
def test_noise_that_is_missing_is_noticed(protects, monkeypatch):
    """The test above can fail: with a hundredth of the noise, the attacker proves more than what the run computes."""
    draw = KeyedStream.normals
    monkeypatch.setattr(KeyedStream, "normals", lambda self, count: draw(self, count) / 100)
    spent, bound, correct, guesses = attack(protects, 4.0, rounds=1, canaries=240, seed=1)
    assert correct == guesses
    assert bound > spent
