"""Runs that are extended beyond the rounds that their noise was solved for: larger noise, and never above the target."""

import math
from functools import partial
from pathlib import Path

import dp_accounting
import pytest
import torch
from accountants import gaussian_epsilon, unlike
from by_hand import B
from dp_accounting.pld import PLDAccountant
from federations import SIZES
from private_runs import DELTA, clients, examples, fit, last, lines, stop_after

from fl_lightning import CheckpointError, ConfigurationError, ExamplePrivacy, FedCyclic
from fl_lightning.functional.privacy import epsilon_of_clients
from fl_lightning.functional.releases import Release, epsilon_of_releases
from fl_lightning.options.privacy_account import budget

TARGET = 2.0
extending, extending_examples = partial(clients, extend=True), partial(examples, extend=True)


def noises(folder, unit="clients"):
    """Return the noise of each round in the ledger."""
    return [line["noise"][unit] for line in lines(folder) if line.keys() & {"drawn", "sent", "rates"} and "period" in line]


def exact(paid):
    """Return epsilon of rounds of all clients, by closed form."""
    return gaussian_epsilon(1 / math.sqrt(sum(1 / z**2 for z in paid)) / 2, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [[(4.0, 0.5, 10), (9.0, 0.5, 20)], [(2.0, 0.1, 30), (3.0, 0.3, 5)], [(8.0, 1.0, 3), (3.0, 0.05, 50)]]
)
def test_unlike_cohorts_cost_no_less_than_what_is_attained(parts):
    """Two federations that differ by 2 C attain a composition of Gaussians on Poisson samples."""
    low, high = unlike([(noise / 2, share, rounds) for noise, share, rounds in parts], 1e-5)
    found = epsilon_of_releases([Release("clients", *part) for part in parts], 1e-5)
    assert low <= found <= 1.12 * high


def test_cohorts_that_are_split_into_groups_cost_what_they_cost_together():
    parts = [Release("clients", 4.0, 0.3, 12), Release("clients", 4.0 * (1 + 1e-9), 0.3, 8)]
    assert epsilon_of_releases(parts, 1e-5) == pytest.approx(epsilon_of_clients(4.0, 3, 10, 20, 1e-5), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["central", "local"])
def test_an_extended_run_of_all_clients_ends_at_its_target_by_closed_form(noise, tmp_path):
    """Stopped after 2 of 4 rounds, extended to 7, stopped again, and resumed without a further extension."""
    fit(tmp_path, 4, stop_after(2), **extending(noise=noise))
    fit(tmp_path, 7, stop_after(4), ckpt_path=last(tmp_path), **extending(noise=noise))
    run, logged = fit(tmp_path, 7, ckpt_path=last(tmp_path), **clients(noise=noise))
    assert run.current_epoch == 7
    paid = noises(tmp_path)
    first, second = paid[0], paid[-1]
    assert paid == [first] * 2 + [second] * 5
    assert first < second == pytest.approx(logged["federation/noise_of_clients"], rel=1e-6)
    assert 0.99 * TARGET <= exact(paid) <= TARGET
    assert logged["federation/epsilon_of_clients"] == pytest.approx(exact(paid), rel=1e-3)
    saved = torch.load(last(tmp_path), weights_only=False)
    (state,) = (one["options"] for key, one in saved["callbacks"].items() if "Orchestrator" in key)
    assert state["transforms"]["budget"] == {"rounds": 7, "first": 2, "done": 7, "noise": {"clients": second}}


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"route": FedCyclic()}])
def test_an_extended_run_of_examples_ends_at_its_target_by_another_accountant(more, tmp_path):
    """Clients of 7, 20 and 13 examples, in batches of 5: 2 and then 4 rounds of 2 epochs."""
    fit(tmp_path, 4, stop_after(2), **extending_examples(**more))
    _, logged = fit(tmp_path, 6, ckpt_path=last(tmp_path), **extending_examples(**more))
    paid = sorted(set(noises(tmp_path, "examples")))
    assert len(paid) == 2
    spent = []
    for size in SIZES:
        accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
        for noise, rounds in zip(paid, (2, 4), strict=True):
            step = dp_accounting.PoissonSampledDpEvent(B / size, dp_accounting.GaussianDpEvent(noise))
            accountant.compose(step, rounds * 2 * math.ceil(size / B))
        spent.append(accountant.get_epsilon(DELTA))
    assert max(spent) == pytest.approx(logged["federation/epsilon_of_examples"], rel=0.01)
    assert 0.98 * TARGET <= max(spent) <= 1.001 * TARGET
    assert 0.99 * TARGET <= logged["federation/epsilon_of_examples"] <= TARGET


@pytest.mark.slow
def test_each_of_two_options_is_extended_if_both_ask_for_it(tmp_path):
    fit(tmp_path, 3, stop_after(1), **extending() | extending_examples())
    with pytest.raises(CheckpointError, match=r"or set 'extend' of ClientPrivacy to true: the noise of the rounds that remain"):
        fit(tmp_path, 4, ckpt_path=last(tmp_path), **clients() | extending_examples())
    assert len(noises(tmp_path)) == 1
    _, logged = fit(tmp_path, 4, ckpt_path=last(tmp_path), **extending() | extending_examples())
    for unit in ("clients", "examples"):
        assert 0.99 * TARGET <= logged[f"federation/epsilon_of_{unit}"] <= TARGET
        assert len(set(noises(tmp_path, unit))) == 2


def test_without_more_rounds_the_noise_is_the_same_to_the_bit(stopped, tmp_path):
    """As the run without 'extend', also if 'extend' is set only when it is resumed."""
    _, plain = fit(tmp_path / "plain", 4, **clients())
    _, logged = fit(stopped, 4, ckpt_path=last(stopped), **extending())
    assert set(noises(stopped)) == set(noises(tmp_path / "plain"))
    assert logged["federation/epsilon_of_clients"] == plain["federation/epsilon_of_clients"]


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [4, 7])
def test_a_run_that_is_extended_twice_from_one_checkpoint_pays_for_both(rounds, stopped):
    """As after a kill. With 4 rounds the first noise is used again; with 7 a third one is solved."""
    early = stopped / "early.ckpt"
    Path(last(stopped)).rename(early)
    fit(stopped, 7, stop_after(3), ckpt_path=str(early), **extending())
    run, logged = fit(stopped, rounds, ckpt_path=str(early), **extending())
    paid = noises(stopped)
    assert exact(paid) <= TARGET
    assert logged["federation/epsilon_of_clients"] == pytest.approx(exact(paid), rel=1e-3)
    assert (run.current_epoch == 7) == (rounds == 7)
    assert len(set(paid)) == (3 if rounds == 7 else 2)


def test_a_finished_run_has_little_left_for_further_rounds(tmp_path):
    fit(tmp_path, 3, **extending())
    _, logged = fit(tmp_path, 4, ckpt_path=last(tmp_path), **extending())
    first, second = sorted(set(noises(tmp_path)))
    assert second > 5 * first
    assert logged["federation/epsilon_of_clients"] <= TARGET


def test_an_extension_without_noise_is_refused(stopped, monkeypatch):
    monkeypatch.setattr(budget, "least_noise", lambda *_: None)
    message = r"has spent epsilon 1\.\d+ of clients, and no noise .* keeps 3 further rounds"
    with pytest.raises(ConfigurationError, match=message):
        fit(stopped, 5, ckpt_path=last(stopped), **extending())


def test_sites_learn_of_no_extension():
    privacy = ExamplePrivacy(1.0, target_epsilon=2.0, extend=True)
    privacy.use_noise(3.0)
    assert privacy.sent_to_sites() == {"noise_multiplier": 3.0, "target_epsilon": None, "extend": False}
