"""Epsilon against closed forms and against other accountants: never too small, and near them."""

import math

import dp_accounting
import numpy as np
import pytest
from accountants import attained, gaussian_epsilon, poisson, renyi
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.functional.privacy import epsilon_of_clients, epsilon_of_examples
from fl_lightning.functional.spending import Spending, hardest


@pytest.mark.parametrize(("z", "rounds"), [(4.0, 1), (8.0, 10), (20.0, 100), (2.0, 3), (0.1, 30), (0.01, 1)])
def test_all_clients_cost_what_gaussians_cost(z, rounds):
    """Gaussians compose to one of sqrt(rounds) less noise; replacing a client moves by 2 C."""
    exact = gaussian_epsilon(z / 2 / math.sqrt(rounds), 1e-5)
    bound = epsilon_of_clients(z, 7, 7, rounds, 1e-5)
    assert exact * (1 - 1e-9) <= bound <= exact * 1.001


@pytest.mark.parametrize(
    ("z", "sampled", "population", "delta"),
    [(0.5, 9, 10, 1e-3), (1.0, 1, 1000, 1e-6), (4.0, 5, 50, 1e-3), (4.0, 5, 50, 1e-6), (20.0, 1, 1000, 1e-3)],
)
def test_one_round_of_drawn_clients(z, sampled, population, delta):
    """Exactly: delta is q times that of the mechanism, at log(1 + (e^epsilon - 1) / q)."""
    q = sampled / population
    exact = math.log1p(q * math.expm1(gaussian_epsilon(z / 2, delta / q))) if delta < q else 0.0
    bound = epsilon_of_clients(z, sampled, population, 1, delta)
    assert exact * (1 - 1e-9) <= bound <= exact * 1.001 + 2e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "sampled", "rounds"),
    [(1.0, 1, 100), (4.0, 10, 10), (8.0, 50, 30), (2.0, 90, 100)],
)
def test_rounds_of_drawn_clients_against_other_accountants(z, sampled, rounds):
    """Not below what two federations attain, at most an eighth above, and less than by Rényi's divergence."""
    setting = (z, sampled, 100, rounds, 1e-5)
    low, high = attained(*setting)
    bound = epsilon_of_clients(*setting)
    assert low <= bound <= 1.125 * high + 0.01
    assert bound < renyi(*setting) / 1.25


def test_without_noise_there_is_no_bound():
    assert epsilon_of_clients(1e-5, 3, 10, 30, 1e-4) == math.inf
    assert epsilon_of_clients(1e-9, 10, 10, 1, 1e-4) == math.inf
    assert epsilon_of_clients(0.01, 3, 10, 30, 1e-4) > 1e5


@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 4), (5.0, 30), (0.1, 30)])
def test_batches_of_all_examples_cost_what_gaussians_cost(sigma, steps):
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-5)
    assert exact * (1 - 1e-9) <= epsilon_of_examples(sigma, 1.0, steps, 1e-5) <= exact * 1.001


@pytest.mark.parametrize(("sigma", "rate"), [(0.3, 0.1), (1.0, 1e-3), (1.0, 0.9), (8.0, 0.1)])
def test_one_step_on_drawn_examples(sigma, rate):
    """Exactly: the larger loss is that of an example that is left out, by the formula of drawn clients."""
    exact = math.log1p(rate * math.expm1(gaussian_epsilon(sigma, 1e-6 / rate)))
    assert exact * (1 - 1e-9) <= epsilon_of_examples(sigma, rate, 1, 1e-6) <= exact * 1.001 + 2e-3


FURTHER = [(3.0, 0.5, 20), (0.6, 0.02, 10), (4.0, 1e-3, 10_000), (1.0, 0.02, 10_000)]


@pytest.mark.parametrize(
    ("sigma", "rate", "steps"),
    [(1.0, 0.01, 1000), (0.7, 0.1, 50), *(pytest.param(*more, marks=pytest.mark.slow) for more in FURTHER)],
)
def test_epsilon_of_examples_against_other_accountants(sigma, rate, steps):
    """Not below what is attained, at most 1 % above, and less than by Rényi's divergence."""
    low, high = poisson(sigma, rate, steps, 1e-5)
    bound = epsilon_of_examples(sigma, rate, steps, 1e-5)
    accountant = RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)), steps)
    assert low <= bound <= 1.01 * high + 0.01
    assert bound < accountant.get_epsilon(1e-5) / 1.05


RATES = [0.01, 0.1, 0.2, 0.5, 1.0]


@given(
    st.lists(st.dictionaries(st.integers(0, 5), st.tuples(st.sampled_from(RATES), st.integers(0, 9))), min_size=1, max_size=2),
    st.sets(st.sets(st.integers(0, 5), min_size=1).map(lambda group: tuple(sorted(group))), min_size=1, max_size=20),
    st.integers(1, 6),
    st.lists(st.floats(0, 9), min_size=5, max_size=5),
)
def test_the_hardest_groups_cost_at_least_as_much_as_all_others(clients, groups, most, costs):
    """Whatever a step costs, as long as it costs more at a higher rate; and what is not rounded is exact."""
    price = dict(zip(RATES, np.cumsum(costs), strict=True)) | {0.0: 0.0}
    released = [Spending() for _ in clients]
    for each, own in zip(released, clients, strict=True):
        each.add({"steps": {k: steps for k, (_, steps) in own.items()}, "rates": {k: rate for k, (rate, _) in own.items()}})
    highest = max(sum(price[own[k][0]] * own[k][1] for own in clients for k in group if k in own) for group in groups)

    def most_expensive(cases):
        return max(sum(price[rate] * count for _, rate, count in case) for case in cases)

    assert most_expensive(hardest(groups, released, most)) >= highest * (1 - 1e-12)
    assert most_expensive(hardest(groups, released, len(groups))) == pytest.approx(highest)
    assert len(hardest(groups, released[:1], most)) <= most


def test_a_higher_rate_costs_more_in_every_composition():
    """What makes one case harder than another: 40 steps beside 10 at another rate, by the accountant of dp-accounting."""

    def spent(rate):
        accountant = PLDAccountant(value_discretization_interval=1e-2)
        for each, steps in ((rate, 40), (0.2, 10)):
            accountant.compose(dp_accounting.PoissonSampledDpEvent(each, dp_accounting.GaussianDpEvent(1.3)), steps)
        return accountant.get_epsilon(1e-5)

    assert spent(0.05) < spent(0.1) < spent(0.3) < spent(1.0)
