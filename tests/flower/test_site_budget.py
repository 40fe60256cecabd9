"""The privacy budget of a site's data: over all federations, paid before anything leaves."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dp_accounting
import pandas as pd
import pytest
import yaml
from accountants import gaussian_epsilon
from dp_accounting.pld import PLDAccountant
from sites_over_bytes import NAMES, configuration, federate, prepare, start_site, table
from test_site_policy import told
from test_site_security import NOISY_STEPS, again, noisy, order, site, work  # noqa: F401 (site is a fixture)

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.policy import Budget, Policy
from fl_lightning.flower.site import main
from fl_lightning.flower.site_budget import SiteBudget
from fl_lightning.functional.privacy import epsilon_of_examples
from fl_lightning.functional.releases import Release, epsilon_of_releases

DELTA = 1e-5


# ---------------------------------------------------------------- the sum of unlike releases


@pytest.mark.parametrize(
    "parts",
    [
        [(1.0, 0.1, 50)],
        [(0.7, 0.02, 100), (2.0, 0.3, 40)],
        [(1.2, 0.05, 30), (1.2, 1.0, 3), (4.0, 1.0, 9)],
        [(3.0, 0.5, 200), (0.6, 0.01, 5)],
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


def budgeted(folder: Path, max_epsilon: float, protects: str = "rows", **policy: Any) -> Any:
    ledger = folder / "ledger.jsonl"
    ledger.touch()
    budget = {"data": "cardiology", "account": str(ledger), "max_epsilon": max_epsilon, "delta": DELTA, "protects": protects}
    agreed = {"federations": "any", "min_noise": 0.5, "budget": budget, **policy}
    text = {"datamodule": table(str(folder / "north" / "own.csv")), "device": "cpu", "policy": agreed}
    (folder / "north" / "data.yaml").write_text(yaml.safe_dump(text))
    return start_site(folder, "north")


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def train(site: Any, session: str, **task: Any) -> dict[str, Any]:  # noqa: F811
    return again(site, session, order(**task), local=NOISY_STEPS)


def step_epsilon(steps: int) -> float:
    """24 rows in batches of 8: a third of the rows, on average, in each step."""
    return epsilon_of_examples(NOISY_STEPS["privacy"]["noise_multiplier"], 8 / 24, steps, DELTA)


def test_a_site_trains_until_its_budget_is_spent(site, tmp_path):  # noqa: F811
    """A new session, as after a restart of the server, trains again and pays again."""
    site = budgeted(tmp_path, max_epsilon=step_epsilon(6) * 1.001)
    assert not told(train(site, "a"))
    assert not told(train(site, "b"))
    said = told(train(site, "c"))
    assert "would raise epsilon of this site's rows, over all federations, above its 'policy.budget.max_epsilon'" in said
    assert [line["release"]["count"] for line in entries(tmp_path)] == [3, 3]
    assert not told(train(budgeted(tmp_path, max_epsilon=100.0), "d"))


def test_another_federation_and_another_start_of_the_site_find_what_is_spent(site, tmp_path):  # noqa: F811
    limit = step_epsilon(6) * 1.001
    site = budgeted(tmp_path, limit)
    assert not told(train(site, "a"))
    lines = (tmp_path / "ledger.jsonl").read_text().replace("a" * 32, "b" * 32)
    (tmp_path / "ledger.jsonl").write_text(lines)
    site = budgeted(tmp_path, limit)
    assert not told(train(site, "b"))
    assert [line["federation"][:1] for line in entries(tmp_path)] == ["b", "a"]
    assert "max_epsilon" in told(train(site, "c"))


def test_a_reply_from_the_store_costs_nothing(site, tmp_path):  # noqa: F811
    site = budgeted(tmp_path, max_epsilon=100.0)
    first, second = train(site, "a"), train(site, "a")
    assert (first["replies"][0].model.vector == second["replies"][0].model.vector).all()
    assert len(entries(tmp_path)) == 1


def test_repeated_turns_are_paid_before_they_happen(site, tmp_path):  # noqa: F811
    """Three steps, and six more if both retries are needed; a budget for two of the three is too small."""
    asked = {"local": NOISY_STEPS, "faults": {"retries": 2}}
    assert not told(again(budgeted(tmp_path, max_epsilon=step_epsilon(9) * 1.001), "a", order(), **asked))
    assert [line["release"]["count"] for line in entries(tmp_path)] == [9]
    (tmp_path / "ledger.jsonl").unlink()
    assert "max_epsilon" in told(again(budgeted(tmp_path, max_epsilon=step_epsilon(6) * 1.001), "b", order(), **asked))


@pytest.mark.parametrize("fails", ["fsync", "write"])
def test_nothing_leaves_without_a_line(fails, site, tmp_path, monkeypatch):  # noqa: F811
    site = budgeted(tmp_path, max_epsilon=100.0)
    trained = []

    def broken(*_: Any) -> None:
        raise OSError("disk full")

    if fails == "fsync":
        monkeypatch.setattr("fl_lightning.flower.site_budget.os.fsync", broken)
    else:
        (tmp_path / "ledger.jsonl").unlink()
    monkeypatch.setattr("fl_lightning.clients.site.Site.handle", lambda self, message: trained.append(message))
    reply = train(site, "a")
    assert told(reply)
    assert "replies" not in reply
    assert not [one for one in trained if type(one).__name__ == "ClientTask"]


def test_a_line_that_a_kill_cut_off_is_dropped_and_a_changed_one_is_not_read(site, tmp_path):  # noqa: F811
    site = budgeted(tmp_path, max_epsilon=100.0)
    train(site, "a")
    path = tmp_path / "ledger.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    assert not told(train(site, "b"))
    assert len(entries(tmp_path)) == 2
    path.write_bytes(whole + b'{"release": 3}\n' + whole)
    with pytest.raises(ConfigurationError, match=r"Line 2 of the account '.*' cannot be read"):
        budgeted(tmp_path, max_epsilon=100.0)


def test_orders_without_noise_that_the_budget_counts_are_refused(site, tmp_path):  # noqa: F811
    site = budgeted(tmp_path, max_epsilon=100.0)
    said = told(again(site, "a", order(), transforms=[noisy()]))
    assert "has a budget for its rows, but the order adds no noise that protects them" in said
    site = budgeted(tmp_path, max_epsilon=100.0, protects="site")
    assert "budget for its site, but the order adds no noise" in told(train(site, "b"))
    assert not entries(tmp_path)
    assert not told(again(site, "c", order(), transforms=[noisy()]))
    (line,) = entries(tmp_path)
    assert (line["protects"], line["release"]["protects"], line["release"]["count"]) == ("site", "clients", 1)


def test_persons_and_rows_are_never_added(site, tmp_path):  # noqa: F811
    train(budgeted(tmp_path, max_epsilon=100.0), "a")
    path = tmp_path / "north" / "own.csv"
    frame = pd.read_csv(path)
    frame["patient"] = [k // 2 for k in range(len(frame))]
    frame.to_csv(path, index=False)
    data = yaml.safe_load((tmp_path / "north" / "data.yaml").read_text())
    data["datamodule"]["init_args"]["person_column"] = "patient"
    for protects, said in (("rows", "protects persons of these data"), ("persons", "counts the rows of 'cardiology'")):
        data["policy"]["budget"]["protects"] = protects
        (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump(data))
        with pytest.raises(ConfigurationError, match=said):
            start_site(tmp_path, "north")


def test_federations_at_the_same_time_do_not_overspend(tmp_path):
    """Eight threads with accounts of their own on one file, whose budget is for five releases."""
    ledger = tmp_path / "ledger.jsonl"
    ledger.touch()
    one = Release("clients", 10.0)
    limit = epsilon_of_releases([one] * 5, DELTA)
    budget = Budget("x", str(ledger), limit, DELTA, "site")

    class Settings:
        faults = type("Faults", (), {"retries": 0})
        local = None
        options = (type("Option", (), {"released": staticmethod(lambda *_: one)}),)

    def pay(number: int) -> bool:
        try:
            SiteBudget(budget, False).charge(str(number), order(), Settings, None)  # type: ignore[arg-type]
        except ConfigurationError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        paid = list(pool.map(pay, range(8)))
    assert sum(paid) == 5
    assert len(ledger.read_text().splitlines()) == 5


# ---------------------------------------------------------------- settings and commands


def test_a_budget_needs_its_noise_and_its_ledger(site, tmp_path):  # noqa: F811
    budget = Budget("x", str(tmp_path / "none"), 1.0)
    with pytest.raises(ConfigurationError, match=r"'policy.min_noise' must be above 0 with 'policy.budget', because figures"):
        Policy(budget=budget)
    with pytest.raises(ConfigurationError, match=r"'policy.budget.account' is '.*none', which does not exist"):
        SiteBudget(budget, True)
    for name, value in (("data", " "), ("max_epsilon", 0.0), ("delta", 1.0)):
        with pytest.raises(ConfigurationError, match=rf"'policy.budget.{name}' must be"):
            Budget(**{"data": "x", "account": "y", "max_epsilon": 1.0, name: value})  # type: ignore[arg-type]


def test_the_staff_read_what_is_spent(site, tmp_path, capsys):  # noqa: F811
    site = budgeted(tmp_path, max_epsilon=100.0)
    train(site, "a")
    train(site, "b")
    main(["site", "budget", "--data", str(tmp_path / "north" / "data.yaml")])
    said = capsys.readouterr().out
    assert f"{'a' * 32}" in said
    assert f"epsilon {step_epsilon(6):.3g} of 100 is spent on the rows of 'cardiology' (delta 1e-05)" in said
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump({"datamodule": table(str(tmp_path / "north" / "own.csv"))}))
    with pytest.raises(SystemExit):
        main(["site", "budget", "--data", str(tmp_path / "bare.yaml")])
    assert "has no 'policy.budget'" in capsys.readouterr().err


# ---------------------------------------------------------------- a whole federation


def test_noise_in_each_step_at_sites_costs_what_it_costs_in_the_simulation(tmp_path, monkeypatch):
    """The server knows batches and rates from the sites, and each site pays from its own account."""
    prepare(tmp_path, monkeypatch, {"min_noise": 1.0, "evaluations": []})
    for name in NAMES:
        path, account = tmp_path / name / "data.yaml", tmp_path / f"{name}.jsonl"
        account.touch()
        text = yaml.safe_load(path.read_text())
        text["policy"]["budget"] = {
            "data": name,
            "account": str(account),
            "max_epsilon": 50.0,
            "delta": DELTA,
            "protects": "rows",
        }
        path.write_text(yaml.safe_dump(text))
        start_site(tmp_path, name)
    private = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "delta": DELTA}
    config = configuration(local={"threads": 1, "privacy": private}, strategy="FedAvg")
    config["trainer"]["logger"] = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}
    federate(config)
    at_sites = pd.read_csv(next(Path("logs").rglob("metrics.csv")))["federation/epsilon_of_examples"].dropna().tolist()
    worst = max(epsilon_of_examples(2.0, 8 / rows, 3 * math.ceil(rows / 8), DELTA) for rows in (24, 36, 48))
    assert at_sites[-1] == pytest.approx(worst)
    for name, rows in zip(NAMES, (24, 36, 48), strict=True):
        paid = [json.loads(line)["release"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        assert [one["count"] for one in paid] == [math.ceil(rows / 8)] * 3
        assert {(one["noise_multiplier"], one["rate"]) for one in paid} == {(2.0, 8 / rows)}


def test_a_site_that_draws_its_own_batches_is_named(tmp_path, monkeypatch, capsys):
    prepare(tmp_path, monkeypatch, {"evaluations": []})
    data = {"class_path": "sites_over_bytes.Streaming", "init_args": {"path": str(tmp_path / "south" / "own.csv")}}
    path = tmp_path / "south" / "data.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "datamodule": data}))
    start_site(tmp_path, "south")
    with pytest.raises(SystemExit):
        federate(configuration(local={"threads": 1, "privacy": {"noise_multiplier": 2.0, "max_grad_norm": 1.0}}))
    assert "but site south trains on a stream" in " ".join(capsys.readouterr().err.split())


def test_a_last_line_without_its_end_counts(site, tmp_path):  # noqa: F811
    """As an editor leaves it."""
    site = budgeted(tmp_path, max_epsilon=100.0)
    train(site, "a")
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    train(site, "b")
    assert len(entries(tmp_path)) == 2
