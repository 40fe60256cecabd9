"""Noise that is solved for an epsilon: never above the target, within 1 % of it, and kept by a run that is repeated."""

import csv
import math
from pathlib import Path

import launching
import pytest
import torch
from accountants import gaussian_epsilon, poisson
from by_hand import B
from command_line import ADAFED, SMALL
from federations import SIZES, Consecutive, same_bits
from launching import launch
from private_runs import DELTA, Fails, Unlucky, clients, examples, fit, last, lines, stop_after
from run_private import MODES

from fl_lightning import Availability, CheckpointError, Faults, FedAvg, FedCyclic, PartialWork, SecureAggregation
from fl_lightning.errors import FederationError
from fl_lightning.functional.noise_search import least_noise
from fl_lightning.functional.privacy import epsilon_of_clients


@pytest.mark.parametrize(("target", "rounds"), [(0.5, 100), (1.0, 1), (8.0, 1), (8.0, 100)])
def test_the_noise_of_gaussians_by_closed_form(target, rounds):
    noise = least_noise(target, [rounds], lambda z, n: epsilon_of_clients(z, 5, 5, n, 1e-5))
    assert 0.99 * target <= gaussian_epsilon(noise / 2 / math.sqrt(rounds), 1e-5) <= target


def test_the_worst_case_decides_wherever_it_stands():
    noise = least_noise(1.0, [3.0, 1.0, 7.0, 2.0], lambda z, size: size / z)
    assert 0.99 <= 7.0 / noise <= 1.0
    assert least_noise(1.0, [1e7], lambda z, size: size / z) is None


def spent_in(folder, settings, unit, target, least=0.99):
    """Fit; the epsilon that is spent lies within one percent below the target. Return it, and the noise."""
    _, logged = fit(folder, **settings)
    spent = logged[f"federation/epsilon_of_{unit}"]
    assert least * target <= spent <= target
    return spent, logged[f"federation/noise_of_{unit}"]


@pytest.mark.parametrize(
    "settings", [pytest.param({"target": 0.5}, marks=pytest.mark.slow), {"noise": "local"}], ids=["all clients", "local"]
)
def test_a_run_of_all_clients_ends_at_its_target_by_closed_form(settings, tmp_path):
    spent, noise = spent_in(tmp_path, clients(**settings), "clients", settings.get("target", 2.0))
    assert gaussian_epsilon(noise / 2 / math.sqrt(4), DELTA) == pytest.approx(spent, rel=1e-3)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("settings", "unit", "least"),
    [
        (clients(clients_per_round=2), "clients", 0.99),
        slow(clients(secure_aggregation=SecureAggregation()), "clients", 0.99),
        (clients(seeded=1, availability=Availability(drop_out=0.3, slow=0.5)), "clients", 0.99),
        slow(examples(route=FedCyclic()), "examples", 0.99),
        slow(examples(local={"partial_work": PartialWork(0.5)}), "examples", 0.5),
        slow(examples(faults=Faults(retries=1)), "examples", 0.8),
    ],
    ids=["cohorts", "secure", "drops out", "a cycle", "partial work", "a try again"],
)
def test_a_run_ends_at_its_target(settings, unit, least, tmp_path):
    """Stragglers make fewer steps than planned; who may try again has room for it in the last round."""
    spent_in(tmp_path, settings, unit, 2.0, least)


def test_the_client_with_the_largest_epsilon_decides(tmp_path):
    """Clients of 7, 20 and 13 examples, in batches of 5: 4 rounds of 2 epochs."""
    _, noise = spent_in(tmp_path, examples(), "examples", 2.0)
    each = [poisson(noise, B / size, 4 * 2 * math.ceil(size / B), DELTA) for size in SIZES]
    assert max(high for _, high in each) == pytest.approx(2.0, rel=0.02)
    assert max(low for low, _ in each) <= 2.0


def test_one_client_of_all_examples_by_closed_form(tmp_path):
    """Full batches are no samples: 4 rounds of 2 steps."""
    whole = examples(local={"full_batch": True}, partitioner=Consecutive([40]))
    _, noise = spent_in(tmp_path, whole, "examples", 2.0)
    assert 0.99 * 2 <= gaussian_epsilon(noise / math.sqrt(8), DELTA) <= 2.0


def test_two_options_have_each_their_own_target(tmp_path):
    _, logged = fit(tmp_path, **clients(3.0) | examples(2.0))
    assert 2.97 <= logged["federation/epsilon_of_clients"] <= 3.0
    assert 1.98 <= logged["federation/epsilon_of_examples"] <= 2.0


@pytest.mark.parametrize("settings", [clients, pytest.param(examples, marks=pytest.mark.slow)])
def test_a_run_that_was_repeated_ends_before_it_exceeds_its_target(settings, tmp_path, recwarn):
    rounds = 4
    fit(tmp_path, rounds, stop_after(1), **settings())
    first = tmp_path / "first.ckpt"
    (tmp_path / "c/last.ckpt").rename(first)
    for _ in range(2):
        fit(tmp_path, rounds, stop_after(2), ckpt_path=str(first), **settings())
    run, logged = fit(tmp_path, rounds, ckpt_path=str(first), **settings())
    unit = "clients" if settings is clients else "examples"
    assert run.current_epoch == 2 < rounds
    assert logged[f"federation/epsilon_of_{unit}"] <= 2.0
    said = [str(warning.message) for warning in recwarn]
    assert any("The run ends after round 1, of 4 planned rounds: another one could raise epsilon" in text for text in said)
    with pytest.raises(FederationError, match=r"Round 1 would raise epsilon of \w+ to 2\.\d+, above 'target_epsilon' 2, since"):
        fit(tmp_path, rounds, ckpt_path=str(first), **settings())
    assert len([line for line in lines(tmp_path) if "drawn" in line or "rates" in line]) == 4


def test_turns_that_were_repeated_end_the_run_in_time(tmp_path):
    """One of two clients fails in each round after 3 of its 4 steps; the plan allows for one repeated turn."""
    more = examples(local={"max_epochs": 1}, partitioner=Consecutive([20, 20]), faults=Faults(retries=1))
    run, logged = fit(tmp_path, 8, Fails(3), module=Unlucky(), **more)
    assert 1 <= run.current_epoch < 8
    assert logged["federation/epsilon_of_examples"] <= 2.0


def test_a_resumed_run_keeps_its_noise(stopped, tmp_path):
    _, whole = fit(tmp_path / "whole", 4, **clients())
    _, logged = fit(stopped, 4, ckpt_path=last(stopped), **clients())
    for name in ("federation/noise_of_clients", "federation/epsilon_of_clients"):
        assert logged[name] == whole[name]
    saved = torch.load(last(stopped), weights_only=False)
    (state,) = (one["options"] for key, one in saved["callbacks"].items() if "Orchestrator" in key)
    solved = pytest.approx(logged["federation/noise_of_clients"], rel=1e-6)
    assert state["transforms"]["budget"] == {"rounds": 4, "first": 0, "done": 4, "noise": {"clients": solved}}


@pytest.mark.parametrize(
    ("other", "rounds", "message"),
    [
        (clients(), 6, r"solved for 4 rounds, but 'trainer\.max_epochs' is 6: .* Set 'trainer\.max_ep"),
        (clients(3.0), 4, "No single epsilon covers both"),
        ({"strategy": FedAvg("uniform"), **MODES["central"]()}, 4, "No single epsilon covers both"),
    ],
    ids=["more rounds", "another target", "a given noise"],
)
def test_a_resumed_run_has_the_same_rounds_and_target(other, rounds, message, stopped):
    with pytest.raises(CheckpointError, match=message):
        fit(stopped, rounds, ckpt_path=last(stopped), **other)


@pytest.mark.slow
def test_ranks_solve_one_noise_and_draw_it_from_one_key(tmp_path):
    """Cohorts, noise at the server and in the steps; the first rank sends the key."""
    script = str(Path(launching.__file__).with_name("run_private.py"))
    launch([script, "--folder", str(tmp_path), "--mode", "targets", "--ranks", "2"], 120, tmp_path, ranks=2)
    one, other = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert same_bits(one["weights"], other["weights"])
    assert [line["round"] for line in lines(tmp_path) if "drawn" in line] == [0, 1, 2, 3]
    for unit, target in (("clients", 4.0), ("examples", 3.0)):
        for name in (f"federation/epsilon_of_{unit}", f"federation/noise_of_{unit}"):
            assert one["logged"][name] == other["logged"][name]
        assert 0.5 * target < one["logged"][f"federation/epsilon_of_{unit}"] <= target


def table_of(text):
    return [row for row in csv.DictReader(text[text.index("privacy of,") :].splitlines()) if row["epsilon"]]


@pytest.mark.slow
def test_the_command_shows_epsilon_against_rounds_cohort_and_noise(fl):
    """Cohorts of all 4 clients are Gaussians: by closed form; smaller ones cost less."""
    transform = "{class_path: ClientPrivacy, init_args: {max_norm: 0.5, noise_multiplier: 8.0, delta: 1.0e-3}}"
    strategy = "{class_path: FedAvg, init_args: {weighting: uniform}}"
    four = ("--data.partitioner=IIDPartitioner", "--data.partitioner.num_clients=4")
    more = (f"--federation.transforms=[{transform}]", f"--federation.strategy={strategy}", "--trainer.max_epochs=4")
    status, text = fl("privacy", "--config", ADAFED, *SMALL, *four, *more, "--layout=csv")
    assert status == 0, text
    rows = table_of(text)
    assert {row["what varies"] for row in rows} == {"as configured", "rounds", "noise", "clients per round", "target epsilon"}
    for row in rows:
        rounds, noise, epsilon = int(row["rounds"]), float(row["noise multiplier"]), float(row["epsilon"])
        exact = gaussian_epsilon(noise / 2 / math.sqrt(rounds), 1e-3)
        if row["clients per round"] == "4":
            assert epsilon == pytest.approx(exact, rel=1e-3)
        else:
            assert epsilon < 0.9 * exact
    spent = [float(row["epsilon"]) for row in rows if row["what varies"] == "target epsilon"]
    assert all(0.99 * target <= epsilon <= target for target, epsilon in zip([0.5, 1, 2, 4, 8], spent, strict=True))
    status, text = fl("privacy", "--config", ADAFED, *SMALL, *four, *more, "--layout=markdown")
    assert "'layout' must be one of 'text', 'csv', but is 'markdown'." in text
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"), [((), "adds noise, so it has no epsilon"), (("-1",), "'trainer.max_epochs' is -1")]
)
def test_the_command_says_what_is_missing(more, message, fl):
    privacy = "{max_grad_norm: 1.0, noise_multiplier: 2.0}"
    flags = (f"--federation.local.privacy={privacy}", f"--trainer.max_epochs={more[0]}") if more else ()
    status, text = fl("privacy", "--config", ADAFED, *SMALL, *flags)
    assert status == 1
    assert message in text
