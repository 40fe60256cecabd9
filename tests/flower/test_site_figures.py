"""Which figures leave a site, how many rows are behind them, and what a server reaches with allowed classes."""

import hashlib
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from asked_site import NOISY, NOISY_STEPS, ask, contract, model, named, noisy, north, order, server_model, sgd, told, work
from command_line import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites_over_bytes import audit, restart, table

from fl_lightning.clients.site import Site
from fl_lightning.errors import WireError
from fl_lightning.flower import envelope
from fl_lightning.flower.site.policy import FACTS, Policy
from fl_lightning.flower.site.release import FIELDS, counted, numbers_of, released, rounded
from fl_lightning.flower.site.store import approve, settings_of
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot
from fl_lightning.wire import to_bytes

LOGGED = {"train_loss", "train_accuracy"}
"""What the module logs in training."""


def updates() -> list[dict[str, Any]]:
    """Return the updates in the log of a site."""
    return [one["ClientUpdate"] for line in audit() for one in line.get("replies", ()) if "ClientUpdate" in one]


def with_persons(*persons: Any) -> dict[str, Any]:
    """Name the person of each row of a site, and return its datamodule."""
    frame = pd.read_csv("north/own.csv")
    frame.assign(patient=persons).to_csv("north/own.csv", index=False)
    return table("north/own.csv", person_column="patient")


# ---------------------------------------------------------------- figures of an update


def test_sizes_and_the_loss_leave_by_default_and_nothing_else():
    (update,) = work(north())["replies"]
    assert (update.num_examples, update.num_steps, update.train_loss > 0) == (24, 3, True)
    assert (update.metrics, update.normalizer, update.seconds, update.optimizer) == ({}, None, 0.0, "")
    assert (update.update_norm, update.bytes_up, update.bytes_down) == (None, 0, 0)


def test_listed_figures_leave_to_the_digits_of_the_policy():
    sent, told = server_model(), ["examples", "metrics", "loss", "normalizer", "seconds", "optimizer"]
    (exact,) = work(north(tells=told), sent=sent)["replies"]
    assert set(exact.metrics) == LOGGED
    assert (exact.normalizer, exact.optimizer[:3]) == (pytest.approx(3.0), "SGD")
    (update,) = work(north(tells=["examples", "metric/train_accuracy", "seconds"], digits=2), session="t", sent=sent)["replies"]
    assert update.train_loss is None
    assert update.metrics == {"train_accuracy": float(f"{exact.metrics['train_accuracy']:.2g}")}
    assert update.seconds == float(f"{update.seconds:.2g}")
    assert (update.model.vector == exact.model.vector).all()


@pytest.mark.parametrize(
    ("value", "digits", "want"), [(0.01234, 3, 0.0123), (-987.0, 2, -990.0), (0.0, 1, 0.0), (2.5, None, 2.5)]
)
def test_figures_are_rounded_to_significant_digits(value, digits, want):
    policy = Policy(digits=digits)
    assert rounded(value, policy) == want
    assert rounded((value, None), policy) == (want, None)
    assert math.isnan(rounded(math.nan, policy))


def test_sizes_are_rounded_or_stay():
    told: dict[str, Any] = {"tells": ["examples/rounded", "label_counts"], "min_rows": 5}
    info = ask(north(**told), "describe", client=0)["info"]
    assert (info.num_examples, info.streams) == (25, False)
    assert all(count % 5 == 0 for count in info.label_counts or (1,))
    (update,) = work(north(**told))["replies"]
    assert (update.num_examples, update.num_steps) == (25, 0)
    site = restart("north", client_test=0.5, policy={"federations": "any", "tells": []})
    info = ask(site, "describe", client=0)["info"]
    assert (info.num_examples, info.num_validation, info.num_test, info.streams, info.sampling) == (1, 0, 1, True, None)
    fair = named("FedAvg", weighting="uniform")
    (update,) = work(site, strategy=fair, session="t")["replies"]
    assert (update.num_examples, update.num_steps, update.train_loss) == (1, 0, None)


@given(number=st.integers(1, 10**6), least=st.integers(1, 100))
def test_a_rounded_number_is_a_multiple_and_near(number, least):
    policy = Policy(tells=["examples/rounded"], min_rows=least)
    assert counted(number, policy) % least == 0
    assert abs(counted(number, policy) - number) <= max(least / 2, least - number)
    assert counted(0, policy) == 0
    assert counted(number, Policy(min_rows=least)) == number


# ---------------------------------------------------------------- the table


EVERY = {
    ClientUpdate: ClientUpdate(
        *(3, 4, 1017, 1018, 0.123456, {"a": 0.234567}, 0.345678, 1021, 1022, 0.456789, 0.567891, 0.678912, 0.789123),
        *("SGD of torch", 0.891234, 0.912345, Snapshot(torch.ones(2), torch.ones(1).long()), {"c": torch.ones(2)}),
        *(0.111213, 0.121314, None, 1031),
    ),
    EvalReport: EvalReport(
        3, 0.123456, 1017, (0.234567, 0.345678), (torch.tensor([0.45678]).double(),), {"s": torch.ones(1)}, "why", "no sums"
    ),
    ClientInfo: ClientInfo(
        *("north", 1017, (1018, 1019), 1020, 1021, False), *(("d1", "d2"), (("1",), ("2",), ("3",)), "schema", (1023, 0.123456))
    ),
    ClientFailure: ClientFailure(3, 4, "a cause", 5),
    Note: Note("secure_aggregation", 3, {"step": "keys"}),
}
"""A message of each kind with a number of its own in every field."""


LEAVES: dict[type, str] = {
    ClientUpdate: "client round_idx model extras compressed metrics=metrics num_examples=examples num_steps=steps "
    "train_loss=loss normalizer=normalizer local_score=evaluation/validation global_score=evaluation/training seconds=seconds "
    "optimizer=optimizer",
    EvalReport: "client value n interval points sums=examples reason pooled",
    ClientInfo: "name digests schema num_examples=examples num_validation=examples "
    "num_test=examples streams=examples sampling=examples label_counts=label_counts moments=statistics",
    ClientFailure: "client round_idx cause attempts",
    Note: "option client content",
}
"""The fields that leave with each message, and the fact by which they do if they don't always."""


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("fact", ["nothing", *FACTS])
def test_only_what_the_policy_tells_leaves(kind, fact):
    """Each fact alone lets its own fields leave, and no others; a field that is not in the list never does."""
    policy = Policy(tells=[] if fact == "nothing" else [fact], min_rows=1)
    leaves = dict((*one.split("="), "")[:2] for one in LEAVES[kind].split())
    sent = released(EVERY[kind], policy)
    for one in fields(kind):
        before, now = getattr(EVERY[kind], one.name), getattr(sent, one.name)
        told = leaves.get(one.name) in ("", fact, fact.removesuffix("/rounded") if one.name != "sums" else "")
        assert ((now is before) or (now == before)) == told or (one.name == "sampling" and fact == "examples/rounded"), one.name


def test_what_is_in_no_table_does_not_leave():
    with pytest.raises(WireError, match="A ServerModel is no message that leaves a site"):
        released(server_model(), Policy())


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_the_log_has_every_number_that_leaves(kind):
    """To the last digit, also with digits of the policy: 'update_norm' and 'normalizer' were not in it."""
    for policy in (Policy(tells=[*FACTS][2:]), Policy(tells=[*FACTS], digits=2)):
        message = released(EVERY[kind], policy)
        told = json.dumps(numbers_of(message))
        for one in fields(kind):
            rule = FIELDS[kind].get(one.name)
            if rule is not None and not rule.is_model:
                assert one.name in json.loads(told)
        if policy.digits:
            assert kind is ClientInfo or not re.search(r"0\.\d{4}", told)  # the rate of a batch is told exact


def test_the_log_has_how_often_noise_was_added():
    """The number leaves beside the update, so that the server's account counts the same releases."""
    told = work(north(), **NOISY)["releases"]
    assert told
    assert audit()[-1]["releases"] == told


def test_the_page_has_the_table_that_enforces():
    page = (ROOT / "docs" / "site_policy.md").read_text(encoding="utf-8")
    table = page.partition("| `tells` | what leaves |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `([\w/]+)` \| (.*) \|$", table, re.M))
    assert rows.pop("metric/NAME") == "one figure that the module logs"
    assert rows == FACTS


# ---------------------------------------------------------------- few rows


def test_a_small_part_is_not_told_and_not_evaluated():
    north(tells=["examples", "evaluation/test", "evaluation/training"])
    site = restart("north", client_test=0.25)
    info = ask(site, "describe", client=0)["info"]
    assert (info.num_examples, info.num_test) == (18, 0)
    asked = work(site, EvalOrder(1, 0, "test", "evaluation"))
    assert "test part has fewer than 10 rows or persons" in told(asked)
    assert "replies" not in asked


@pytest.mark.parametrize("least", [8, 9, 25])
def test_nothing_leaves_a_site_of_few_rows_or_persons(least):
    """24 rows, also of 8 persons; also if the server asks for no description, but orders a training at once."""
    north()
    said = f"training part has fewer than {least} rows or persons ('policy.min_rows')"
    for units, own in ((24, lambda: table("north/own.csv")), (8, lambda: with_persons(*(k // 3 for k in range(24))))):
        site = restart("north", datamodule=own(), limits={"min_rows": least})
        for reply in (ask(site, "describe", client=0), work(site)):
            assert (said in told(reply)) == (units < least) == (not reply.keys() & {"info", "replies"})


@pytest.mark.parametrize("least", [1, 10])
def test_one_small_class_withholds_all_counts(least):
    """With the number of examples, the other counts would tell it."""
    info = ask(north(tells=["examples", "label_counts"], min_rows=least), "describe", client=0)["info"]
    assert (info.label_counts is None) == (least == 10)
    assert info.label_counts is None or (min(info.label_counts) < 10 and sum(info.label_counts) == 24)


# ---------------------------------------------------------------- a hostile server

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**9), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)
TASK: dict[str, Any] = {
    **{"round_idx": st.integers(-1, 1200), "period": st.integers(-1, 3), "epochs": st.none() | st.integers(-1, 3)},
    **{"slowness": st.floats(0, 10), "delivers": st.booleans(), "version": JUNK},
}
LOCAL: dict[str, Any] = {
    **{"max_epochs": st.integers(-1, 2), "max_steps": st.integers(-1, 3), "full_batch": st.booleans()},
    **{"limit_train_batches": st.integers(0, 3) | st.floats(0, 1), "lr_decay": st.floats(0, 2), "max_nothing": JUNK},
    "engine": st.sampled_from(["auto", "trainer", "fabric", "stacked"]),
}
TASKS, LOCALS = (st.fixed_dictionaries({}, optional=one) for one in (TASK, LOCAL))
TOP = st.dictionaries(st.sampled_from(["rounds", "seed", "precision", "threads", "other"]), JUNK, max_size=1)
ASKED = {"session": "s", "model_version": 1, "settlements": [], "notes": []}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(task=TASKS, local=LOCALS, rate=st.sampled_from([0.0, 1e-9, 0.1, 3.0, 1e9]), top=TOP)
def test_a_hostile_server_gets_no_number_outside_the_policy(task, local, rate, top):
    """Whatever it orders, of valid and invalid settings: an error, or an update with what the policy names; and every byte is
    in the log."""
    site = north(tells=["examples", "steps"], digits=2)
    wrong = contract(model=model(optimizer=sgd(lr=rate)), local={"threads": 1, **local}) | top
    asked = envelope.request("work", federation="a" * 32, client=0, contract=wrong, orders=[order(**task)], **ASKED)
    content = site.answer({"order": asked, "model": to_bytes(server_model())})
    for update in envelope.opened(content, ("reply",)).get("replies", ()):
        if not isinstance(update, ClientUpdate):
            continue
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
    site = north(update={"noise": {"least": 1.0}})
    own = pd.read_csv("north/own.csv").iloc[:, 0].max()
    for session, threshold in (("a", own - 1e-3), ("b", own + 1e-3)):
        (update,) = work(site, session=session, sent=strange_model(threshold), **private)["replies"]
        assert update.model.vector.isfinite().all()


def test_the_largest_weight_before_the_noise_does_not_show():
    site = north(update={"noise": {"least": 1.0}})
    for session, most in (("a", 1e-9), ("b", 1e9)):
        reply = work(site, session=session, sent=replace(server_model(), max_abs_weight=most), **HIDING)
        assert isinstance(reply["replies"][0], ClientUpdate)


def test_counts_of_classes_are_told_once():
    """Told again after one patient was added, their difference was that patient."""
    policy: dict[str, Any] = {"tells": ["label_counts"], "min_rows": 1}
    for _ in range(2):
        assert not told(ask(north(**policy), "describe", client=0))
    path = Path("north/own.csv")
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, *rest, "9" * 3 + rest[0][rest[0].index(",") :]]) + "\n")
    found = told(ask(north(**policy), "describe", client=0))
    assert "The data of this site have changed since it told the counts of its classes" in found


def test_a_failure_beside_noise_ends_the_federation_until_the_staff_agrees(monkeypatch):
    site, handle = north(update={"noise": {"least": 1.0}}), Site.handle

    def broken(self: Site, message: Any) -> Any:
        if isinstance(message, ClientTask):
            raise IndexError("a label of 7")
        return handle(self, message)

    monkeypatch.setattr(Site, "handle", broken)
    assert "IndexError" not in told(work(site, session="a", **NOISY))
    monkeypatch.setattr(Site, "handle", handle)
    said = told(work(site, session="b", **NOISY))
    assert "A training of this federation has failed here" in said
    approve(Path("north/state"), "a" * 32, settings_of(contract(**NOISY)))
    assert not told(work(site, session="c", **NOISY))
