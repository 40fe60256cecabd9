"""Which figures leave a site, how many rows are behind them, and what a server reaches with allowed classes."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites_over_bytes import configuration, federate, prepare, start_site, table
from test_site_policy import told
from test_site_security import (
    FEDERATION,
    MODEL,
    again,
    ask,
    contract,
    noisy,
    order,
    server_model,
    site,  # noqa: F401 (a fixture)
    with_policy,
)

from fl_lightning.clients.site import Site
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower import envelope
from fl_lightning.flower.policy import PRESETS, Policy
from fl_lightning.flower.site_figures import counted, rounded
from fl_lightning.flower.site_record import approve
from fl_lightning.messages import ClientTask, EvalOrder, Progress, ServerModel
from fl_lightning.types import ClientUpdate
from fl_lightning.wire import to_bytes

LOGGED = {"train_loss", "train_accuracy"}
"""What the module logs in training."""


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "north" / "state" / "audit.jsonl").read_text().splitlines()]


def model_with(**changes: Any) -> dict[str, Any]:
    return {**MODEL, "init_args": {**MODEL["init_args"], **changes}}


# ---------------------------------------------------------------- figures of an update


def test_only_the_loss_leaves_by_default_and_the_rest_is_counted(site, tmp_path):  # noqa: F811
    said: list[str] = []
    site = with_policy(tmp_path)
    site._print = said.append
    for round_idx in (0, 1):
        (update,) = again(site, "s", order(round_idx=round_idx))["replies"]
        assert update.train_loss > 0
        assert set(update.metrics) == {"train_loss"} & LOGGED
    assert [line for line in said if line.startswith("Not sent")] == [
        "Not sent, because of this site's policy: train_accuracy."
    ]
    assert [line["figures_withheld"] for line in lines(tmp_path) if "figures_withheld" in line] == [1, 1]


def test_listed_figures_leave_to_the_digits_of_the_policy(site, tmp_path):  # noqa: F811
    sent = server_model()
    (exact,) = again(with_policy(tmp_path, metrics="any"), "s", order(), sent=sent)["replies"]
    assert set(exact.metrics) == LOGGED
    (update,) = again(with_policy(tmp_path, metrics=["train_accuracy"], digits=2), "t", order(), sent=sent)["replies"]
    assert update.train_loss is None
    assert update.metrics == {"train_accuracy": float(f"{exact.metrics['train_accuracy']:.2g}")}
    assert (update.model.vector == exact.model.vector).all()


@pytest.mark.parametrize(
    ("value", "digits", "want"), [(0.0123456, 3, 0.0123), (-98765.0, 2, -99000.0), (0.0, 1, 0.0), (2.5, None, 2.5)]
)
def test_figures_are_rounded_to_significant_digits(value, digits, want):
    assert rounded(value, digits) == want
    assert math.isnan(rounded(math.nan, digits))


def test_seconds_optimizer_and_exact_sizes_stay_if_the_policy_says_so(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, seconds=False, optimizer=False, examples="rounded", label_counts=True, min_examples=5)
    info = ask(site, "describe", client=0)["info"]
    assert info.num_examples == 25
    assert all(count % 5 == 0 for count in info.label_counts or (1,))
    (update,) = again(site, "s", order())["replies"]
    assert (update.seconds, update.optimizer, update.num_examples) == (0.0, "", 25)


def test_a_federation_of_sites_that_round_their_sizes_trains(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch, {"examples": "rounded", "min_examples": 10, "evaluations": []})
    federate(configuration())
    told_of = [line["told"]["num_examples"] for line in lines(tmp_path) if "told" in line]
    assert told_of == [20]
    sent = [one["update"]["num_examples"] for line in lines(tmp_path) for one in line.get("replies", ()) if "update" in one]
    assert set(sent) == {20}


@given(number=st.integers(1, 10**6), least=st.integers(1, 100))
def test_a_rounded_number_is_a_multiple_and_near(number, least):
    policy = Policy(examples="rounded", min_examples=least)
    assert counted(number, policy) % least == 0
    assert abs(counted(number, policy) - number) <= max(least / 2, least - number)
    assert counted(0, policy) == 0
    assert counted(number, Policy(min_examples=least)) == number


# ---------------------------------------------------------------- few rows


def test_nothing_leaves_a_site_with_few_rows(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, min_examples=25)
    assert "training part has fewer than 25 examples or persons ('policy.min_examples')" in told(
        ask(site, "describe", client=0)
    )
    assert "info" not in ask(site, "describe", client=0)
    reply = again(with_policy(tmp_path, min_examples=25), "s", order())
    assert "fewer than 25" in told(reply)
    assert "replies" not in reply


def test_persons_count_not_their_rows(site, tmp_path):  # noqa: F811
    """24 rows of 8 persons."""
    path = tmp_path / "north" / "own.csv"
    frame = pd.read_csv(path)
    frame["patient"] = [k // 3 for k in range(len(frame))]
    frame.to_csv(path, index=False)
    own = table(str(path), person_column="patient")
    for least, refused in ((8, False), (9, True)):
        text = {"datamodule": own, "device": "cpu", "policy": {"federations": "any", "min_examples": least}}
        (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump(text))
        assert bool(told(ask(start_site(tmp_path, "north"), "describe", client=0))) == refused


def test_a_small_part_is_not_told_and_not_evaluated(site, tmp_path):  # noqa: F811
    said: list[str] = []
    with_policy(tmp_path, evaluations=["test", "training"])
    path = tmp_path / "north" / "data.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "client_test": 0.25}))
    site = start_site(tmp_path, "north")
    site._print = said.append
    info = ask(site, "describe", client=0)["info"]
    assert (info.num_examples, info.num_test, info.evaluations) == (18, 0, ("training",))
    assert "Not sent, because of this site's policy: the test part, with fewer than 10 examples." in said
    asked = again(site, "s", EvalOrder(1, 0, "test", "evaluation"))
    assert "test part has fewer than 10 examples or persons" in told(asked)
    assert "replies" not in asked


@pytest.mark.parametrize("least", [1, 10])
def test_one_small_class_withholds_all_counts(least, site, tmp_path):  # noqa: F811
    """With the number of examples, the other counts would tell it."""
    info = ask(with_policy(tmp_path, label_counts=True, min_examples=least), "describe", client=0)["info"]
    assert (info.label_counts is None) == (least == 10)
    if info.label_counts is not None:
        assert min(info.label_counts) < 10
        assert sum(info.label_counts) == 24


@pytest.mark.parametrize(
    ("local", "task", "said"),
    [
        ({"max_steps": 1}, {}, "The turn may read fewer rows or persons than this site's 'policy.min_examples' of 10"),
        ({"limit_train_batches": 1}, {}, "The turn may read fewer rows or persons"),
        ({"limit_train_batches": 1, "max_epochs": 9}, {}, "The turn may read fewer rows or persons"),
        ({"max_steps": 1, "accumulate_grad_batches": 2}, {}, ""),
        ({}, {"slowness": 3.0}, "The turn may read fewer rows or persons"),
        ({}, {"slowness": 2.0}, "The turn may read fewer rows or persons"),
        ({"max_steps": 2}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_an_update_has_enough_rows_behind_it(local, task, said, site, tmp_path):  # noqa: F811
    """24 rows in batches of 8."""
    reply = again(with_policy(tmp_path), "s", order(**task), local={"threads": 1, **local})
    assert said in told(reply) if said else not told(reply)


# ---------------------------------------------------------------- rates


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
@pytest.mark.parametrize(("rate", "refused"), [(0.0, True), (1e-30, True), (0.1, False), (1e9, True)])
def test_a_rate_outside_the_policy_ends_the_training(rate, refused, engine, site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, min_rate=1e-6, max_rate=1.0)
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": rate}}
    local = {"threads": 1, "engine": engine}
    reply = again(site, "s", order(), model=model_with(optimizer=optimizer), local=local)
    assert (f"A learning rate is {rate:g}, but this site allows 1e-06 to 1 " in told(reply)) == refused
    assert ("replies" in reply) != refused


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize(("clip", "refused"), [(1e-30, True), (9e-6, True), (1.1e-5, False), (1.0, False)])
def test_gradients_that_are_clipped_to_nothing_end_the_training(clip, refused, algorithm, engine, site, tmp_path):  # noqa: F811
    """The rate is 0.1 and must be at least 1e-6, also times the norm or the value to which gradients are clipped."""
    site = with_policy(tmp_path, min_rate=1e-6)
    local = {"threads": 1, "engine": engine, "gradient_clip_val": clip, "gradient_clip_algorithm": algorithm}
    reply = again(site, "s", order(), local=local)
    assert (
        f"'gradient_clip_val' is {clip:g} and a learning rate is 0.1, so a clipped step has at most" in told(reply)
    ) == refused
    assert ("replies" in reply) != refused
    assert not told(again(with_policy(tmp_path), "t", order(), local=local))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Adam", {"eps": 1e9}, "'eps' of the optimizer is 1e+09, but this site allows 0 to 1"),
        ("Adam", {}, ""),
        ("ASGD", {"lambd": 1e9}, "'lambd' of the optimizer is 1e+09"),
        ("ASGD", {}, ""),
        ("Adagrad", {"initial_accumulator_value": 1e9}, "'initial_accumulator_value' of the optimizer is 1e+09"),
        ("Adagrad", {"lr_decay": 1e9}, "'lr_decay' of the optimizer is 1e+09"),
        ("Adagrad", {}, ""),
    ],
)
def test_settings_of_optimizers_that_make_a_rate_small_end_the_training(name, settings, said, site, tmp_path):  # noqa: F811
    optimizer = {"class_path": f"torch.optim.{name}", "init_args": {"lr": 0.1, **settings}}
    reply = again(with_policy(tmp_path, min_rate=1e-6), "s", order(), model=model_with(optimizer=optimizer))
    assert said in told(reply) if said else not told(reply)


def test_a_rate_that_decays_below_the_policy_ends_the_training(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, min_rate=1e-6)
    local = {"threads": 1, "lr_decay": 1e-4}
    assert not told(again(site, "s", order(), local=local))
    assert "A learning rate is 1e-09, but" in told(again(site, "s", order(round_idx=2), local=local))


# ---------------------------------------------------------------- presets


@pytest.mark.parametrize("given", ["strict", {"preset": "strict", "max_rounds": 7}, "open", {"preset": "open"}])
def test_a_preset_stands_for_its_limits_and_limits_by_name_win(given, site, tmp_path):  # noqa: F811
    name = given if isinstance(given, str) else given["preset"]
    text = {"datamodule": table(str(tmp_path / "north" / "own.csv")), "device": "cpu", "policy": given}
    (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump(text))
    policy = start_site(tmp_path, "north")._policy
    changed = {} if isinstance(given, str) else {limit: value for limit, value in given.items() if limit != "preset"}
    assert policy == Policy(**PRESETS[name] | changed)


def test_a_preset_that_does_not_exist_is_refused(site, tmp_path):  # noqa: F811
    text = {"datamodule": table(str(tmp_path / "north" / "own.csv")), "policy": "strikt"}
    (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump(text))
    with pytest.raises(ConfigurationError, match=r"preset 'strikt', but must be strict or open, .* Did you mean strict\?"):
        start_site(tmp_path, "north")


def test_a_strict_site_trains_and_tells_little(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    for name in ("north", "south", "west"):
        path = tmp_path / name / "data.yaml"
        strict = {"preset": "strict", "federations": "any", "min_steps": 3, "min_batch": 4}
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "policy": strict}))
        start_site(tmp_path, name)
    federate(configuration())
    updates = [one["update"] for line in lines(tmp_path) for one in line.get("replies", ()) if "update" in one]
    assert len(updates) == 3
    for update in updates:
        assert update["metrics"].keys() <= {"train_loss"}
        assert (update["seconds"], update["optimizer"], update["num_examples"]) == (0.0, "", 22)
        assert update["train_loss"] == float(f"{update['train_loss']:.3g}")


# ---------------------------------------------------------------- a hostile server

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**9), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)
TASKS = st.fixed_dictionaries(
    {},
    optional={
        "round_idx": st.integers(-1, 1200),
        "period": st.integers(-1, 3),
        "epochs": st.none() | st.integers(-1, 3),
        "slowness": st.floats(0, 10),
        "own_model": st.booleans(),
        "delivers": st.booleans(),
        "version": JUNK,
    },
)
LOCALS = st.fixed_dictionaries(
    {},
    optional={
        "max_epochs": st.integers(-1, 2),
        "max_steps": st.integers(-1, 3),
        "full_batch": st.booleans(),
        "limit_train_batches": st.integers(0, 3) | st.floats(0, 1),
        "lr_decay": st.floats(0, 2),
        "engine": st.sampled_from(["auto", "trainer", "fabric", "stacked"]),
        "max_nothing": JUNK,
    },
)


TOP = st.dictionaries(st.sampled_from(["rounds", "seed", "precision", "threads", "other"]), JUNK, max_size=1)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    task=TASKS,
    local=LOCALS,
    rate=st.sampled_from([0.0, 1e-9, 0.1, 3.0, 1e9]),
    top=st.dictionaries(st.sampled_from(["rounds", "seed", "precision", "threads", "other"]), JUNK, max_size=1),
)
def test_a_hostile_server_gets_no_number_outside_the_policy(task, local, rate, top, site, tmp_path):  # noqa: F811
    """Whatever it orders, of valid and invalid settings: an error, or an update with what the policy names; and every byte is
    in the log."""
    site = with_policy(tmp_path, metrics=[], digits=2, seconds=False, optimizer=False, min_rate=1e-6, max_rate=1.0, min_batch=8)
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": rate}}
    wrong = copy.deepcopy(contract(model=model_with(optimizer=optimizer), local={"threads": 1, **local})) | top
    from test_site_security import server_model

    asked = envelope.request(
        "work",
        federation=FEDERATION,
        client=0,
        contract=wrong,
        session="s",
        model_version=1,
        orders=[order(**task)],
        settlements=[],
        notes=[],
    )
    content = site.answer({"order": asked, "model": to_bytes(server_model())})
    reply = dict(envelope.opened(content, ("reply",)))
    for update in reply.get("replies", ()):
        if not isinstance(update, ClientUpdate):
            continue
        assert 1e-6 <= rate <= 1.0
        assert (update.train_loss, update.metrics, update.seconds, update.optimizer) == (None, {}, 0.0, "")
        assert (update.local_score, update.global_score, update.epsilon, update.score) == (None,) * 4
        assert update.num_steps * (24 if local.get("full_batch") else 8) >= 10
    last = lines(tmp_path)[-1]
    assert (last["direction"], last["sha256"], last["bytes"]) == ("out", hashlib.sha256(content).hexdigest(), len(content))


# ---------------------------------------------------------------- what a reviewer found


@pytest.mark.parametrize("noise", [1e-9, 0.4])
def test_a_noise_that_nobody_asked_for_lifts_no_limit(noise, site, tmp_path):  # noqa: F811
    private = {"noise_multiplier": noise, "max_grad_norm": 1e6, "delta": 1e-5}
    local = {"threads": 1, "max_steps": 1, "privacy": private}
    for policy in ({}, {"min_batch": 9, "min_examples": 1}):
        assert "fewer rows or persons than" in told(again(with_policy(tmp_path, **policy), "s", order(), local=local))


def test_a_server_that_does_not_ask_for_a_description_trains_no_few_persons(site, tmp_path):  # noqa: F811
    path = tmp_path / "north" / "own.csv"
    frame = pd.read_csv(path)
    frame["patient"] = [k // 8 for k in range(len(frame))]
    frame.to_csv(path, index=False)
    text = {"datamodule": table(str(path), person_column="patient"), "device": "cpu", "policy": {"federations": "any"}}
    (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump(text))
    reply = again(start_site(tmp_path, "north"), "s", order())
    assert "training part has fewer than 10 examples or persons" in told(reply)
    assert "replies" not in reply


def test_counts_of_classes_are_withheld_by_persons(site, tmp_path):  # noqa: F811
    """Rows of a class may all be those of one person."""
    path = tmp_path / "north" / "own.csv"
    frame = pd.DataFrame([[*range(6), k % 2] for k in range(48)], columns=pd.read_csv(path).columns)
    frame["patient"] = [0 if k % 2 else k + 1 for k in range(48)]
    frame.to_csv(path, index=False)
    text = {"datamodule": table(str(path), person_column="patient"), "device": "cpu"}
    for least, withheld in ((10, True), (1, False)):
        policy = {"federations": "any", "label_counts": True, "min_examples": least}
        (tmp_path / "north" / "data.yaml").write_text(yaml.safe_dump({**text, "policy": policy}))
        info = ask(start_site(tmp_path, "north"), "describe", client=0)["info"]
        assert (info.label_counts is None) == withheld


@pytest.mark.parametrize(
    "more",
    [{"momentum": 1e9}, {"momentum": 0.9, "dampening": -1e12}, {"weight_decay": 1e9}, {"momentum": math.nan}],
)
def test_an_optimizer_cannot_write_a_gradient_over_the_weights_by_other_means(more, site, tmp_path):  # noqa: F811
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, **more}}
    site = with_policy(tmp_path, min_rate=1e-6, max_rate=1.0)
    assert "of the optimizer is " in told(again(site, "s", order(), model=model_with(optimizer=optimizer)))
    usual = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}}
    site = with_policy(tmp_path, min_rate=1e-6, max_rate=1.0)
    assert not told(again(site, "t", order(), model=model_with(optimizer=usual)))


@pytest.mark.parametrize("place", [Progress(2, 0), Progress(-1, 10)])
def test_a_place_in_the_training_cannot_shorten_a_turn(place, site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, min_steps=3)
    reply = again(site, "s", order(progress=place), local={"threads": 1, "engine": "trainer"})
    assert "RefusedError" in told(reply) or "WireError" in told(reply)
    assert "replies" not in reply


def test_trainings_inside_evaluations_count(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, evaluations=["training"], max_rounds=4)
    asked = EvalOrder(1, 0, "training", "evaluation", tasks=(ClientTask(0, 0), ClientTask(0, 1), ClientTask(0, 2)))
    assert "max_rounds" not in told(again(site, "s", asked))
    assert "'policy.max_rounds' is 4" in told(again(site, "t", asked))


# ---------------------------------------------------------------- what noise must cover


def strange_model(threshold: float) -> ServerModel:
    """Weights with which the loss is not finite exactly if the first feature of some row is above the threshold."""
    sent = server_model()
    tensors = {name: tensor.clone() * 0 for name, tensor in sent.tensors.items()}
    first, last = (name for name in tensors if name.endswith("weight"))
    tensors[first][0, 0] = 1e19
    tensors[first.replace("weight", "bias")][0] = -threshold * 1e19
    tensors[last][0, 0], tensors[last][1, 0] = 1e25, -1e25
    return replace(sent, tensors=tensors)


@pytest.mark.parametrize("how", ["steps", "messages"])
def test_whether_a_row_breaks_the_training_does_not_show(how, site, tmp_path):  # noqa: F811
    """25 orders had told the largest value of a column to six digits, and the account had counted an epsilon of 0."""
    own = pd.read_csv(tmp_path / "north" / "own.csv").iloc[:, 0].max()
    huge = {"noise_multiplier": 1e9, "max_grad_norm": 1e-6, "delta": 1e-5}
    private: dict[str, Any] = {"local": {"threads": 1, "full_batch": True, "privacy": huge}}
    if how == "messages":
        hides = {"max_norm": 1e-12, "noise_multiplier": 1e6, "noise": "local"}
        private = {"transforms": [{"class_path": "fl_lightning.ClientPrivacy", "init_args": hides}]}
    for session, threshold in (("a", own - 1e-3), ("b", own + 1e-3)):
        site = with_policy(tmp_path, min_noise=1.0)
        reply = again(site, session, order(), sent=strange_model(threshold), **private)
        assert not told(reply)
        (update,) = reply["replies"]
        assert update.model.vector.isfinite().all()


def test_the_largest_weight_before_the_noise_does_not_show(site, tmp_path):  # noqa: F811
    hides = {"max_norm": 1e-12, "noise_multiplier": 1e6, "noise": "local"}
    transforms = [{"class_path": "fl_lightning.ClientPrivacy", "init_args": hides}]
    for session, most in (("a", 1e-9), ("b", 1e9)):
        site = with_policy(tmp_path, min_noise=1.0)
        reply = again(site, session, order(), sent=replace(server_model(), max_abs_weight=most), transforms=transforms)
        assert isinstance(reply["replies"][0], ClientUpdate)


def test_a_failure_beside_noise_ends_the_federation_until_the_staff_agrees(site, tmp_path, monkeypatch):  # noqa: F811
    site = with_policy(tmp_path, min_noise=1.0)
    handle = Site.handle

    def broken(self: Site, message: Any) -> Any:
        if isinstance(message, ClientTask):
            raise IndexError("a label of 7")
        return handle(self, message)

    monkeypatch.setattr(Site, "handle", broken)
    first = told(again(site, "a", order(), transforms=[noisy()]))
    assert "IndexError" not in first
    monkeypatch.setattr(Site, "handle", handle)
    said = told(again(site, "b", order(), transforms=[noisy()]))
    assert "A training of this federation has failed here" in said
    approve(tmp_path / "north" / "state", said.split("approve --name north ")[1].strip())
    assert not told(again(site, "c", order(), transforms=[noisy()]))
