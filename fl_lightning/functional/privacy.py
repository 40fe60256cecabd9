"""What a run with noise gives away: (epsilon, delta) by the Rényi accountants of dp-accounting and Opacus."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from fl_lightning.errors import ConfigurationError

_LEAST_NOISE = 1e-6
"""Below it nothing is private, and accountants divide by zero."""

_ORDERS = [*(1 + x / 10 for x in range(1, 100)), *range(11, 65), 80, 96, 128, 256, 512, 1024]


def require_package(module: str, package: str, setting: str) -> None:
    """Refuse a setting whose package is not installed.

    Args:
        module: what is imported.
        package: what is installed.
        setting: that needs it.

    Raises:
        ConfigurationError: saying how to install it.
    """
    try:
        __import__(module)
    except ImportError as error:
        raise ConfigurationError(
            f"'{setting}' needs the package {package}, which cannot be imported ({error}). Install it: "
            "pip install 'fl_lightning[privacy]'."
        ) from None


def epsilon_of_clients(noise_multiplier: float, sampled: int, population: int, rounds: int, delta: float) -> float:
    """Epsilon of a whole client against everybody who sees the models: of Gaussian sums over clients drawn without replacement.

    Two federations are neighbours if one client's data are replaced by anything (the number of clients is public, and so is
    the size of a cohort): one client then moves a sum of changes of norm C by up to 2 C (Wang et al. 2019, Theorem 27).

    Args:
        noise_multiplier: z > 0; the noise on the sum has the standard deviation z * C in each number.
        sampled: clients of a round, m.
        population: clients that they are drawn from, K >= m.
        rounds: how many there were.
        delta: in (0, 1).

    Returns:
        Infinity where no bound can be had.
    """
    from dp_accounting.rdp import compute_epsilon

    if not rounds:
        return 0.0
    if noise_multiplier < _LEAST_NOISE:
        return math.inf
    return float(compute_epsilon(_ORDERS, rounds * _client_divergence(noise_multiplier, sampled, population), delta)[0])


@lru_cache(maxsize=64)
def _client_divergence(noise_multiplier: float, sampled: int, population: int) -> Any:
    """Rényi divergence of one round at each of the orders; half a second where clients are drawn."""
    import dp_accounting

    noisy = dp_accounting.GaussianDpEvent(noise_multiplier / 2)  # relative to 2 C
    everyone = _divergence(noisy)
    if sampled >= population:
        return everyone
    # Both bounds hold, by quasi-convexity; that of drawing is the worse one where most are drawn.
    return np.minimum(everyone, _divergence(dp_accounting.SampledWithoutReplacementDpEvent(population, sampled, noisy)))


def _divergence(event: Any) -> Any:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event)
    return accountant._rdp  # divergences of rounds add up, which no public name lets one use


def epsilon_of_examples(noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """Epsilon of one training example: of Gaussian sums over batches into which each example comes by a coin (DP-SGD).

    Two clients' data are neighbours if one example is added or left out (Abadi et al. 2016; Mironov et al. 2019).

    Args:
        noise_multiplier: sigma > 0, in units of the clipping norm.
        sample_rate: q, the probability that an example is in a batch, in (0, 1].
        steps: how many batches there were.
        delta: in (0, 1).

    Returns:
        Infinity where no bound can be had.
    """
    from opacus.accountants.analysis.rdp import get_privacy_spent

    if not steps:
        return 0.0
    if noise_multiplier < _LEAST_NOISE:
        return math.inf
    spent = steps * _example_divergence(noise_multiplier, sample_rate)
    epsilon = float(get_privacy_spent(orders=_ORDERS, rdp=spent, delta=delta)[0])
    return math.inf if math.isnan(epsilon) else max(0.0, epsilon)


@lru_cache(maxsize=4096)
def _example_divergence(noise_multiplier: float, sample_rate: float) -> Any:
    from opacus.accountants.analysis.rdp import compute_rdp

    return compute_rdp(q=sample_rate, noise_multiplier=noise_multiplier, steps=1, orders=_ORDERS)
