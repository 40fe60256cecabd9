"""Bound a privacy loss from below by what an attacker has guessed in one run (Steinke, Nasr and Jagielski 2023)."""

from __future__ import annotations

import math

import numpy as np

from fl_lightning.errors import require


def audited_epsilon(correct: int, guesses: int, canaries: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    """Return an epsilon below which a mechanism with so many correct guesses is not (epsilon, delta)-private.

    Each canary is in the data, or in one of two forms, by the toss of a fair coin. An attacker who sees the results guesses the
    tosses of which it is surest, and abstains from the others (Algorithm 1). If the mechanism is (epsilon, delta)-private, at
    least v guesses are correct with at most the probability of Theorem 5.2: the tail of a binomial distribution with
    ``q = e^epsilon / (1 + e^epsilon)``, and a term in delta.

    Args:
        correct: the number v of correct guesses, from 0 to ``guesses``.
        guesses: the number r of guesses, from 0 to ``canaries``.
        canaries: the number m of canaries, >= 1.
        delta: delta, in [0, 1).
        confidence: the probability with which the bound holds, in (0, 1).

    Returns:
        The bound, >= 0. With all of r guesses correct and delta 0, it is log(q / (1 - q)) for ``q^r = 1 - confidence``.

    Raises:
        ConfigurationError: for numbers outside their ranges.
    """
    require(0 <= correct <= guesses <= canaries, "correct", f"0 to guesses ({guesses}), and these at most {canaries}", correct)
    require(0 <= delta < 1, "delta", "0 or above, and below 1", delta)
    require(0 < confidence < 1, "confidence", "above 0 and below 1", confidence)
    low, high = 0.0, 1.0
    while _chance(high, correct, guesses, canaries, delta) < 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        if _chance(middle, correct, guesses, canaries, delta) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def _chance(epsilon: float, correct: int, guesses: int, canaries: int, delta: float) -> float:
    """Return the largest probability of at least so many correct guesses under (epsilon, delta)-privacy."""
    from scipy import stats

    binomial = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    tail = float(binomial.sf(correct - 1))
    if not delta or not correct:
        return min(1.0, tail)
    numbers = np.arange(1, correct + 1)
    below = binomial.cdf(correct - 1) - binomial.cdf(correct - 1 - numbers)  # from v - i to v - 1
    return min(1.0, tail + 2 * canaries * delta * float((below / numbers).max()))
