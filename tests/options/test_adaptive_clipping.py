"""A clipping norm that follows a quantile, with its share of the noise (Andrew et al. 2021)."""

import math

import numpy as np
import pytest
import shake
import torch
from accountants import gaussian_epsilon
from by_hand import flat
from federations import Plain, federate
from private_runs import NO_NOISE

from fl_lightning import ClientPrivacy, FedAvg, FederationCallback
from fl_lightning.options.client_privacy import AdaptiveNorm, noise_of_changes

GAMMA, RATE = 0.3, 0.2


class Norms(FederationCallback):
    """Notes the norm of each round, as logged."""

    def __init__(self):
        self.seen = []

    def on_round_end(self, trainer, pl_module, round_idx):
        self.seen.append(float(trainer.logged_metrics["federation/clipping_norm"]))


def fit(norm, z=NO_NOISE, rounds=4, **more):
    torch.manual_seed(0)
    module, norms = Plain().double(), Norms()
    privacy = ClientPrivacy(norm, z, delta=1e-3, **{"target_quantile": GAMMA, "norm_rate": RATE, "noise_seed": 7, **more})
    settings = {"strategy": FedAvg("uniform"), "transforms": [privacy], "flags": {"precision": "64-true"}}
    return module, norms.seen, federate(module, rounds, norms, **settings)


@pytest.mark.parametrize(("z", "sigma"), [(1.0, 5.0), (0.5, 0.3), (8.0, 10.0)])
def test_the_noise_of_both_costs_what_one_multiplier_costs(z, sigma):
    """Two Gaussian mechanisms of shifts 2 / z_delta and 1 / sigma_b are one of their root mean square, that of 2 / z."""
    assert math.hypot(2 / noise_of_changes(z, sigma), 1 / sigma) == pytest.approx(2 / z, rel=1e-12)
    tensorflow_privacy = (z ** (-2) - (2 * sigma) ** (-2)) ** (-0.5)  # its adaptive_clip_noise_params
    assert noise_of_changes(z, sigma) == pytest.approx(tensorflow_privacy, rel=1e-12)


def test_epsilon_is_that_of_the_whole_multiplier():
    _, _, run = fit(0.5, 4.0, rounds=3)
    exact = gaussian_epsilon(4.0 / 2 / math.sqrt(3), 1e-3)
    assert float(run.logged_metrics["federation/epsilon_of_clients"]) == pytest.approx(exact, rel=1e-3)


def test_with_a_target_both_noises_are_within_it():
    _, _, run = fit(0.5, None, target_epsilon=3.0)
    noise = float(run.logged_metrics["federation/noise_of_clients"])
    assert 0.99 * 3 <= gaussian_epsilon(noise / 2 / math.sqrt(4), 1e-3) <= 3.0


def test_the_noise_of_changes_by_hand():
    """In one round, whose norm is the first: z_delta C / m times the numbers of the key."""
    finals = [flat(fit(0.5, z, rounds=1, count_noise=sigma)[0])[0] for z, sigma in ((NO_NOISE, NO_NOISE), (1.0, 0.8))]
    drawn = shake.normals(len(finals[0]), shake.key_of(7), 0, -1, 0, 0, "transform 0")
    by_hand = (1 - 1 / 1.6**2) ** -0.5 * 0.5 / 3 * np.array(drawn)
    np.testing.assert_allclose(finals[1] - finals[0], by_hand, atol=1e-7)


@pytest.mark.parametrize(("norm", "share"), [(1e6, 1.0), (1e-6, 0.0)])
def test_far_from_the_quantile_the_norm_is_geometric(norm, share):
    """All changes are whole, or all are clipped: C exp(-eta (b - gamma) t)."""
    _, seen, _ = fit(norm, count_noise=NO_NOISE)
    np.testing.assert_allclose(seen, [norm * math.exp(-RATE * (share - GAMMA) * t) for t in range(4)], rtol=1e-6)


def test_the_noise_of_the_count_by_hand():
    """Default: a 20th of 3 clients, but at least the multiplier of 2."""
    _, seen, _ = fit(1e6, 2.0)
    expected = [1e6]
    for round_idx in range(3):
        (drawn,) = shake.normals(1, shake.key_of(7), round_idx, -1, 0, 0, "count of whole changes")
        expected.append(expected[-1] * math.exp(-RATE * ((1.5 + 2.0 * drawn) / 3 + 0.5 - GAMMA)))
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_the_norm_reaches_the_quantile():
    """Of 100 norms 0.01 to 1: from far above, to the one that 30 % do not exceed."""
    norms, adaptive = np.arange(1, 101) / 100, AdaptiveNorm(50.0, GAMMA, RATE)
    for _ in range(200):
        for client, norm in enumerate(norms):
            adaptive.note(client, norm)
        adaptive.norm = adaptive.moved(adaptive.take_count(range(100)), 100)
    assert adaptive.norm == pytest.approx(0.3, abs=0.011)


def test_clients_that_failed_count_as_neither():
    """Of 4 clients one is whole, one clipped, one failed after it was counted, and one before: b = 1/2."""
    adaptive = AdaptiveNorm(1.0, GAMMA, RATE)
    for client, norm in enumerate((0.5, 2.0, 0.1)):
        adaptive.note(client, norm)
    assert adaptive.moved(adaptive.take_count([0, 1]), 4) == pytest.approx(math.exp(-RATE * (0.5 - GAMMA)), rel=1e-12)


@pytest.mark.parametrize("changed", range(2))
def test_replacing_a_client_moves_the_count_by_at_most_one(changed):
    counts = []
    for norm in (0.5, 2.0):
        adaptive = AdaptiveNorm(1.0, GAMMA, RATE)
        adaptive.note(0, 0.5 if changed else 2.0)
        adaptive.note(1, norm)
        counts.append(adaptive.take_count([0, 1]))
    assert counts[0] - counts[1] == 1.0


def test_sites_would_have_to_send_a_count():
    assert [*ClientPrivacy(0.5, 2.0, target_quantile=0.5).not_at_sites()] == ["target_quantile"]
