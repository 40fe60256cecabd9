"""What a server can learn of a site's rows by asking about models: each test is an attempt, or a limit of the policy."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from asked_site import ask, contract, named, north, order, server_model, told, work
from sites_over_bytes import audit, of

from fl_lightning.flower.site.questions import MOST_RESAMPLES
from fl_lightning.messages import ClientTask, EvalOrder, EvalReport, Question, RoundCommit
from fl_lightning.types import Snapshot
from fl_lightning.wire import to_bytes

ON: dict[str, Any] = {"tells": ["examples", "steps", "evaluation/training"], "min_rows": 1}
SESSIONS = count()


def metric(name: str, **settings: Any) -> dict[str, Any]:
    return of(f"torchmetrics.classification.{name}", num_classes=3, **settings)


ACCURACY, MICRO = metric("MulticlassAccuracy"), metric("MulticlassAccuracy", average="micro")
ROC = metric("MulticlassROC", thresholds=7)


def question(metric: Any = ACCURACY, resamples: int = 0, level: float = 0.95, **more: Any) -> EvalOrder:
    return EvalOrder(1, 0, "training", "question", question=Question(metric, resamples, level), **more)


def asked(site: Any, *orders: Any, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Ask about a model, in a request that the site has not seen before: it would answer that from its store."""
    torch.manual_seed(seed)
    return work(site, *(orders or (question(),)), session=f"s{next(SESSIONS)}", sent=server_model(), **more)


def answer(site: Any, order: EvalOrder = question(), **more: Any) -> EvalReport:  # noqa: B008
    found = asked(site, order, **more)
    assert not told(found)
    report: EvalReport = found["replies"][0]
    return report


def test_an_honest_question_is_answered_and_written_down():
    report = answer(north(**ON), question(MICRO, resamples=100))
    assert report.n == 24
    assert report.value * 24 == pytest.approx(round(report.value * 24))
    assert report.interval[0] <= report.value <= report.interval[1]
    assert sum(float(report.sums[name]) for name in ("tp", "fn")) == 24
    assert audit()[-1]["replies"][0]["EvalReport"]["n"] == 24
    assert "MulticlassAccuracy" in json.dumps([line.get("orders") for line in audit()])


def test_questions_about_other_own_models_count():
    """A server has the site train its own model from weights of its choice, publishes another one, and asks about the own."""
    site, versions = north(**ON, answers=2), count(1)

    def asks(session: str, seed: int, asked: Any, *settled: RoundCommit) -> str:
        version = next(versions)
        torch.manual_seed(seed)
        sent = replace(server_model(), session=session, version=version)
        content = {"session": session, "model_version": version, "notes": [], "contract": contract(strategy=named("Ditto"))}
        orders = [replace(asked, version=version)]
        return told(ask(site, "work", {"model": to_bytes(sent)}, orders=orders, settlements=list(settled), **content))

    for number in range(3):
        assert not asks(f"s{number}", number, order())  # round 0 again and again, as after crashes of the server
        said = asks(f"s{number}", 9, question(MICRO, own=True), RoundCommit(0, (0,), 0))
        assert ("This site has evaluated models 2 times" in said) == (number == 2), (number, said)


def test_metrics_are_classes_of_a_list(monkeypatch):
    """Nothing else is imported. A maximum over few rows would tell one of them."""
    site, refused = north(**ON), "which this site does not accept"
    Path("evil.py").write_text("import pathlib\npathlib.Path('executed').write_text('!')\nclass Net: pass\n")
    monkeypatch.syspath_prepend(Path.cwd())
    for asks, said in (
        (of("evil.Net"), f"'metrics' is the class 'evil.Net', {refused}"),
        (of("torch.load"), refused),
        (metric("MulticlassAccuracy", path="/etc/passwd"), "names a place"),
        (of("torchmetrics.MaxMetric"), refused),
        (of("torchmetrics.classification.BinaryCalibrationError"), refused),
        (named("MLP", in_features=6), "'metrics' is 'fl_lightning.MLP', but needs Metric"),
        ({}, "must be a class with 'class_path'"),
        (metric("MulticlassROC", thresholds=10**9), "A setting of the metric is above 1000"),
        (metric("MulticlassROC", thresholds=[0.5] * 1001), "or a longer list"),
        (metric("MulticlassAccuracy", no_such=1), "(code "),
    ):
        found = asked(site, question(asks))
        assert said in told(found), asks
        assert "replies" not in found
    assert not Path("executed").exists()


NO_MODEL = Snapshot(torch.zeros(53), torch.zeros(0, dtype=torch.int64))
WRONG: list[tuple[Any, str]] = [
    (question(resamples=MOST_RESAMPLES + 1), "asks for 10001 resamples, but sites draw 0 to 10000"),
    (question(resamples=-1), "sites draw 0 to 10000"),
    (question(resamples=10, level=1.0), "with a level in (0, 1)"),
    (question(tasks=(ClientTask(0, 0, version=1),)), "asks for a metric of the published model"),
    (question(model=NO_MODEL), "asks for a metric of the published"),
    (EvalOrder(1, 0, "training", "question", question="all"), "The field 'question' of EvalOrder has the wrong type"),  # type: ignore[arg-type]
    (question("all"), "The field 'question' of EvalOrder has the wrong"),
    (EvalOrder(1, 1, "training", "question", question=Question(ACCURACY)), "for the clients [1]"),
]


@pytest.mark.parametrize(("order", "said"), WRONG)
def test_other_questions_are_refused(order, said):
    assert said in told(work(north(**ON), order))


def test_small_parts_and_classes_have_no_answer():
    report = answer(north(**ON | {"min_rows": 24}))  # 24 rows of three classes
    assert report.reason == "a class of fewer than 24 examples or persons"
    assert (report.n, report.sums, report.points, report.interval) == (0, {}, (), None)


def test_points_of_few_rows_stay():
    open_curve = answer(north(**ON), question(ROC))
    closed = answer(north(**ON | {"min_rows": 4}), question(ROC))
    assert not open_curve.points[0].isnan().any()
    assert closed.points[0].isnan().any()
    there = ~closed.points[0].isnan()
    assert torch.equal(closed.points[0][there], open_curve.points[0][there])
    counts = closed.sums["confmat"]
    assert counts.isnan().any()
    assert not ((counts > 0) & (counts < 4)).any()


@pytest.mark.parametrize("policy", [{"digits": 2}, {"tells": ["examples/rounded", "evaluation/training"], "min_rows": 5}])
def test_rounded_figures_have_no_exact_sums_beside_them(policy):
    report = answer(north(**ON | policy), question(MICRO, resamples=100))
    assert report.sums == {}
    if report.reason:
        assert "tells" in policy
        return
    assert "do not leave this site" in report.pooled
    if "digits" in policy:
        assert all(number == float(f"{number:.1e}") for number in (report.value, *report.interval))
    else:
        assert report.n == 25


# ---------------------------------------------------------------- many questions


def test_each_question_counts_and_a_repeated_one_has_the_same_answer():
    site = north(**ON, answers=3)
    first = answer(site, question(MICRO, resamples=50))
    assert answer(site, question(MICRO, resamples=50)) == first  # to the bit
    assert not told(asked(site, question(ACCURACY), seed=1))
    for own in (False, True):  # of which a server can have a site train as many as it likes
        assert "'policy.answers' is 3" in told(asked(site, question(MICRO, own=own), seed=2))


@pytest.mark.parametrize(
    ("one", "other", "nested"),
    [(7, 8, False), (7, 13, True), (13, 7, True), ([0.2, 0.5], [0.2, 0.51], False), ([0.2, 0.5], [0.5], True), (7, 7, True)],
)
def test_two_curves_of_one_model_are_one_answer(one, other, nested):
    """Their points differ by the rows between two thresholds, which may be those of one patient."""
    site = north(**ON)
    assert not told(asked(site, question(metric("MulticlassROC", thresholds=one))))
    said = told(asked(site, question(metric("MulticlassPrecisionRecallCurve", thresholds=other))))
    assert ("with other thresholds" in said) == bool(said) != nested
    assert not told(asked(site, question(metric("MulticlassROC", thresholds=other)), seed=1))  # of another model


@pytest.mark.parametrize("change", ["a row more", "a corrected row"])
def test_the_difference_of_two_versions_of_the_data_is_told_if_the_staff_allows_it(change):
    """With the same model, the sums before and after a row was added are its label and whether it is recognised."""
    assert not told(asked(north(**ON), question(MICRO)))
    path = Path("north/own.csv")
    header, first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, *reversed([first, *rest])]) + "\n")
    assert not told(asked(north(**ON), question(MICRO)))  # the same rows in another order
    features, _, label = first.rpartition(",")
    lines = [first, first, *rest] if change == "a row more" else [f"{features},{(int(float(label)) + 1) % 3}", *rest]
    path.write_text("\n".join([header, *lines]) + "\n")
    said = told(asked(north(**ON), question(MICRO)))
    assert "have changed since it answered questions about them, and the difference of two answers would tell" in said
    assert "asked_training.sha256'" in said
    Path("north/state/asked_training.sha256").unlink()
    assert not told(asked(north(**ON), question(MICRO)))
