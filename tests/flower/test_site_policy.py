"""What a site's policy lets leave, how often and with whom, and the log of what has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from asked_site import (
    BATCH_NORM,
    NOISY,
    NOISY_STEPS,
    ask,
    contract,
    model,
    named,
    noisy,
    north,
    order,
    sgd,
    told,
    work,
)
from sites_over_bytes import restart, slow_but, table

import fl_lightning
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import default_classes
from fl_lightning.messages import ClientTask, EvalOrder, Progress

STATE = Path("north/state")
ALL = ["training", "validation", "test"]
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

NEVER = "Sites do not do this for any server: "
NOISE = {"min_noise": 1.0}
COVERED = "This site's policy requires noise at the client"
ENGINES = "Sites train with the engines auto, trainer and fabric, and do not compile."
UNKNOWN = "which this site does not accept"
KMEANS = {"strategy": named("FederatedKMeans")}
TASK = "fl_lightning.ClassificationTask"
RESEEDED = {**NOISY_STEPS, "privacy": {**NOISY_STEPS["privacy"], "noise_seed": 3}}
EVALUATED = {**NOISE, "evaluations": ALL}


@pytest.mark.parametrize(
    ("policy", "asked", "said"),
    [
        # one order with 2,000 centroids had returned 60 of 60 rows; a site that lists the classes is still not asked for them
        ({}, {**KMEANS, "model": named("KMeansTask", num_clusters=2000, in_features=6)}, f"KMeansTask', {UNKNOWN}"),
        ({"classes": ["fl_lightning.KMeansTask", "fl_lightning.FederatedKMeans"]}, KMEANS, f"{NEVER}federation.strategy: F"),
        ({"classes": ["fl_lightning.Focus"]}, {"strategy": named("Focus")}, f"{NEVER}...Focus"),
        ({"classes": ["fl_lightning.Mocha"]}, {"route": named("Mocha")}, f"{NEVER}...Mocha"),
        ({}, {"transforms": [noisy(noise_seed=3)]}, f"{NEVER}...noise_seed"),
        ({}, {"local": RESEEDED}, f"{NEVER}...noise_seed"),
        ({"default_classes": False, "classes": ["fl_lightning.MLP"]}, {}, f"'{TASK}', {UNKNOWN}"),
        ({"models": [TASK, "fl_lightning.LeNet"]}, {}, f"'fl_lightning.MLP', {UNKNOWN}"),
        ({"models": [TASK, "fl_lightning.MLP"]}, {}, ""),
        ({}, {"local": {"threads": 1, "engine": "stacked"}}, ENGINES),
        ({}, {"local": {"threads": 1, "compile": True}}, ENGINES),
        ({"max_threads": 2}, {"threads": 1024}, "'threads' is 1024, but this site allows 1 to 2"),
        ({"max_rounds": 3}, {"rounds": 4}, "allows 3"),
        (
            {"max_rounds": 3},
            {"rounds": 2, "route": named("RingFed", periods=2)},
            "plans 2 rounds of 2 periods, but this site allows 3",
        ),
        (NOISE, {}, "policy requires 1.0"),
        (NOISE, {"transforms": [noisy(noise_multiplier=0.5)]}, "policy requires 1.0"),
        (NOISE, {"transforms": [noisy(noise_multiplier=1.5)]}, ""),
        (NOISE, {"transforms": [noisy(noise="central", noise_multiplier=9.0)]}, "policy requires 1.0"),
        (
            NOISE,
            {**NOISY, "strategy": named("Scaffold")},
            f"{COVERED}...Scaffold's clients send control variates with their models",
        ),
        (
            NOISE,
            {**NOISY, "strategy": named("FedLoss")},
            f"{COVERED}...FedLoss reads metrics that clients compute on their own data",
        ),
        (NOISE, {"transforms": [noisy(), noisy()]}, f"{COVERED}...contains ClientPrivacy more than once"),
        (
            NOISE,
            {**NOISY, "local": {"threads": 1, "precision": "bf16-true"}},
            f"{COVERED}...at least 32 bits with ClientPrivacy",
        ),
        (NOISE, {"local": {**NOISY_STEPS, "accumulate_grad_batches": 4}}, f"{COVERED}...accumulate_grad_batches' must be 1"),
        (
            NOISE,
            {"local": NOISY_STEPS, "model": model(network=BATCH_NORM)},
            f"{COVERED}...cannot separate an example's gradient",
        ),
    ],
)
def test_refusals_that_protect_a_site_run_at_the_site(policy, asked, said):
    found = told(ask(north(**policy), "prepare", contract=contract(**asked)))
    assert all(part in found for part in said.split("...")) if said else not found


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"client_evaluation": {"every_n_rounds": 1}}, "'federation.client_evaluation' evaluates"),
        ({"route": named("FedStar")}, "'federation.route' is FedStar"),
        ({"strategy": named("QFedAvg")}, "QFedAvg reads metrics"),
    ],
)
def test_with_a_required_noise_nothing_is_evaluated(settings, named):
    assert named in told(ask(north(**EVALUATED), "prepare", contract=contract(**NOISY, **settings)))


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_with_a_required_noise_no_figure_leaves(noise):
    """With a rate of 1e-30, the exact loss was a counting query per round."""
    site = north(min_noise=noise, evaluations=ALL)
    (update,) = work(site, **NOISY)["replies"]
    assert (update.train_loss is None) == (not update.metrics) == (update.seconds == 0) == (noise > 0)
    asked = work(site, EvalOrder(1, 0, "training", "evaluation"), **NOISY)
    assert ("does not allow evaluation" in told(asked)) == (noise > 0)


# ---------------------------------------------------------------- limits of work


def local(**settings: Any) -> dict[str, Any]:
    return {"local": {"threads": 1, **settings}}


def rate(lr: float, engine: str = "auto", **settings: Any) -> dict[str, Any]:
    return {"model": model(optimizer=sgd(lr=lr, **settings)), **local(engine=engine)}


def optimizer(name: str, **settings: Any) -> dict[str, Any]:
    return {"model": model(optimizer={"class_path": f"torch.optim.{name}", "init_args": {"lr": 0.1, **settings}})}


def clipped(to: float, algorithm: str, engine: str) -> dict[str, Any]:
    return local(engine=engine, gradient_clip_val=to, gradient_clip_algorithm=algorithm)


FEW = "The turn may read fewer rows or persons than this site's 'policy.min_examples' of 10"
RATES = {"min_rate": 1e-6, "max_rate": 1.0}
SLOW = {"min_rate": 1e-6}
ONE_STEP: dict[str, Any] = {"threads": 1, "max_steps": 1}
NOBODY_ASKED = {"local": {**ONE_STEP, "privacy": {"noise_multiplier": 1e-9, "max_grad_norm": 1e6, "delta": 1e-5}}}
EVALUATION = EvalOrder(1, 0, "test", "evaluation", tasks=(ClientTask(0, 0),), epochs=10**6)
TURNS: list[tuple[dict[str, Any], dict[str, Any], Any, str]] = [
    ({}, local(max_epochs=10**9), {}, "has 1e+09 epochs, but this site's 'policy.max_epochs' is 100"),
    ({"max_epochs": 3}, local(max_epochs=4), {}, "has 4 epochs"),
    ({"max_epochs": 3}, local(max_epochs=-1, max_steps=10), {}, "has 3.33333 epochs"),
    ({"max_epochs": 4}, local(max_epochs=-1, max_steps=10), {}, ""),
    ({"min_steps": 4}, {}, {}, "has 3 steps, but this site's 'policy.min_steps' is 4"),
    ({"min_steps": 2}, local(full_batch=True), {}, "has 1 steps"),
    ({"min_steps": 3}, local(limit_train_batches=2), {}, "has 2 steps"),
    ({}, {}, {"epochs": 0}, "has 0 steps"),
    ({"min_steps": 3}, {}, {"slowness": 2.0}, "has 1.5 steps"),
    ({"min_steps": 3}, local(engine="trainer"), {"progress": Progress(2, 0)}, "Error"),  # no place may shorten a turn
    ({"min_steps": 3}, local(engine="trainer"), {"progress": Progress(-1, 10)}, "Error"),
    ({"min_batch": 9}, {}, {}, "A batch may have fewer rows or persons than this site's 'policy.min_batch' of 9"),
    ({"min_batch": 24}, local(full_batch=True), {}, ""),
    ({"min_batch": 8, "min_steps": 3, "max_epochs": 1}, {}, {}, ""),
    ({"max_rounds": 3}, {}, {"round_idx": 3}, "beyond this site's limit"),
    ({"evaluations": ["test"]}, {}, EvalOrder(1, 0, "training", "evaluation"), "does not allow evaluation on its training"),
    ({"evaluations": ["test"], "max_epochs": 5}, {}, EVALUATION, "has 1e+06 epochs"),
    # an update has enough rows behind it
    ({}, local(max_steps=1), {}, FEW),
    ({}, local(limit_train_batches=1), {}, FEW),
    ({}, local(limit_train_batches=1, max_epochs=9), {}, FEW),
    ({}, local(max_steps=1, accumulate_grad_batches=2), {}, ""),
    ({}, {}, {"slowness": 3.0}, FEW),
    ({}, {}, {"slowness": 2.0}, FEW),
    ({}, local(max_steps=2), {}, ""),
    ({}, NOBODY_ASKED, {}, FEW),  # a noise that the policy does not require lifts no limit
    ({"min_batch": 9, "min_examples": 1}, NOBODY_ASKED, {}, "fewer rows or persons than"),
    ({"min_examples": 25}, {}, {}, "training part has fewer than 25 examples or persons ('policy.min_examples')"),
    (RATES, rate(1e-30), {}, "A learning rate is 1e-30, but this site"),
    (SLOW, clipped(9e-6, "value", "fabric"), {}, "'gradient_clip_val' is 9e-06"),
    (RATES, rate(0.1, momentum=1e9), {}, "of the optimizer is "),
    (RATES, rate(0.1, momentum=0.9, weight_decay=1e-3), {}, ""),
]
MORE_RATES: list[tuple[dict[str, Any], dict[str, Any], Any, str]] = [  # what makes a rate small or a gradient large
    *(
        (RATES, rate(0.0, engine), {}, "A learning rate is 0, but this site allows 1e-06 to 1 ")
        for engine in ("trainer", "fabric")
    ),
    *((RATES, rate(1e9, engine), {}, "A learning rate is 1e+09, but this site") for engine in ("trainer", "fabric")),
    (RATES, rate(0.1), {}, ""),
    (SLOW, local(lr_decay=1e-4), {}, ""),
    (SLOW, local(lr_decay=1e-4), {"round_idx": 2}, "A learning rate is 1e-09, but"),
    *(
        (
            SLOW,
            clipped(9e-6, "norm", engine),
            {},
            "'gradient_clip_val' is 9e-06 and a learning rate is 0.1, so a clipped step has at most",
        )
        for engine in ("trainer", "fabric")
    ),
    *((SLOW, clipped(1.1e-5, algorithm, "fabric"), {}, "") for algorithm in ("norm", "value")),
    ({}, clipped(1e-30, "norm", "fabric"), {}, ""),
    (SLOW, optimizer("Adam", eps=1e9), {}, "'eps' of the optimizer is 1e+09, but this site allows 0 to 1"),
    (SLOW, optimizer("ASGD", lambd=1e9), {}, "'lambd' of the optimizer is 1e+09"),
    (SLOW, optimizer("Adagrad", initial_accumulator_value=1e9), {}, "'initial_accumulator_value' of the optimizer is 1e+09"),
    (SLOW, optimizer("Adagrad", lr_decay=1e9), {}, "'lr_decay' of the optimizer is 1e+09"),
    *((SLOW, optimizer(name), {}, "") for name in ("Adam", "ASGD", "Adagrad")),
    (RATES, rate(0.1, momentum=0.9, dampening=-1e12), {}, "of the optimizer is "),
    (RATES, rate(0.1, weight_decay=1e9), {}, "of the optimizer is "),
    (RATES, rate(0.1, momentum=float("nan")), {}, "of the optimizer is "),
]


@pytest.mark.parametrize(("policy", "settings", "job", "said"), slow_but([*TURNS, *MORE_RATES], *TURNS))
def test_turns_are_within_the_policy(policy, settings, job, said):
    """The site has 24 rows and batches of 8, and its rate is 0.1."""
    reply = work(north(**policy), order(**job) if isinstance(job, dict) else job, **settings)
    assert said in told(reply)
    assert bool(told(reply)) == bool(said) == ("replies" not in reply)


def test_the_smallest_batch_counts():
    """A last batch of 4 rows, and persons with several rows."""
    said = "A batch may have fewer rows or persons"
    north(min_batch=5)
    own = table("north/own.csv", batch_size=10)
    assert said in told(work(restart("north", datamodule=own)))
    rows = pd.read_csv("north/own.csv")
    rows.assign(patient=[f"p{k // 3}" for k in range(len(rows))]).to_csv("north/own.csv", index=False)
    own["init_args"] |= {"batch_size": 12, "person_column": "patient"}
    assert said in told(work(restart("north", datamodule=own)))


def test_threads_and_models_are_within_the_policy(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert Policy().most_threads == 3
    allocated: list[bool] = []
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda own: allocated.append(own.weight.device.type == "cpu"))
    large = model(network=named("MLP", in_features=6, hidden=[30_000, 30_000], num_classes=3))
    said = told(ask(north(), "prepare", contract=contract(model=large)))
    assert "The model has 3434 MiB, but this site allows 2048 MiB." in said
    assert allocated
    assert not any(allocated)


def test_a_turn_ends_at_the_sites_own_deadline():
    assert told(work(north(max_seconds=1e-9))).startswith("ClientError (code ")
    assert "policy.max_seconds" in (STATE / "errors.log").read_text()
