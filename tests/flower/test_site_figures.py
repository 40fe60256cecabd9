"""Which figures leave a site, how many rows are behind them, and what a server reaches with allowed classes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from asked_site import (
    FEDERATION,
    NOISY,
    NOISY_STEPS,
    ask,
    contract,
    model,
    noisy,
    north,
    opened,
    order,
    server_model,
    sgd,
    told,
    work,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites_over_bytes import audit, configuration, federate, prepare, restart, table

from fl_lightning.clients.site import Site
from fl_lightning.flower import envelope
from fl_lightning.flower.site.figures import counted, rounded
from fl_lightning.flower.site.policy import PRESETS, Policy
from fl_lightning.flower.site.store import approve, settings_of
from fl_lightning.messages import ClientTask, EvalOrder, ServerModel
from fl_lightning.types import ClientUpdate
from fl_lightning.wire import to_bytes

LOGGED = {"train_loss", "train_accuracy"}
"""What the module logs in training."""


def updates() -> list[dict[str, Any]]:
    """Return the updates in the log of a site."""
    return [one["update"] for line in audit() for one in line.get("replies", ()) if "update" in one]


def with_persons(*persons: Any, **more: Any) -> dict[str, Any]:
    """Name the person of each row of a site, and return its datamodule."""
    frame = pd.read_csv("north/own.csv")
    frame.assign(patient=persons).to_csv("north/own.csv", index=False)
    return table("north/own.csv", person_column="patient", **more)


# ---------------------------------------------------------------- figures of an update


def test_only_the_loss_leaves_by_default_and_the_rest_is_counted(monkeypatch):
    said: list[str] = []
    site = north()
    monkeypatch.setattr(site, "_print", said.append)
    for round_idx in (0, 1):
        (update,) = work(site, order(round_idx=round_idx))["replies"]
        assert update.train_loss > 0
        assert set(update.metrics) == {"train_loss"}
    withheld = "Not sent, because of this site's policy: train_accuracy."
    assert [line for line in said if line.startswith("Not sent")] == [withheld]
    assert [line["figures_withheld"] for line in audit() if "figures_withheld" in line] == [1, 1]


def test_listed_figures_leave_to_the_digits_of_the_policy():
    sent = server_model()
    (exact,) = work(north(metrics="any"), sent=sent)["replies"]
    assert set(exact.metrics) == LOGGED
    (update,) = work(north(metrics=["train_accuracy"], digits=2), session="t", sent=sent)["replies"]
    assert update.train_loss is None
    assert update.metrics == {"train_accuracy": float(f"{exact.metrics['train_accuracy']:.2g}")}
    assert (update.model.vector == exact.model.vector).all()


@pytest.mark.parametrize(
    ("value", "digits", "want"), [(0.0123456, 3, 0.0123), (-98765.0, 2, -99000.0), (0.0, 1, 0.0), (2.5, None, 2.5)]
)
def test_figures_are_rounded_to_significant_digits(value, digits, want):
    assert rounded(value, digits) == want
    assert math.isnan(rounded(math.nan, digits))


def test_seconds_optimizer_and_exact_sizes_stay_if_the_policy_says_so():
    site = north(seconds=False, optimizer=False, examples="rounded", label_counts=True, min_examples=5)
    info = ask(site, "describe", client=0)["info"]
    assert info.num_examples == 25
    assert all(count % 5 == 0 for count in info.label_counts or (1,))
    (update,) = work(site)["replies"]
    assert (update.seconds, update.optimizer, update.num_examples) == (0.0, "", 25)


@given(number=st.integers(1, 10**6), least=st.integers(1, 100))
def test_a_rounded_number_is_a_multiple_and_near(number, least):
    policy = Policy(examples="rounded", min_examples=least)
    assert counted(number, policy) % least == 0
    assert abs(counted(number, policy) - number) <= max(least / 2, least - number)
    assert counted(0, policy) == 0
    assert counted(number, Policy(min_examples=least)) == number


# ---------------------------------------------------------------- few rows


def test_nothing_leaves_a_site_with_few_rows():
    """Also if the server does not ask for a description, but orders a training at once: see the turns of the policy."""
    reply = ask(north(min_examples=25), "describe", client=0)
    assert "training part has fewer than 25 examples or persons ('policy.min_examples')" in told(reply)
    assert "info" not in reply


def test_persons_count_not_their_rows():
    """24 rows of 8 persons."""
    north()
    own = with_persons(*(k // 3 for k in range(24)))
    for least in (8, 9):
        site = restart("north", datamodule=own, limits={"min_examples": least})
        for reply in (ask(site, "describe", client=0), work(site)):
            assert ("training part has fewer than 9 examples or persons" in told(reply)) == (least == 9)


def test_a_small_part_is_not_told_and_not_evaluated(monkeypatch):
    said: list[str] = []
    north(evaluations=["test", "training"])
    site = restart("north", client_test=0.25)
    monkeypatch.setattr(site, "_print", said.append)
    info = ask(site, "describe", client=0)["info"]
    assert (info.num_examples, info.num_test, info.evaluations) == (18, 0, ("training",))
    assert "Not sent, because of this site's policy: the test part, with fewer than 10 examples." in said
    asked = work(site, EvalOrder(1, 0, "test", "evaluation"))
    assert "test part has fewer than 10 examples or persons" in told(asked)
    assert "replies" not in asked


@pytest.mark.parametrize("least", [1, 10])
def test_one_small_class_withholds_all_counts(least):
    """With the number of examples, the other counts would tell it."""
    info = ask(north(label_counts=True, min_examples=least), "describe", client=0)["info"]
    assert (info.label_counts is None) == (least == 10)
    assert info.label_counts is None or (min(info.label_counts) < 10 and sum(info.label_counts) == 24)


@pytest.mark.parametrize("least", [1, 10])
def test_counts_of_classes_are_withheld_by_persons(least):
    """Rows of a class may all be those of one person."""
    north()
    columns = pd.read_csv("north/own.csv").columns
    pd.DataFrame([[*range(6), k % 2] for k in range(48)], columns=columns).to_csv("north/own.csv", index=False)
    own = with_persons(*(0 if k % 2 else k + 1 for k in range(48)))
    site = restart("north", datamodule=own, limits={"label_counts": True, "min_examples": least})
    assert (ask(site, "describe", client=0)["info"].label_counts is None) == (least == 10)


# ---------------------------------------------------------------- presets


@pytest.mark.parametrize("given", ["strict", {"preset": "strict", "max_rounds": 7}, "open", {"preset": "open"}])
def test_a_preset_stands_for_its_limits_and_limits_by_name_win(given):
    north()
    name, more = (given, {}) if isinstance(given, str) else (given["preset"], {k: v for k, v in given.items() if k != "preset"})
    assert restart("north", policy=given)._policy == Policy(**PRESETS[name] | more)


def test_a_strict_site_trains_and_tells_little():
    prepare()
    restart(policy={"preset": "strict", "federations": "any", "min_steps": 3, "min_batch": 4})
    federate(configuration())
    assert [line["told"]["num_examples"] for line in audit() if "told" in line] == [22]
    assert len(updates()) == 3
    for update in updates():
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
ASKED = {"session": "s", "model_version": 1, "settlements": [], "notes": []}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task=TASKS, local=LOCALS, rate=st.sampled_from([0.0, 1e-9, 0.1, 3.0, 1e9]), top=TOP)
def test_a_hostile_server_gets_no_number_outside_the_policy(task, local, rate, top):
    """Whatever it orders, of valid and invalid settings: an error, or an update with what the policy names; and every byte is
    in the log."""
    site = north(metrics=[], digits=2, seconds=False, optimizer=False, min_rate=1e-6, max_rate=1.0, min_batch=8)
    wrong = contract(model=model(optimizer=sgd(lr=rate)), local={"threads": 1, **local}) | top
    asked = envelope.request("work", federation="a" * 32, client=0, contract=wrong, orders=[order(**task)], **ASKED)
    content = site.answer({"order": asked, "model": to_bytes(server_model())})
    for update in opened(content).get("replies", ()):
        if not isinstance(update, ClientUpdate):
            continue
        assert 1e-6 <= rate * local.get("lr_decay", 1.0) ** update.round_idx <= 1.0
        assert (update.train_loss, update.metrics, update.seconds, update.optimizer) == (None, {}, 0.0, "")
        assert (update.local_score, update.global_score, update.epsilon, update.score) == (None,) * 4
        assert update.num_steps * (24 if local.get("full_batch") else 8) >= 10
    last = audit()[-1]
    assert (last["direction"], last["sha256"], last["bytes"]) == ("out", hashlib.sha256(content).hexdigest(), len(content))


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


HIDING: dict[str, Any] = {"transforms": [noisy(max_norm=1e-12, noise_multiplier=1e6)]}
HUGE = {**NOISY_STEPS, "full_batch": True, "privacy": {"noise_multiplier": 1e9, "max_grad_norm": 1e-6, "delta": 1e-5}}


@pytest.mark.parametrize("private", [{"local": HUGE}, HIDING], ids=["steps", "messages"])
def test_whether_a_row_breaks_the_training_does_not_show(private):
    """25 orders had told the largest value of a column to six digits, and the account had counted an epsilon of 0."""
    site = north(min_noise=1.0)
    own = pd.read_csv("north/own.csv").iloc[:, 0].max()
    for session, threshold in (("a", own - 1e-3), ("b", own + 1e-3)):
        (update,) = work(site, session=session, sent=strange_model(threshold), **private)["replies"]
        assert update.model.vector.isfinite().all()


def test_the_largest_weight_before_the_noise_does_not_show():
    site = north(min_noise=1.0)
    for session, most in (("a", 1e-9), ("b", 1e9)):
        reply = work(site, session=session, sent=replace(server_model(), max_abs_weight=most), **HIDING)
        assert isinstance(reply["replies"][0], ClientUpdate)


@pytest.mark.parametrize(
    ("policy", "what"), [({"label_counts": True}, "counts of its classes"), ({"ranges": True}, "ranges of its")]
)
def test_numbers_about_rows_are_told_once(policy, what):
    """Told again after one patient was added, their difference was that patient."""
    policy = {**policy, "min_examples": 1, "statistics": False}
    for _ in range(2):
        assert not told(ask(north(**policy), "describe", client=0))
    path = Path("north/own.csv")
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, *rest, "9" * 3 + rest[0][rest[0].index(",") :]]) + "\n")
    assert f"The data of this site have changed since it told the {what}" in told(ask(north(**policy), "describe", client=0))


def test_a_failure_beside_noise_ends_the_federation_until_the_staff_agrees(monkeypatch):
    site, handle = north(min_noise=1.0), Site.handle

    def broken(self: Site, message: Any) -> Any:
        if isinstance(message, ClientTask):
            raise IndexError("a label of 7")
        return handle(self, message)

    monkeypatch.setattr(Site, "handle", broken)
    assert "IndexError" not in told(work(site, session="a", **NOISY))
    monkeypatch.setattr(Site, "handle", handle)
    said = told(work(site, session="b", **NOISY))
    assert "A training of this federation has failed here" in said
    approve(Path("north/state"), FEDERATION, settings_of(contract(**NOISY)))
    assert not told(work(site, session="c", **NOISY))


def test_each_field_of_an_update_has_been_decided():
    """A field that 'update_to_send' does not name leaves a site as it is, whatever the policy says."""
    filtered = "num_examples train_loss metrics seconds optimizer local_score global_score model"
    needed = "client round_idx num_steps bytes_down bytes_up normalizer extras compressed update_norm"
    of_the_server = "score weight share epsilon staleness"
    assert {one.name for one in fields(ClientUpdate)} == {*filtered.split(), *needed.split(), *of_the_server.split()}
