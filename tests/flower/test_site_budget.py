"""The privacy budget of a site's data: over all federations, paid before anything leaves."""

import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import pandas as pd
import pytest
from accountants import gaussian_epsilon
from asked_site import NOISY, NOISY_STEPS, north, order, told, work
from dp_accounting.pld import PLDAccountant
from sites_over_bytes import configuration, federate, prepare, restart, table

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.parent import main
from fl_lightning.flower.site.policy import Budget
from fl_lightning.functional.privacy import epsilon_of_examples
from fl_lightning.functional.releases import Release, epsilon_of_releases

DELTA = 1e-5
LEDGER = Path("ledger.jsonl")


# ---------------------------------------------------------------- the sum of unlike releases


@pytest.mark.parametrize(
    "parts",
    [
        [(1.0, 0.1, 50)],
        pytest.param([(0.7, 0.02, 100), (2.0, 0.3, 40)], marks=pytest.mark.slow),
        pytest.param([(1.2, 0.05, 30), (1.2, 1.0, 3), (4.0, 1.0, 9)], marks=pytest.mark.slow),
        pytest.param([(3.0, 0.5, 200), (0.6, 0.01, 5)], marks=pytest.mark.slow),
    ],
)
def test_epsilon_of_unlike_steps_is_that_of_another_accountant(parts):
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for noise, rate, steps in parts:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
    theirs = accountant.get_epsilon(DELTA)
    ours = epsilon_of_releases([Release("examples", *part) for part in parts], DELTA)
    assert ours == pytest.approx(theirs, rel=0.01, abs=0.01)


def test_epsilon_of_a_whole_client_is_the_closed_form():
    """One Gaussian mechanism whose squared shifts add up; replacing a client moves a sum by 2 C."""
    releases = [Release("clients", 8.0, count=3), Release("clients", 20.0, count=5)]
    together = 1 / math.sqrt(3 / 8**2 + 5 / 20**2)
    assert epsilon_of_releases(releases, DELTA) == pytest.approx(gaussian_epsilon(together / 2, DELTA), rel=0.02)
    assert epsilon_of_releases(releases, DELTA) >= gaussian_epsilon(together / 2, DELTA)


def test_equal_releases_cost_what_one_run_of_them_costs_and_unlike_units_have_no_sum():
    releases = [Release("examples", 1.1, 0.1, 30)] * 4
    assert epsilon_of_releases(releases, DELTA) == epsilon_of_examples(1.1, 0.1, 120, DELTA)
    assert epsilon_of_releases([], DELTA) == 0
    with pytest.raises(ValueError, match="no sum"):
        epsilon_of_releases([Release("examples", 1.0), Release("clients", 1.0)], DELTA)


# ---------------------------------------------------------------- a site


def limits(max_epsilon: float, protects: str = "rows", **more: Any) -> dict[str, Any]:
    return {"account": str(LEDGER), "max_epsilon": max_epsilon, "delta": DELTA, "protects": protects, **more}


def budgeted(max_epsilon: float = 100.0, protects: str = "rows") -> Any:
    LEDGER.touch()
    return north(update={"noise": {"least": 0.5, "budget": limits(max_epsilon, protects, data="cardiology")}})


def entries(path: Path = LEDGER) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(site: Any, session: str) -> dict[str, Any]:
    return work(site, session=session, local=NOISY_STEPS)


def step_epsilon(steps: int) -> float:
    """24 rows in batches of 8: a third of the rows, on average, in each step."""
    return epsilon_of_examples(NOISY_STEPS["privacy"]["noise_multiplier"], 8 / 24, steps, DELTA)


def test_a_site_trains_until_its_budget_is_spent():
    """A new session pays again, a reply from the store does not; a restart and another federation find what is spent."""
    limit = step_epsilon(6) * 1.001
    site = budgeted(limit)
    first, second = (train(site, "a")["replies"][0].model.vector for _ in range(2))
    assert (first == second).all()
    LEDGER.write_text(LEDGER.read_text().replace("a" * 32, "b" * 32))
    site = budgeted(limit)
    assert not told(train(site, "b"))
    limited = "epsilon of this site's rows, over all federations, above its 'policy.update.noise.budget.max_epsilon'"
    assert f"would raise {limited}" in told(train(site, "c"))
    assert [(line["federation"][:1], line["release"]["count"]) for line in entries()] == [("b", 3), ("a", 3)]
    assert not told(train(budgeted(), "d"))


def test_repeated_turns_are_paid_before_they_happen():
    """Three steps, and six more if both retries are needed; a budget for two of the three is too small."""
    asked = {"local": NOISY_STEPS, "faults": {"retries": 2}}
    assert not told(work(budgeted(step_epsilon(9) * 1.001), session="a", **asked))
    assert [line["release"]["count"] for line in entries()] == [9]
    LEDGER.unlink()
    assert "max_epsilon" in told(work(budgeted(step_epsilon(6) * 1.001), session="b", **asked))


@pytest.mark.parametrize("fails", ["fsync", "write"])
def test_nothing_leaves_without_a_line(fails, monkeypatch):
    site, trained = budgeted(), []

    real = os.fsync

    def full(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), LEDGER.stat()):
            raise OSError("disk full")
        real(descriptor)

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        LEDGER.unlink()
    monkeypatch.setattr("fl_lightning.clients.site.Site.handle", lambda self, message: trained.append(message))
    reply = train(site, "a")
    assert told(reply)
    assert "replies" not in reply
    assert not [one for one in trained if type(one).__name__ == "ClientTask"]


def test_a_line_that_a_kill_cut_off_is_dropped_one_without_its_end_counts_and_a_changed_one_is_not_read():
    site = budgeted()
    train(site, "a")
    whole = LEDGER.read_bytes()
    for spoilt in (whole + whole[:50], whole.rstrip(b"\n")):  # by a kill, and as an editor leaves it
        LEDGER.write_bytes(spoilt)
        assert not told(train(site, f"after {len(spoilt)}"))
        assert len(entries()) == 2
    LEDGER.write_bytes(whole + b'{"release": 3}\n' + whole)
    with pytest.raises(ConfigurationError, match=r"Line 2 of the ledger '.*' is damaged, so what was spent is not known. Rest"):
        budgeted()


def test_orders_without_noise_that_the_budget_counts_are_refused():
    said = told(work(budgeted(), session="a", **NOISY))
    assert "has a budget for its rows, but the order adds no noise that protects them" in said
    site = budgeted(protects="site")
    assert "budget for its site, but the order adds no noise" in told(train(site, "b"))
    assert not entries()
    assert not told(work(site, session="c", **NOISY))
    (line,) = entries()
    assert (line["protects"], line["release"]["protects"], line["release"]["count"]) == ("site", "clients", 1)


def test_persons_and_rows_are_never_added():
    train(budgeted(), "a")
    frame = pd.read_csv("north/own.csv")
    frame.assign(patient=[k // 2 for k in range(len(frame))]).to_csv("north/own.csv", index=False)
    own = table("north/own.csv", person_column="patient")
    for protects, said in (("rows", "protects persons of these data"), ("persons", "counts the rows of 'cardiology'")):
        budget = limits(100.0, protects, data="cardiology")
        with pytest.raises(ConfigurationError, match=said):
            restart("north", datamodule=own, limits={"update": {"noise": {"least": 0.5, "budget": budget}}})


def test_federations_at_the_same_time_do_not_overspend():
    """Eight threads with accounts of their own on one file, whose budget is for five releases."""
    LEDGER.touch()
    one = Release("clients", 10.0)
    budget = Budget("x", str(LEDGER), epsilon_of_releases([one] * 5, DELTA), DELTA, "site")
    option = SimpleNamespace(released=lambda *_: one)
    asked: Any = SimpleNamespace(faults=SimpleNamespace(retries=0), local=None, active_options=(option,))

    def pay(number: int) -> bool:
        try:
            SiteBudget(budget, False).charge(str(number), order(), asked, None)  # type: ignore[arg-type]
        except ConfigurationError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(pay, range(8))) == 5
    assert len(entries()) == 5


def test_the_staff_read_what_is_spent(capsys):
    site = budgeted()
    for session in "ab":
        train(site, session)
    main(["site", "budget", "--data", "north/data.yaml"])
    said = capsys.readouterr().out
    assert f"{'a' * 32}" in said
    assert f"epsilon {step_epsilon(6):.3g} of 100 is spent on the rows of 'cardiology' (delta 1e-05)" in said


@pytest.mark.slow
def test_noise_in_each_step_at_sites_costs_what_it_costs_in_the_simulation():
    """The server knows batches and rates from the sites, and each site pays from its own account."""
    prepare(update={"noise": {"least": 1.0}}, tells=None)
    rows = {"north": 24, "south": 36, "west": 48}
    for name in rows:
        Path(f"{name}.jsonl").touch()
        own = limits(50.0, data=name, account=f"{name}.jsonl")
        restart(name, limits={"update": {"noise": {"least": 1.0, "budget": own}}})
    private = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "delta": DELTA}
    config = configuration(local={"threads": 1, "privacy": private}, strategy="FedAvg")
    config["trainer"]["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}
    federate(config)
    at_sites = pd.read_csv(next(Path("logs").rglob("metrics.csv")))["federation/epsilon_of_examples"].dropna().tolist()
    worst = max(epsilon_of_examples(2.0, 8 / count, 3 * math.ceil(count / 8), DELTA) for count in rows.values())
    assert at_sites[-1] == pytest.approx(worst)
    for name, count in rows.items():
        paid = [line["release"] for line in entries(Path(f"{name}.jsonl"))]
        assert [one["count"] for one in paid] == [math.ceil(count / 8)] * 3
        assert {(one["noise_multiplier"], one["rate"]) for one in paid} == {(2.0, 8 / count)}
