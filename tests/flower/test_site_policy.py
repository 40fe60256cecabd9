"""What a site's policy lets a server have it do."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from asked_site import BATCH_NORM, NOISY, NOISY_STEPS, ask, contract, model, named, noisy, north, order, told, work
from sites_over_bytes import restart, table

import fl_lightning
from fl_lightning.flower.site.policy import most_threads
from fl_lightning.flower.site.recipe import default_classes
from fl_lightning.messages import EvalOrder, Progress

STATE = Path("north/state")
PARTS = ("tasks", "models", "losses", "metrics", "optimizers", "routes", "strategies", "transforms")
NO_SETTINGS = (
    "AdaptiveLoss FilteringStrategy JointStrategy PeriodRoute Route RunningStrategy Strategy SupervisedTask Transform "
    "WeightedAverage"
)
NOT_ACCEPTED = {
    "KMeansTask": "its centroids are rows of the site, or means of a few of them",
    "FederatedKMeans": "it works on those centroids",
    "Focus": "it measures every site's model on every other site",
    "Mocha": "it keeps a model for each site at the server",
    **dict.fromkeys(NO_SETTINGS.split(), "it is a base class, or no part of a configuration"),
}
"""The public classes of these subpackages that a server may not name, with the reason."""


def test_every_public_class_was_looked_at():
    """A new one is in a table of ``recipe.py``, or not accepted for a reason."""
    public: dict[str, str] = vars(fl_lightning)["_NAMES"]
    every = {name for part in PARTS for name in public[part].split()}
    accepted = {path.rpartition(".")[2] for path in default_classes() if path.startswith("fl_lightning.")}
    names = "Asynchronous ClientEvaluation ClientPrivacy ExamplePrivacy Faults LocalTraining PartialWork SecureAggregation"
    settings = {*names.split()}
    assert accepted - settings | set(NOT_ACCEPTED) == every
    assert not accepted & set(NOT_ACCEPTED)
    assert settings <= accepted


# ---------------------------------------------------------------- settings


def also(*names: str) -> dict[str, Any]:
    """Accept further classes."""
    return {"code": ["default", *(f"fl_lightning.{name}" for name in names)]}


NEVER = "Sites do not do this for any server: "
THREE = {"machine": {"trainings": 3}}
NOISE = {"update": {"noise": {"least": 1.0}}}
COVERED = "This site's policy requires noise at the client"
UNKNOWN = "which this site does not accept. If you trust it, add this exact path to 'policy.code' of the site's data.yaml"
KMEANS = {"strategy": named("FederatedKMeans")}
CENTROIDS = {**KMEANS, "model": named("KMeansTask", num_clusters=2000, in_features=6)}
TASK = "fl_lightning.ClassificationTask"
CALLBACK = "lightning.pytorch.callbacks.Timer"
TIMER = {"local": {"callbacks": [{"class_path": CALLBACK}]}}
PERIODS = {"rounds": 2, "route": named("RingFed", periods=2)}
LOWER = {**NOISY, "local": {"threads": 1, "precision": "bf16-true"}}
NORMALIZED = {"local": NOISY_STEPS, "model": model(network=BATCH_NORM)}
RESEEDED = {**NOISY_STEPS, "privacy": {**NOISY_STEPS["privacy"], "noise_seed": 3}}


@pytest.mark.parametrize(
    ("policy", "asked", "said"),
    [
        # one order with 2,000 centroids had returned 60 of 60 rows; a site that lists the classes is still not asked for them
        ({}, CENTROIDS, f"KMeansTask', {UNKNOWN}"),
        (also("KMeansTask", "FederatedKMeans"), KMEANS, f"{NEVER}federation.strategy: F"),
        (also("Focus"), {"strategy": named("Focus")}, f"{NEVER}...Focus"),
        (also("Mocha"), {"route": named("Mocha")}, f"{NEVER}...Mocha"),
        ({}, {"transforms": [noisy(noise_seed=3)]}, f"{NEVER}...noise_seed"),
        ({}, {"local": RESEEDED}, f"{NEVER}...noise_seed"),
        ({"code": ["fl_lightning.MLP"]}, {}, f"'{TASK}', {UNKNOWN}"),
        ({}, {"local": {"threads": 1, "engine": "stacked"}}, f"{NEVER}...engine: stacked"),
        ({"code": ["default", CALLBACK]}, TIMER, f"{NEVER}...local.callbacks"),
        ({}, {"threads": 1024}, "'threads' is 1024, but this site has "),
        (THREE, {"rounds": 4}, "plans 4 rounds, but this site allows 3 ('policy.machine.trainings')"),
        (THREE, PERIODS, "plans 2 rounds of 2 periods, but this site allows 3"),
        (NOISE, {}, "policy requires 1.0"),
        (NOISE, {"transforms": [noisy(noise_multiplier=0.5)]}, "policy requires 1.0"),
        (NOISE, {"transforms": [noisy(noise_multiplier=1.5)]}, ""),
        (NOISE, {"transforms": [noisy(noise="central", noise_multiplier=9.0)]}, "policy requires 1.0"),
        (NOISE, {**NOISY, "strategy": named("Scaffold")}, f"{COVERED}...Scaffold's clients send control variates with their"),
        (NOISE, {**NOISY, "strategy": named("FedLoss")}, f"{COVERED}...FedLoss reads metrics that clients compute on their"),
        (NOISE, {"transforms": [noisy(), noisy()]}, f"{COVERED}...contains ClientPrivacy more than once"),
        (NOISE, LOWER, f"{COVERED}...at least 32 bits with ClientPrivacy"),
        (NOISE, {"local": {**NOISY_STEPS, "accumulate_grad_batches": 4}}, f"{COVERED}...accumulate_grad_batches' must be 1"),
        (NOISE, NORMALIZED, f"{COVERED}...cannot separate an example's gradient"),
    ],
)
def test_refusals_that_protect_a_site_run_at_the_site(policy, asked, said):
    found = told(ask(north(**policy), "prepare", contract=contract(**asked)))
    assert all(part in found for part in said.split("...")) if said else not found


EVALUATED = {"client_evaluation": {"every_n_rounds": 1}}
NO_LINE = "Its 'policy.update' requires noise, with which that never leaves. Remove the setting at the server."


@pytest.mark.parametrize(
    ("tells", "asked", "said"),
    [
        ([], {}, "'federation.strategy FedAvg' needs what this site does not tell: the numbers of its training"),
        (["loss"], {}, "under 'policy': tells: [loss, examples]"),
        (["examples/rounded"], {}, ""),
        ([], {"strategy": named("FedAvg", weighting="uniform")}, ""),
        ([], {"strategy": named("FedMedian")}, ""),
        (["examples"], {"strategy": named("FedNova")}, "tells: [examples, normalizer]"),
        (["examples"], {"strategy": named("FedSGD")}, "tells: [examples, steps, normalizer]"),
        (["examples"], {"strategy": named("FedLoss")}, "tells: [examples, evaluation/validation]"),
        (["examples"], {"strategy": named("QFedAvg")}, "tells: [examples, evaluation/training]"),
        (["examples"], {"route": named("FedStar")}, "'federation.route FedStar' needs"),
        (["examples"], EVALUATED, "'federation.client_evaluation' needs"),
        # with noise, no line is proposed that data.yaml would refuse; the normalizer may leave: it follows from steps and rate
        (None, EVALUATED, f"'federation.client_evaluation' needs...{NO_LINE}"),
        (None, {"route": named("FedStar")}, "requires noise at the client. ClientPrivacy covers only what clients send to"),
        (None, {"strategy": named("FedNova")}, "under 'policy': tells: [examples, steps, normalizer]"),
        (None, {"strategy": named("QFedAvg")}, "QFedAvg reads metrics"),
    ],
)
def test_what_settings_need_and_the_site_does_not_tell_is_refused_with_the_line_to_add(tells, asked, said):
    """None: at a site that requires noise."""
    policy, noise = (NOISE, NOISY) if tells is None else ({"tells": tells}, {})
    found = told(ask(north(**policy), "prepare", contract=contract(**noise, **asked)))
    assert all(part in found for part in said.split("..."))
    assert bool(found) == bool(said)


def test_with_a_required_noise_no_figure_leaves():
    """With a rate of 1e-30, the exact loss was a counting query per round."""
    site = north(**NOISE)
    (update,) = work(site, **NOISY)["replies"]
    assert update.train_loss is None
    assert "'fl-lightning evaluate' needs" in told(work(site, EvalOrder(1, 0, "training", "evaluation"), **NOISY))


# ---------------------------------------------------------------- limits of work


def local(**settings: Any) -> dict[str, Any]:
    return {"local": {"threads": 1, **settings}}


FEW = "The turn may read fewer rows or persons than this site's 'policy.min_rows' of 10"
ONE_STEP: dict[str, Any] = {"threads": 1, "max_steps": 1}
NOBODY_ASKED = {"local": {**ONE_STEP, "privacy": {"noise_multiplier": 1e-9, "max_grad_norm": 1e6, "delta": 1e-5}}}
TOLD_OF_TEST: dict[str, Any] = {"tells": ["examples", "evaluation/test"]}
TURNS: list[tuple[dict[str, Any], dict[str, Any], Any, str]] = [
    ({}, {}, {"epochs": 0}, FEW),
    ({}, local(engine="trainer"), {"progress": Progress(2, 0)}, "Error"),  # no place may shorten a turn
    ({}, local(engine="trainer"), {"progress": Progress(-1, 10)}, "Error"),
    (TOLD_OF_TEST, {}, EvalOrder(1, 0, "training", "evaluation"), "figures of models on its training"),
    # an update has enough rows behind it
    ({}, local(max_steps=1), {}, FEW),
    ({}, local(limit_train_batches=1), {}, FEW),
    ({}, local(limit_train_batches=1, max_epochs=9), {}, FEW),
    ({}, local(max_steps=1, accumulate_grad_batches=2), {}, ""),
    ({}, {}, {"slowness": 3.0}, FEW),
    ({}, {}, {"slowness": 2.0}, FEW),
    ({}, local(max_steps=2), {}, ""),
    ({}, NOBODY_ASKED, {}, FEW),  # a noise that the policy does not require lifts no limit
    ({"min_rows": 25}, {}, {}, "training part has fewer than 25 rows or persons ('policy.min_rows')"),
]


@pytest.mark.parametrize(("policy", "settings", "job", "said"), TURNS)
def test_turns_are_within_the_policy(policy, settings, job, said):
    """The site has 24 rows and batches of 8."""
    reply = work(north(**policy), order(**job) if isinstance(job, dict) else job, **settings)
    assert said in told(reply)
    assert bool(told(reply)) == bool(said) == ("replies" not in reply)


def test_a_turn_reads_enough_persons():
    """Each has three rows, so one batch of 12 may hold four of them."""
    north(min_rows=8)
    rows = pd.read_csv("north/own.csv")
    rows.assign(patient=[f"p{k // 3}" for k in range(len(rows))]).to_csv("north/own.csv", index=False)
    site = restart("north", datamodule=table("north/own.csv", batch_size=12, person_column="patient"))
    assert "'policy.min_rows' of 8" in told(work(site, **local(max_steps=1)))
    assert not told(work(site, session="t"))


def test_threads_and_models_are_within_the_policy(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 4, 5}, raising=False)
    assert most_threads() == 3
    allocated: list[bool] = []
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda own: allocated.append(own.weight.device.type == "cpu"))
    large = model(network=named("MLP", in_features=6, hidden=[30_000, 30_000], num_classes=3))
    said = told(ask(north(machine={"memory": 2}), "prepare", contract=contract(model=large)))
    assert "The model has 3.35 GiB, but this site allows 2 ('policy.machine.memory')." in said
    assert allocated
    assert not any(allocated)


def test_a_turn_ends_at_the_sites_own_deadline():
    assert told(work(north(machine={"hours": 1e-12}))).startswith("ClientError (code ")
    assert "policy.machine.hours" in (STATE / "errors.log").read_text()
