"""Compute the privacy loss of a run with noise, (epsilon, delta), by privacy loss distributions (dp-accounting)."""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from fl_lightning.errors import ConfigurationError

_NEARLY_ALL = 0.9
"""From this sample rate on, epsilon is also compared with that of batches of all examples, which is never exceeded."""
_LEAST_NOISE = 1e-6
"""The smallest noise: below it nothing is private, and accountants divide by zero."""

_LEAST_TOGETHER = 1e-3
"""The smallest noise of all rounds together: below it epsilon is above two million."""

_TAIL = 9.0
"""The number of standard deviations beyond which a loss counts as infinite: a probability of 1e-19."""

_COARSEST, _COARSEST_OF_STEPS, _FINENESS, _MOST_STEPS = 1e-3, 3e-3, 0.1, 50_000
"""The grid of losses: its coarsest step for rounds and for steps, its step in standard deviations of a loss, and its length.

Rounding up to the grid costs less than 1 % of epsilon; a finer grid would only take time.
"""


def require_package(module: str, package: str, setting: str) -> None:
    """Reject a setting whose package is not installed.

    Args:
        module: the module to import.
        package: the package to install.
        setting: the setting that needs it.

    Raises:
        ConfigurationError: if the package is missing; the message says how to install it.
    """
    try:
        __import__(module)
    except ImportError as error:
        raise ConfigurationError(
            f"'{setting}' needs the package {package}, which cannot be imported ({error}). Install it with "
            "pip install 'fl_lightning[privacy]'."
        ) from None


def epsilon_of_clients(noise_multiplier: float, sampled: int, population: int, rounds: int, delta: float) -> float:
    """Return epsilon of a whole client against anyone who sees the models: Gaussian sums over clients drawn at random.

    Two federations are neighbours if one client's data are replaced by anything (the number of clients is public, and so is
    the size of a cohort). One client then moves a sum of changes of norm C by up to 2 C. Let delta_G be the privacy profile
    of that Gaussian mechanism (Balle and Wang 2018, Theorem 8), and q = m / K. A round with a cohort of m of K clients, drawn
    without replacement, has at most the profile ``q * delta_G(log(1 + (e^epsilon - 1) / q))``, which one federation attains
    (Balle, Barthe and Gaboardi 2018, amplification for replaced examples). The profile belongs to a pair of distributions
    that dominates the round, so its privacy losses add up over rounds (Zhu, Dong and Wang 2022). They are rounded up to
    a grid (Doroshenko et al. 2022) and convolved by dp-accounting.

    Args:
        noise_multiplier: z > 0; the noise on the sum has the standard deviation z * C in each number.
        sampled: the number of clients of a round, m.
        population: the number of clients that they are drawn from, K >= m.
        rounds: the number of rounds, including repeated ones.
        delta: delta, in (0, 1).

    Returns:
        An upper bound; infinity if no bound is available.
    """
    if not rounds:
        return 0.0
    return epsilon_of_client_releases(((noise_multiplier, min(1.0, sampled / population), rounds),), delta)


@lru_cache(maxsize=4096)
def epsilon_of_client_releases(parts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return epsilon of a whole client after rounds with different noises and cohorts.

    As :func:`epsilon_of_clients`, with the losses of all rounds on the finest grid that any of them needs.

    Args:
        parts: the noise multiplier, the share of the clients in a cohort and the number of rounds of each kind, at least one.
        delta: delta, in (0, 1).

    Returns:
        An upper bound; infinity if no bound is available.
    """
    first = parts[0][0]
    rounds = math.fsum(count * (first / noise) ** 2 for noise, _, count in parts)
    together = first / math.sqrt(rounds)  # rounds of all clients equal one round with this noise
    if together < _LEAST_TOGETHER:
        return math.inf
    everyone = _clients_losses(together, 1.0, _clients_step(together, 1.0)).get_epsilon_for_delta(delta)
    if all(share >= 1 for _, share, _ in parts):
        return float(everyone)
    step = min(_clients_step(noise, share) for noise, share, _ in parts)
    step = max(step, *(_most_of_clients(noise, share) / _MOST_STEPS for noise, share, _ in parts))
    losses = [_clients_losses(noise, share, step).self_compose(count) for noise, share, count in parts]
    drawn = reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta)
    return float(min(everyone, drawn))  # both bounds hold


def _most_of_clients(noise_multiplier: float, share: float) -> float:
    """Return the largest loss of a round that counts as finite."""
    shift = 2 / noise_multiplier  # shift of the sum, in standard deviations of the noise
    return _loss_after_drawing(shift * shift / 2 + _TAIL * shift, share)


def _clients_step(noise_multiplier: float, share: float) -> float:
    """Return the step of the grid of a round's losses."""
    return _grid_step(share * (2 / noise_multiplier), _most_of_clients(noise_multiplier, share))


@lru_cache(maxsize=64)
def _clients_losses(noise_multiplier: float, share: float, step: float) -> Any:
    """Return the privacy loss distribution of one round in which a share of the clients takes part, on a grid."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    shift = 2 / noise_multiplier
    count = math.ceil(_most_of_clients(noise_multiplier, share) / step)
    losses = np.arange(count + 1) * step
    above = share * _gaussian_profile(_loss_before_drawing(losses, share), shift)
    # Neighbours can be swapped, so delta(-epsilon) = 1 - e^-epsilon + e^-epsilon delta(epsilon).
    below = (-np.expm1(-losses) + np.exp(-losses) * above)[:0:-1]
    profile = np.clip(np.concatenate([below, above]), 0.0, 1.0)
    profile = np.maximum.accumulate(profile[::-1])[::-1]  # make it fall despite rounding, without ever lowering it
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(step, -count, count, profile))


def _gaussian_profile(epsilon: Any, shift: float) -> Any:
    """Return delta at each epsilon >= 0 of two normal distributions of variance 1 that lie ``shift`` apart."""
    from scipy import special

    nearer, farther = shift / 2 - epsilon / shift, -shift / 2 - epsilon / shift
    return np.maximum(special.ndtr(nearer) - np.exp(epsilon + special.log_ndtr(farther)), 0.0)


def _loss_before_drawing(epsilon: Any, share: float) -> Any:
    """Return ``log(1 + (e^epsilon - 1) / share)`` without overflow."""
    return epsilon - math.log(share) + np.log1p((share - 1) * np.exp(-epsilon))


def _loss_after_drawing(epsilon: float, share: float) -> float:
    """Return the inverse, ``log(1 + share * (e^epsilon - 1))``."""
    return epsilon + math.log(share + (1 - share) * math.exp(-epsilon))


def _grid_step(deviation: float, most: float, coarsest: float = _COARSEST) -> float:
    """Return the step of a grid for losses of about this standard deviation, up to the given one."""
    return max(min(coarsest, _FINENESS * deviation), most / _MOST_STEPS)


def epsilon_of_examples(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Return epsilon of one training example: Gaussian sums over batches that sample each example independently (DP-SGD).

    Two data sets of a client are neighbours if one example is added or left out (Abadi et al. 2016). The privacy losses of
    the steps are rounded up to a grid and convolved, for both directions (Koskela et al. 2020; Doroshenko et al. 2022), by
    dp-accounting.

    Args:
        noise_multiplier: sigma > 0, in units of the clipping norm.
        sample_rate: q, the probability that an example is in a batch, in (0, 1].
        steps: the number of batches.
        delta: delta, in (0, 1).

    Returns:
        An upper bound; infinity if no bound is available.
    """
    if not steps:
        return 0.0
    return epsilon_of_example_releases(((noise_multiplier, sample_rate, steps),), delta)


@lru_cache(maxsize=4096)
def epsilon_of_example_releases(parts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return epsilon of one training example after steps with different noises and sample rates.

    As :func:`epsilon_of_examples`, with the losses of all steps on the finest grid that any of them needs.

    Args:
        parts: the noise multiplier, the sample rate and the number of steps of each kind, at least one.
        delta: delta, in (0, 1).

    Returns:
        An upper bound; infinity if no bound is available.
    """
    bound = _bound_of_example_releases(parts, delta)
    if all(rate >= _NEARLY_ALL for _, rate, _ in parts):  # rounding to the grid can cost more than drawing saves
        bound = min(bound, _bound_of_example_releases(tuple((noise, 1.0, steps) for noise, _, steps in parts), delta))
    return bound


def _bound_of_example_releases(parts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    whole = [(noise, steps) for noise, rate, steps in parts if rate >= 1]
    drawn = [part for part in parts if part[1] < 1]
    if whole:  # batches of all examples equal one batch with this noise
        drawn.append((1 / math.sqrt(math.fsum(steps / noise**2 for noise, steps in whole)), 1.0, 1))
    if min(noise for noise, _, _ in drawn) < _LEAST_NOISE:
        return math.inf
    step = min(_example_step(noise, rate) for noise, rate, _ in drawn)
    step = max(step, *(_most_loss(noise) / _MOST_STEPS for noise, _, _ in drawn))
    losses = [_example_losses(noise, rate, step).self_compose(steps) for noise, rate, steps in drawn]
    return float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta))


def _most_loss(noise_multiplier: float) -> float:
    """Return the largest loss of a step that counts as finite."""
    return 1 / (2 * noise_multiplier**2) + _TAIL / noise_multiplier


def _example_step(noise_multiplier: float, sample_rate: float) -> float:
    """Return the step of the grid of a step's losses."""
    return _grid_step(sample_rate / noise_multiplier, _most_loss(noise_multiplier), _COARSEST_OF_STEPS)


@lru_cache(maxsize=256)
def _example_losses(noise_multiplier: float, sample_rate: float, step: float) -> Any:
    """Return the privacy loss distribution of one step, on a grid."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(noise_multiplier, sampling_prob=sample_rate, value_discretization_interval=step)
