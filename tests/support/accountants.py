"""Epsilon by closed forms and by other libraries' accountants: what the package's own is compared with."""

import math

import dp_accounting
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import PRVAccountant
from scipy import optimize, stats

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


def gaussian_epsilon(sigma, delta):
    """Of one Gaussian mechanism of noise ``sigma`` times the sensitivity, exactly (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon):
        low, high = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return stats.norm.cdf(low) - math.exp(epsilon + stats.norm.logcdf(high)) - delta

    return optimize.brentq(excess, 0, 1 / sigma**2 + 20 / sigma) if excess(0) > 0 else 0.0


def attained(z, sampled, population, rounds, delta):
    """Epsilon of two federations, by Opacus's accountant (Gopi et al. 2021), and its error.

    All other clients change by -C, one by C or by -C: the sums are those of a Gaussian mechanism on a Poisson sample, of
    noise z / 2 in units of the distance 2 C. No bound that holds may be lower.
    """
    return poisson(z / 2, sampled / population, rounds, delta)


def poisson(sigma, rate, steps, delta):
    """Least and largest epsilon of Gaussian sums over Poisson samples, by Opacus's accountant (Gopi et al. 2021)."""
    return unlike([(sigma, rate, steps)], delta)


def unlike(history, delta):
    """As ``poisson``, of sums that differ: a noise, a rate and a number of steps of each kind."""
    accountant = PRVAccountant()
    accountant.history = history
    privacy_losses = accountant._get_dprv(eps_error=0.01, delta_error=delta / 1000)
    low, _, high = privacy_losses.compute_epsilon(delta, delta / 1000, 0.01)
    return low, high


def renyi(z, sampled, population, rounds, delta):
    """The bound of Wang et al. (2019), Theorem 27."""
    accountant = RdpAccountant(neighboring_relation=REPLACE)
    noisy = dp_accounting.GaussianDpEvent(z / 2)
    accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(population, sampled, noisy), rounds)
    return accountant.get_epsilon(delta)
