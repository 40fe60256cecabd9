"""What a server can learn of a site's rows by asking about models: each test is an attempt, or a limit of the policy."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest
import torch
from sites_over_bytes import prepare, start_site
from test_site_policy import told
from test_site_security import (
    EVIL,
    ask,
    contract,
    noisy,
    server_model,
    site,  # noqa: F401 (a fixture)
    with_policy,
    work,
)

from fl_lightning.errors import ClientError
from fl_lightning.flower.replies import evaluations_in
from fl_lightning.flower.site_questions import MOST_RESAMPLES
from fl_lightning.messages import ClientTask, EvalOrder, EvalReport, Question
from fl_lightning.types import Snapshot
from fl_lightning.wire import to_bytes

ACCURACY = {"class_path": "torchmetrics.classification.MulticlassAccuracy", "init_args": {"num_classes": 3}}
MICRO = {**ACCURACY, "init_args": {"num_classes": 3, "average": "micro"}}
ROC = {"class_path": "torchmetrics.classification.MulticlassROC", "init_args": {"num_classes": 3, "thresholds": 7}}


def question(metric: Any = ACCURACY, part: str = "training", resamples: int = 0, **more: Any) -> EvalOrder:
    return EvalOrder(1, 0, part, "question", question=Question(metric, resamples), **more)


def answer(site: Any, *orders: EvalOrder, model: Any = None) -> EvalReport:  # noqa: F811
    found = again(site, *(orders or (question(),)), model=model)
    assert "error" not in found, found
    return found["replies"][0]


def other_model(seed: int) -> Any:
    torch.manual_seed(seed)
    return server_model()


def test_an_honest_question_is_answered_and_written_down(site, tmp_path):  # noqa: F811
    report = answer(site, question(MICRO, resamples=100))
    assert report.n == 24
    assert report.value * 24 == pytest.approx(round(report.value * 24))
    assert report.interval[0] <= report.value <= report.interval[1]
    assert sum(float(report.sums[name]) for name in ("tp", "fn")) == 24
    lines = [json.loads(line) for line in (tmp_path / "north/state/audit.jsonl").read_text().splitlines()]
    assert lines[-1]["replies"][0]["n"] == 24
    assert "MulticlassAccuracy" in json.dumps([line.get("orders") for line in lines])


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ({"class_path": "evil.Net"}, "'metrics' is the class 'evil.Net', which this site does not accept"),
        ({"class_path": "torchmetrics.MaxMetric"}, "which this site does not accept"),
        ({"class_path": "torchmetrics.classification.BinaryCalibrationError"}, "which this site does not accept"),
        ({"class_path": "torch.load"}, "which this site does not accept"),
        (
            {"class_path": "fl_lightning.MLP", "init_args": {"in_features": 6}},
            "'metrics' is 'fl_lightning.MLP', but needs Metric",
        ),
        ({}, "must be a class with 'class_path'"),
        ({**ROC, "init_args": {"num_classes": 3, "thresholds": 10**9}}, "A setting of the metric is above 1000"),
        ({**ROC, "init_args": {"num_classes": 3, "thresholds": [0.5] * 1001}}, "or a longer list"),
        ({**ACCURACY, "init_args": {"num_classes": 3, "path": "/etc/passwd"}}, "names a place"),
        ({**ACCURACY, "init_args": {"num_classes": 3, "no_such": 1}}, "RefusedError"),
    ],
)
def test_metrics_are_classes_of_a_list(metric, said, site, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = work(site, question(metric))
    assert said in told(found) or "(code " in told(found)
    assert "replies" not in found
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (question(resamples=MOST_RESAMPLES + 1), "asks for 10001 resamples, but sites draw 0 to 10000"),
        (question(resamples=-1), "sites draw 0 to 10000"),
        (EvalOrder(1, 0, "training", "question", question=Question(ACCURACY, 10, 1.0)), "with a level in (0, 1)"),
        (question(tasks=(ClientTask(0, 0, version=1),)), "asks for a metric of the published model"),
        (question(model=Snapshot(torch.zeros(53), torch.zeros(0, dtype=torch.int64))), "asks for a metric of the published"),
        (EvalOrder(1, 0, "training", "question", question="all"), "The field 'question' of EvalOrder has the wrong type"),
        (
            EvalOrder(1, 0, "training", "question", question=Question("all", 1)),
            "The field 'question' of EvalOrder has the wrong",
        ),
        (EvalOrder(1, 1, "training", "question", question=Question(ACCURACY)), "for the clients [1]"),
    ],
)
def test_other_questions_are_refused(order, said, site):  # noqa: F811
    assert said in told(work(site, order))


def test_parts_that_a_site_does_not_offer_are_not_asked_about(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, evaluations=["test"])
    assert "does not allow evaluation on its training examples" in told(work(site, question()))


def test_small_parts_and_classes_have_no_answer(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, evaluations=["training"], min_examples=24, min_batch=1)
    report = answer(site)  # 24 rows of three classes
    assert report.reason == "a class of fewer than 24 examples or persons"
    assert (report.n, report.sums, report.points, report.interval) == (0, {}, (), None)
    site = with_policy(tmp_path, evaluations=["training"], min_examples=25)
    assert "fewer than 25 examples" in told(work(site, question()))


def test_points_of_few_rows_stay(site, tmp_path):  # noqa: F811
    open_curve = answer(with_policy(tmp_path, evaluations=["training"], min_examples=1), question(ROC))
    closed = answer(with_policy(tmp_path, evaluations=["training"], min_examples=4), question(ROC))
    assert not open_curve.points[0].isnan().any()
    assert closed.points[0].isnan().any()
    there = ~closed.points[0].isnan()
    assert torch.equal(closed.points[0][there], open_curve.points[0][there])
    counts = closed.sums["confmat"]
    assert counts.isnan().any()
    assert not ((counts > 0) & (counts < 4)).any()


@pytest.mark.parametrize("policy", [{"digits": 2}, {"examples": "rounded", "min_examples": 5}])
def test_rounded_figures_have_no_exact_sums_beside_them(policy, site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, evaluations=["training"], **{"min_examples": 1, **policy})
    report = answer(site, question(MICRO, resamples=100))
    assert report.sums == {}
    if report.reason:
        assert policy["examples"] == "rounded"
        return
    assert "do not leave this site" in report.pooled
    if "digits" in policy:
        numbers = (report.value, *report.interval)
        assert all(number == float(f"{number:.1e}") for number in numbers)
    else:
        assert report.n == 25


# ---------------------------------------------------------------- many questions


def test_each_model_counts_and_a_repeated_question_does_not(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, evaluations=["training"], max_evaluations=3, min_examples=1)
    first = answer(site, question(MICRO, resamples=50), model=other_model(0))
    for _ in range(2):
        (same,) = again(site, question(MICRO, resamples=50), model=other_model(0))["replies"]
        assert same == first  # to the bit
    for metric in (MICRO, ACCURACY):
        assert "error" not in again(site, question(metric), model=other_model(1))
    said = told(again(site, question(MICRO), model=other_model(2)))
    assert "'policy.max_evaluations' is 3" in said


SESSIONS = count()


def again(site: Any, *orders: EvalOrder, model: Any = None, federation: str = "a" * 32) -> dict[str, Any]:  # noqa: F811
    """Ask in a request that the site has not seen before: it would answer that from its store."""
    parts = {"model": to_bytes(model or other_model(0))}
    more = {
        "session": f"s{next(SESSIONS)}",
        "model_version": 1,
        "orders": list(orders),
        "settlements": [],
        "notes": [],
        "federation": federation,
    }
    return ask(site, "work", parts, **more)


def test_the_limit_is_that_of_all_federations_and_outlives_the_site(site, tmp_path):  # noqa: F811
    """Another federation had begun at 0 again."""
    site = with_policy(tmp_path, evaluations=["training"], max_evaluations=2, federations="any", min_examples=1)
    for number, federation in enumerate("ab"):
        assert "error" not in again(site, question(), model=other_model(number), federation=federation * 32)
    for one in (site, start_site(tmp_path, "north")):
        assert "has answered 2 questions about these examples, over all federations" in told(
            again(one, question(), model=other_model(2), federation="c" * 32)
        )


@pytest.mark.parametrize("rows", [1, 9, 10])
def test_the_difference_of_two_versions_of_the_data_tells_of_no_few_rows(rows, tmp_path, monkeypatch):
    """With the same model, the sums before and after a row was added are its label and whether it is recognised."""
    prepare(tmp_path, monkeypatch)
    site = with_policy(tmp_path, evaluations=["training"], min_examples=1, max_evaluations=1)  # noqa: F811
    path = tmp_path / "north" / "own.csv"
    header, *lines = path.read_text().splitlines()
    assert "error" not in again(site, question(MICRO))
    path.write_text("\n".join([header, *lines, *(line for line in lines[:rows])]) + "\n")
    strict = with_policy(tmp_path, evaluations=["training"], min_examples=10 if rows > 1 else 2, max_evaluations=1)
    said = told(again(strict, question(MICRO)))
    if rows < 10:
        assert "have changed since it answered questions about them, but by fewer than" in said
        assert "evaluations.json" in said
        (tmp_path / "north" / "state" / "evaluations.json").unlink()
        strict = start_site(tmp_path, "north")
    assert "have changed" not in told(again(strict, question(MICRO)))


def test_a_corrected_row_is_a_changed_one(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    site = with_policy(tmp_path, evaluations=["training"], min_examples=1)  # noqa: F811
    assert "error" not in again(site, question(MICRO))
    path = tmp_path / "north" / "own.csv"
    header, first, *rest = path.read_text().splitlines()
    label = first.rpartition(",")[2]
    changed = first.removesuffix(label) + str((int(float(label)) + 1) % 3)
    path.write_text("\n".join([header, changed, *rest]) + "\n")
    site = with_policy(tmp_path, evaluations=["training"], min_examples=2)
    assert "by fewer than 2 examples or persons" in told(again(site, question(MICRO)))


# ---------------------------------------------------------------- noise and masks


def test_with_a_required_noise_no_question_is_answered(site, tmp_path):  # noqa: F811
    site = with_policy(tmp_path, min_noise=1.0, evaluations=["training"])
    agreed = contract(transforms=[noisy()])
    parts = {"model": to_bytes(server_model())}
    more = {"session": "s", "model_version": 1, "settlements": [], "notes": []}
    found = ask(site, "work", parts, contract=agreed, orders=[question()], **more)
    assert "or its 'policy.min_noise' is above 0" in told(found)


# ---------------------------------------------------------------- hostile sites


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (EvalReport(1, 0.5, n=-1), "an impossible number of examples"),
        (EvalReport(1, 0.5, n=2**40), "an impossible number of examples"),
        (EvalReport(1, 0.5, reason="\x1b[2J"), "control characters"),
        (EvalReport(1, 0.5, pooled="\x1b[2J"), "control characters"),
        (EvalReport(1, 0.5, sums={"\x1b": torch.zeros(1, dtype=torch.float64)}), "control characters"),
        (EvalReport(1, 0.5, sums={"tp": torch.zeros(1, dtype=torch.float16)}), "another type than float64"),
        (EvalReport(1, 0.5, points=(torch.zeros(10**6 + 1, dtype=torch.float64),)), "more than 1000000 numbers"),
        (EvalReport(1, 0.5, interval=(0.1,)), "not a report of an evaluation"),
        (EvalReport(1, 0.5, points="x"), "not a report of an evaluation"),
    ],
)
def test_impossible_answers_of_a_site_are_its_failure(report, said):
    with pytest.raises(ClientError, match=said):
        evaluations_in({"replies": (report,)}, "Site south", 1, 1)
