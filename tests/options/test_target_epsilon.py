"""Noise that is solved for an epsilon: never above the target, within 1 % of it, and kept by a run that is repeated."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import launching
import pytest
import torch
from accountants import attained, gaussian_epsilon, poisson
from command_line import ADAFED, SMALL
from federations import SIZES, Consecutive, Plain, every_round, federate, same_bits
from launching import launch
from lightning.pytorch import Callback
from run_private import MODES
from test_privacy_ledger import Fails, Unlucky, lines

from fl_lightning import (
    Asynchronous,
    Availability,
    CheckpointError,
    ClientPrivacy,
    ConfigurationError,
    ExamplePrivacy,
    Faults,
    FedAvg,
    FedCyclic,
    LocalTraining,
    PartialWork,
    SecureAggregation,
)
from fl_lightning.errors import FederationError
from fl_lightning.functional import epsilon_of_clients, epsilon_of_examples
from fl_lightning.functional.noise_search import least_noise

DELTA = 1e-3


def clients(target=2.0, noise="central", seeded=None, **more):
    privacy = ClientPrivacy(0.5, None, noise, DELTA, seeded, target)
    return {"strategy": FedAvg("uniform"), "transforms": [privacy], **more}


def examples(target=2.0, **more):
    return {"local": LocalTraining(max_epochs=2, privacy=ExamplePrivacy(1.0, delta=DELTA, target_epsilon=target)), **more}


def fit(folder, rounds=4, *callbacks, ckpt_path=None, module=None, flags=None, **settings):
    torch.manual_seed(0)
    flags = {"default_root_dir": str(folder), "enable_checkpointing": True, **(flags or {})}
    saves = every_round(Path(folder) / "c")
    run = federate(module or Plain(), rounds, saves, *callbacks, flags=flags, ckpt_path=ckpt_path, **settings)
    return run, {name: float(value) for name, value in run.logged_metrics.items()}


# ---------------------------------------------------------------- the search


TARGETS = [0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rounds", [1, 100])
def test_the_noise_of_gaussians_by_closed_form(target, rounds):
    noise = least_noise(target, [rounds], lambda z, n: epsilon_of_clients(z, 5, 5, n, 1e-5))
    assert 0.99 * target <= gaussian_epsilon(noise / 2 / math.sqrt(rounds), 1e-5) <= target


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.1, 50), (0.004, 10_000)])
def test_the_noise_of_drawn_batches_by_another_accountant(target, rate, steps):
    noise = least_noise(target, [steps], lambda sigma, n: epsilon_of_examples(sigma, rate, n, 1e-5))
    low, high = poisson(noise, rate, steps, 1e-5)
    assert low <= target
    assert high >= 0.98 * target - 0.01


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("sampled", "rounds"), [(5, 10), (50, 100)])
def test_the_noise_of_drawn_cohorts_is_within_one_percent_of_its_bound(target, sampled, rounds):
    noise = least_noise(target, [rounds], lambda z, n: epsilon_of_clients(z, sampled, 100, n, 1e-5))
    assert 0.99 * target <= epsilon_of_clients(noise, sampled, 100, rounds, 1e-5) <= target
    assert attained(noise, sampled, 100, rounds, 1e-5)[0] <= target


def test_the_worst_case_decides_wherever_it_stands():
    noise = least_noise(1.0, [3.0, 1.0, 7.0, 2.0], lambda z, size: size / z)
    assert 0.99 <= 7.0 / noise <= 1.0
    assert least_noise(1.0, [1e7], lambda z, size: size / z) is None


# ---------------------------------------------------------------- a whole run


SETTINGS = {
    "central": lambda: clients(clients_per_round=2),
    "all clients": lambda: clients(0.5),
    "local": lambda: clients(noise="local"),
    "stacked": lambda: clients(local=LocalTraining(engine="stacked")),
    "secure": lambda: clients(secure_aggregation=SecureAggregation()),
    "drops out": lambda: clients(seeded=1, availability=Availability(drop_out=0.3, slow=0.5)),
    "examples": examples,
    "examples and partial work": lambda: {
        "local": LocalTraining(
            max_epochs=2,
            partial_work=PartialWork(0.5),
            privacy=ExamplePrivacy(1.0, delta=DELTA, target_epsilon=2.0),
        )
    },
    "examples on a cycle": lambda: examples(route=FedCyclic()),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_ends_at_its_target_and_not_above_it(name, tmp_path):
    _, logged = fit(tmp_path, **SETTINGS[name]())
    unit, target = ("examples" if "examples" in name else "clients"), 0.5 if name == "all clients" else 2.0
    spent, noise = logged[f"federation/epsilon_of_{unit}"], logged[f"federation/noise_of_{unit}"]
    least = 0.5 if "partial" in name else 0.99  # stragglers make fewer steps than planned
    assert least * target <= spent <= target
    if name in ("local", "all clients"):
        assert gaussian_epsilon(noise / 2 / math.sqrt(4), DELTA) == pytest.approx(spent, rel=1e-3)


def test_the_client_with_the_largest_epsilon_decides(tmp_path):
    """Clients of 7, 20 and 13 examples, in batches of 6: 4 rounds of 2 epochs."""
    from by_hand import B

    _, logged = fit(tmp_path, **examples())
    noise = logged["federation/noise_of_examples"]
    each = [poisson(noise, B / size, 4 * 2 * math.ceil(size / B), DELTA) for size in SIZES]
    assert max(high for _, high in each) == pytest.approx(2.0, rel=0.02)
    assert max(low for low, _ in each) <= 2.0


def test_two_options_have_each_their_own_target(tmp_path):
    _, logged = fit(tmp_path, **clients(3.0) | examples(2.0))
    assert 2.97 <= logged["federation/epsilon_of_clients"] <= 3.0
    assert 1.98 <= logged["federation/epsilon_of_examples"] <= 2.0


def test_a_client_that_may_try_again_has_room_for_it_in_the_last_round(tmp_path):
    """Without failures the run ends below its target by no more than one turn."""
    run, logged = fit(tmp_path, **examples(faults=Faults(retries=1)))
    assert run.current_epoch == 4
    assert 1.6 <= logged["federation/epsilon_of_examples"] <= 2.0


# ---------------------------------------------------------------- never above


@pytest.mark.parametrize("settings", [clients, examples])
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


def stop_after(rounds):
    """End a run early, as if it was stopped."""

    class Stop(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.should_stop = trainer.current_epoch + 1 >= rounds

    return Stop()


def test_turns_that_were_repeated_end_the_run_in_time(tmp_path):
    """One of two clients fails in each round after 3 of its 4 steps; the plan allows for one repeated turn."""
    local = LocalTraining(privacy=ExamplePrivacy(1.0, delta=DELTA, target_epsilon=2.0))
    more = {"partitioner": Consecutive([20, 20]), "local": local, "faults": Faults(retries=1)}
    run, logged = fit(tmp_path, 8, Fails(3), module=Unlucky(), **more)
    assert 1 <= run.current_epoch < 8
    assert logged["federation/epsilon_of_examples"] <= 2.0


def test_a_resumed_run_keeps_its_noise(tmp_path):
    _, whole = fit(tmp_path / "whole", 4, **clients())
    fit(tmp_path / "run", 4, stop_after(2), **clients())
    _, logged = fit(tmp_path / "run", 4, ckpt_path=str(tmp_path / "run/c/last.ckpt"), **clients())
    for name in ("federation/noise_of_clients", "federation/epsilon_of_clients"):
        assert logged[name] == whole[name]
    saved = torch.load(tmp_path / "run/c/last.ckpt", weights_only=False)
    (state,) = (one["options"] for key, one in saved["callbacks"].items() if "Orchestrator" in key)
    solved = pytest.approx(logged["federation/noise_of_clients"], rel=1e-6)
    assert state["transforms"]["budget"] == {"rounds": 4, "first": 0, "done": 4, "noise": {"clients": solved}}


def test_an_extended_run_is_refused_with_what_to_do(tmp_path):
    fit(tmp_path, 4, stop_after(2), **clients())
    with pytest.raises(CheckpointError, match=r"solved for 4 rounds, but 'trainer\.max_epochs' is 6: .* Set 'trainer\.max_ep"):
        fit(tmp_path, 6, ckpt_path=str(tmp_path / "c/last.ckpt"), **clients())


@pytest.mark.parametrize("other", [clients(3.0), MODES["central"]()])
def test_a_resumed_run_has_the_same_target(other, tmp_path):
    fit(tmp_path, 4, stop_after(2), **clients())
    with pytest.raises(CheckpointError, match="no single epsilon covers both"):
        fit(tmp_path, 4, ckpt_path=str(tmp_path / "c/last.ckpt"), **{"strategy": FedAvg("uniform"), **other})


def test_ranks_solve_one_noise_and_five_kills_do_not_exceed_the_target(tmp_path):
    """Two ranks that run to the end; and a third round that is begun six times, of four that are planned."""
    script = str(Path(launching.__file__).with_name("run_private.py"))
    folder = tmp_path / "ranks"
    folder.mkdir()
    launch([script, "--folder", str(folder), "--mode", "targets", "--ranks", "2"], 120, folder, ranks=2)
    one, other = (torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert same_bits(one["weights"], other["weights"])
    for unit, target in (("clients", 4.0), ("examples", 3.0)):
        for found in (one, other):
            assert 0.5 * target < found["logged"][f"federation/epsilon_of_{unit}"] <= target
        assert one["logged"][f"federation/noise_of_{unit}"] == other["logged"][f"federation/noise_of_{unit}"]
    folder = tmp_path / "kills"
    folder.mkdir()
    said = launch([script, "--folder", str(folder), "--mode", "targets"], 120, folder, expect=1)
    assert "Round 2 would raise epsilon of" in said  # at its third start
    assert [line["round"] for line in lines(folder) if "drawn" in line] == [0, 1, 2, 2]


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize("more", [{}, {"noise_multiplier": 1.0, "target_epsilon": 1.0}])
def test_exactly_one_of_noise_and_epsilon(more):
    for make in (ClientPrivacy, ExamplePrivacy):
        with pytest.raises(ConfigurationError, match="needs exactly one of 'noise_multiplier' and 'target_epsilon', but"):
            make(1.0, **more)


@pytest.mark.parametrize("settings", [clients, examples])
def test_an_unlimited_run_has_no_noise(settings, tmp_path):
    with pytest.raises(ConfigurationError, match=r"needs the number of rounds, but 'trainer\.max_epochs' is -1\. Set it to"):
        fit(tmp_path, -1, flags={"max_time": "00:00:01:00"}, **settings())


def test_a_target_that_no_noise_reaches_is_refused_with_what_would_have_to_change(tmp_path):
    settings = {"strategy": FedAvg("uniform"), "transforms": [ClientPrivacy(0.5, delta=1e-12, target_epsilon=1e-6)]}
    with pytest.raises(ConfigurationError, match=r"No noise multiplier up to a million .* over 4 rounds\. Raise 'target_epsil"):
        fit(tmp_path, 4, **settings)


def test_asynchronous_rounds_have_no_plan(tmp_path):
    with pytest.raises(ConfigurationError, match=r"'target_epsilon' of ClientPrivacy needs rounds that draw a cohort.*"):
        fit(tmp_path, 4, **clients(noise="local", asynchronous=Asynchronous(2, 2)))


def test_before_a_fit_the_noise_is_not_known():
    with pytest.raises(ConfigurationError, match=r"has not been solved for 'target_epsilon' 2\.0, which happens at the server"):
        _ = ClientPrivacy(1.0, target_epsilon=2.0).multiplier


def test_one_client_of_all_examples_by_closed_form(tmp_path):
    """Full batches are no samples: 4 rounds of 2 steps."""
    local = LocalTraining(max_epochs=2, full_batch=True, privacy=ExamplePrivacy(1.0, delta=DELTA, target_epsilon=2.0))
    _, logged = fit(tmp_path, 4, partitioner=Consecutive([40]), local=local)
    exact = gaussian_epsilon(logged["federation/noise_of_examples"] / math.sqrt(8), DELTA)
    assert 0.99 * 2 <= exact <= 2.0


# ---------------------------------------------------------------- before a run


def table_of(text):
    return [row for row in csv.DictReader(text[text.index("privacy of,") :].splitlines()) if row["epsilon"]]


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
    assert all(0.99 * target <= epsilon <= target for target, epsilon in zip(TARGETS, spent, strict=True))
    status, text = fl("privacy", "--config", ADAFED, *SMALL, *four, *more, "--layout=markdown")
    assert "| clients | as configured | 4 | 4 | 8 |" in text
    assert not Path("runs").exists()


def test_the_command_shows_epsilon_of_the_examples_of_the_worst_client(fl):
    privacy = "{max_grad_norm: 1.0, target_epsilon: 2.0, delta: 1.0e-3}"
    status, text = fl("privacy", "--config", ADAFED, *SMALL, f"--federation.local.privacy={privacy}", "--layout=csv")
    assert status == 0, text
    rows = table_of(text)
    assert {row["what varies"] for row in rows} == {"as configured", "rounds", "noise", "target epsilon"}
    assert 1.98 <= float(rows[0]["epsilon"]) <= 2.0


@pytest.mark.parametrize(
    ("more", "message"), [((), "adds noise, so it has no epsilon"), (("-1",), "'trainer.max_epochs' is -1")]
)
def test_the_command_says_what_is_missing(more, message, fl):
    privacy = "{max_grad_norm: 1.0, noise_multiplier: 2.0}"
    flags = (f"--federation.local.privacy={privacy}", f"--trainer.max_epochs={more[0]}") if more else ()
    status, text = fl("privacy", "--config", ADAFED, *SMALL, *flags)
    assert status == 1
    assert message in text
