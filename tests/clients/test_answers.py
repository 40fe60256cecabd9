"""Questions about models: values as scikit-learn has them, never about few persons, and the same for the same question."""

import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from scipy import stats
from sklearn import calibration
from sklearn import metrics as sk
from torch import nn
from torchmetrics import classification, regression

from fl_lightning import CalibrationCurve, ClassificationTask
from fl_lightning.clients.answering import Questions
from fl_lightning.errors import ConfigurationError
from fl_lightning.evaluation.matrix import pooled
from fl_lightning.messages import EvalReport, Question
from fl_lightning.metrics.probabilities import as_probabilities


class Saying:
    def __init__(self, predictions_are: Any) -> None:
        self.predictions_are = predictions_are


def ask(
    metric: Any,
    predictions: Any,
    target: Any,
    least: int = 1,
    resamples: int = 0,
    persons: Any = None,
    are: Any = "probabilities",
) -> EvalReport:
    given = None if persons is None else torch.as_tensor(persons)
    questions = Questions(lambda values: metric, least)
    found = torch.as_tensor(predictions), torch.as_tensor(target)
    return questions.answer(Question({}, resamples), 0, *found, given, Saying(are))


def two_classes(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    return torch.tensor(1 / (1 + np.exp(-draw.normal(size=n) - labels))), torch.tensor(labels)


@pytest.mark.parametrize(
    ("metric", "oracle"),
    [
        (classification.BinaryAUROC(), lambda s, y: sk.roc_auc_score(y, s)),
        (classification.BinaryMatthewsCorrCoef(), lambda s, y: sk.matthews_corrcoef(y, s > 0.5)),
    ],
)
def test_values_and_intervals_are_those_of_scikit_learn_and_scipy(metric, oracle):
    scores, labels = two_classes(120)
    report = ask(metric, scores, labels, least=10, resamples=500)
    assert report.value == pytest.approx(oracle(scores.numpy(), labels.numpy()), abs=1e-6)
    assert report.n == 120
    theirs = stats.bootstrap(
        (scores.numpy(), labels.numpy()), oracle, paired=True, vectorized=False, n_resamples=500, method="percentile", rng=0
    ).confidence_interval
    width = 2 if isinstance(metric, classification.BinaryMatthewsCorrCoef) else 1  # of the range of values
    assert report.interval == pytest.approx((theirs.low, theirs.high), abs=0.02 * width)


def test_two_logits_are_the_probability_of_class_1():
    scores, labels = two_classes(60)
    logits = torch.stack([torch.zeros(60, dtype=torch.float64), torch.logit(scores)], 1)
    want = ask(classification.BinaryAveragePrecision(), scores, labels).value
    for given, are in ((logits, "logits"), (logits.softmax(1), "probabilities"), (scores[:, None], "probabilities")):
        assert ask(classification.BinaryAveragePrecision(), given, labels, are=are).value == pytest.approx(want, abs=1e-6)


def test_scores_of_many_classes_and_labels_are_what_the_module_says():
    logits, labels = torch.rand(40, 3, dtype=torch.float64, generator=torch.manual_seed(1)), torch.arange(40) % 3
    want = sk.roc_auc_score(labels, logits.softmax(1), multi_class="ovr")
    assert want != pytest.approx(sk.roc_auc_score(labels, logits / logits.sum(1, keepdim=True), multi_class="ovr"), abs=1e-3)
    assert ask(classification.MulticlassAUROC(3), logits, labels, are="logits").value == pytest.approx(want)
    several = (torch.arange(120).view(40, 3) % 5 < 3).long()
    exact = sk.accuracy_score(several.flatten(), logits.flatten() > 0)
    assert ask(classification.MultilabelAccuracy(3), logits, several, are="logits").value == pytest.approx(exact)


MULTICLASS = [one for one in classification.__all__ if one.startswith("Multiclass")]


@pytest.mark.parametrize("name", MULTICLASS)
def test_every_metric_of_torchmetrics_that_reads_probabilities_gets_them(name):
    """Found by shifting scores out of [0, 1]: only what takes these for logits has another value."""
    inside, labels = torch.rand(30, 3, generator=torch.manual_seed(0)), torch.arange(30) % 3
    kind = getattr(classification, name)
    known = inspect.signature(kind).parameters
    more = {one: 0.5 for one in known if one.startswith("min_")} | {"beta": 1.0, "thresholds": 5}
    metric = kind(num_classes=3, **{one: value for one, value in more.items() if one in known})
    one, other = (metric(scores, labels) for scores in (inside, inside + 5))
    same = all(torch.equal(a, b) for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (one, other)), strict=True))
    got = as_probabilities(metric, inside, labels, Saying("logits"))
    assert same == (got is inside) or name == "MulticlassRecallAtFixedPrecision"  # in torchmetrics 1.7, the same by chance


class Own(ClassificationTask):
    """Compares something else than the task does, so that what the task says is not true of it."""

    def predictions_and_target(self, batch: Any) -> Any:
        return batch


def test_predictions_of_an_unknown_kind_are_refused():
    scores, labels = two_classes(20)
    metric, both = classification.BinaryAUROC(), torch.rand(20, 2)
    for module in (Saying(None), Own(nn.Linear(2, 2), 2)):
        said = f"BinaryAUROC compares probabilities, but {type(module).__name__} does not say whether its pred"
        with pytest.raises(ConfigurationError, match=said):
            as_probabilities(metric, both, labels, module)
    known = as_probabilities(metric, both, labels, ClassificationTask(nn.Linear(2, 2), 2))
    assert torch.equal(known, both.softmax(1)[:, 1])
    with pytest.raises(
        ConfigurationError, match=r"Saying says that its predictions are probabilities, but they give .* to 3.7"
    ):
        ask(classification.BinaryAUROC(), scores + 2.9, labels)
    assert ask(classification.BinaryAccuracy(), labels, labels, are=None).value == 1  # classes are no scores


class MeanPrediction(torchmetrics.MeanMetric):
    """Reads no targets, so that an interval tells of the draws alone."""

    def update(self, predictions: torch.Tensor, target: torch.Tensor) -> None:
        super().update(predictions)


def test_other_targets_and_other_persons_have_other_draws():
    """With the same draws, the difference of two intervals would be about the rows that changed; torch's seed has no say."""
    scores, labels = two_classes(20)
    scores, labels = scores.repeat_interleave(4), labels.repeat_interleave(4)
    pairs, others = torch.arange(80) // 2, torch.tensor([0, 1, 0, 1]).repeat(20) + 2 * (torch.arange(80) // 4)

    def interval(target: torch.Tensor, persons: torch.Tensor) -> Any:
        return ask(MeanPrediction(), scores, target, resamples=200, persons=persons).interval

    one = interval(labels, pairs)
    torch.manual_seed(99)
    assert one == interval(labels, pairs)
    assert one != interval(1 - labels, pairs)
    assert one != interval(labels, others)  # each person has the same numbers in both
    assert one == interval(labels, 7 * pairs + 3)  # as a site numbers its persons, or a simulation those of all clients


def test_rows_of_few_persons_have_no_figure():
    """200 rows of 8 patients are 8 patients."""
    nine, ten = (ask(regression.MeanSquaredError(), torch.rand(n), torch.rand(n), least=10, resamples=20) for n in (9, 10))
    assert math.isnan(nine.value)
    assert replace(nine, value=0) == EvalReport(0, 0, reason="fewer than 10 examples or persons")
    assert (ten.n, ten.reason) == (10, "")
    rows = torch.rand(200), torch.rand(200)
    assert ask(regression.MeanSquaredError(), *rows, least=10, persons=np.arange(200) % 8).reason.startswith("fewer than 10")
    assert ask(regression.MeanSquaredError(), *rows, least=10, persons=np.arange(200) % 20).n == 20


def test_a_class_of_few_persons_has_no_figure():
    """The AUROC of a single patient with the disease is the rank of this patient."""
    scores, labels = torch.rand(60), torch.tensor([1] * 5 + [0] * 55)
    report = ask(classification.BinaryAUROC(), scores, labels, least=10, resamples=20)
    assert (report.reason, report.n, report.interval) == ("a class of fewer than 10 examples or persons", 0, None)
    assert math.isnan(report.value)
    assert math.isfinite(ask(classification.BinaryAUROC(), scores, labels, least=5).value)
    several = torch.stack([labels, torch.arange(60) % 2], 1)  # several labels for each example
    assert "a class of fewer" in ask(classification.MultilabelAccuracy(2), torch.rand(60, 2), several, least=10).reason
    persons = [0] * 50 + [*range(1, 11)]
    one_patient = (torch.arange(60) < 50).long()  # 50 rows of one patient are the whole class
    assert "a class of fewer" in ask(classification.BinaryAUROC(), scores, one_patient, least=10, persons=persons).reason


def test_ten_rows_of_one_patient_are_one_patient():
    """In what is predicted as one class, and between two points of a curve."""
    persons = torch.arange(200) // 10
    scores, labels = torch.where(persons == 0, 0.9, 0.1), torch.arange(200) % 2
    report = ask(classification.BinaryPrecision(), scores, labels, least=10, persons=persons)
    assert (report.reason, report.sums) == ("fewer than 10 examples are predicted as one class", {})
    curve = ask(classification.BinaryROC(thresholds=[0.0, 0.5]), scores, labels, least=10, persons=persons)
    assert curve.points[1].isnan().tolist() == [True, False]
    assert not ask(classification.BinaryROC(thresholds=[0.0, 0.5]), scores, labels, least=5).points[1].isnan().any()


@pytest.mark.parametrize("least", [1, 10])
def test_points_of_a_curve_are_those_of_scikit_learn_or_hidden(least):
    scores, labels = two_classes(70)
    report = ask(classification.BinaryROC(thresholds=11), scores, labels, least=least)
    fpr, tpr, thresholds = (tensor.numpy() for tensor in report.points)
    told = ~np.isnan(fpr)
    assert (np.isnan(tpr) == np.isnan(fpr)).all()
    assert told.all() == (least == 1)
    assert told.any()
    positive, negative = scores[labels == 1].numpy(), scores[labels == 0].numpy()
    assert tpr[told] == pytest.approx([(positive >= t).mean() for t in thresholds[told]], abs=1e-6)
    assert fpr[told] == pytest.approx([(negative >= t).mean() for t in thresholds[told]], abs=1e-6)


@pytest.mark.parametrize("metric", [classification.BinaryROC(), classification.BinaryStatScores(multidim_average="samplewise")])
def test_points_of_single_examples_are_refused(metric):
    scores, labels = two_classes(40)
    if isinstance(metric, classification.BinaryStatScores):
        scores, labels = scores[:, None].expand(-1, 3), labels[:, None].expand(-1, 3)
    report = ask(metric, scores, labels)
    name = type(metric).__name__
    assert report.reason == (
        f"the points of {name} are those of single examples; set its 'thresholds' to a number, for a common grid"
    )
    assert not report.points


def test_a_resample_of_one_class_does_not_count():
    """torchmetrics reports an AUROC of 0 for it, which would widen the interval."""
    scores, labels = torch.linspace(0, 1, 8), torch.tensor([0] * 4 + [1] * 4)
    report = ask(classification.BinaryAUROC(), scores, labels, resamples=500)
    assert report.interval == (1.0, 1.0)
    few = ask(classification.BinaryAUROC(), scores[:4], torch.tensor([0, 0, 0, 1]), resamples=200)
    assert few.interval is None
    assert few.reason == "no interval: more than 5 % of the resamples have no value"
    assert few.value == 1.0


@pytest.mark.parametrize(
    "metric",
    [
        classification.BinaryAUROC(),
        classification.BinaryAUROC(thresholds=7),
        classification.MulticlassAUROC(2),
        classification.MulticlassAUROC(2, thresholds=7),
    ],
)
def test_an_area_without_examples_of_a_class_has_no_value(metric):
    """torchmetrics reports 0, as if the model were wrong about everyone."""
    scores = torch.rand(8)
    given = torch.stack([1 - scores, scores], 1) if "Multiclass" in repr(metric) else scores
    report = ask(metric, given, torch.ones(8, dtype=torch.long), resamples=20)
    assert math.isnan(report.value)
    assert report.interval is None
    assert report.reason
    reports = [replace(report, client=0, reason="")]
    assert math.isnan(pooled(metric, reports, ("a",)).value)
    assert ask(classification.BinaryAccuracy(), scores, torch.ones(8, dtype=torch.long), resamples=20).interval is not None


def three_sites(metric: Any, least: int = 1) -> tuple[list[EvalReport], torch.Tensor, torch.Tensor]:
    data = [two_classes(n, seed) for seed, n in enumerate((40, 60, 100))]
    data[2] = data[2][0], (torch.arange(100) % 4 > 0).long()
    reports = [replace(ask(metric, *one, least=least), client=k) for k, one in enumerate(data)]
    return reports, *(torch.cat([one[k] for one in data]) for k in (0, 1))


@pytest.mark.parametrize(
    "metric",
    [
        classification.BinaryAccuracy(),
        classification.BinaryF1Score(),
        classification.BinaryAUROC(thresholds=21),
        classification.BinarySpecificity(),
        regression.MeanSquaredError(),
        regression.R2Score(),
        torchmetrics.MeanSquaredError(squared=False),
    ],
)
def test_pooled_is_the_metric_of_all_examples_together(metric):
    """And not the mean of the sites' values."""
    reports, scores, labels = three_sites(metric)
    together = pooled(metric, reports, ("a", "b", "c"))
    metric.reset()
    metric.update(scores, labels)
    assert together.value == pytest.approx(float(metric.compute()), rel=1e-6)
    assert together.n == 200
    weighted = sum(one.value * one.n for one in reports) / 200
    if not isinstance(metric, classification.BinaryAccuracy) and "MeanSquared" not in repr(metric):
        assert together.value != pytest.approx(weighted, rel=1e-6)


def test_what_is_no_function_of_sums_or_not_told_by_a_site_is_not_pooled():
    metric = classification.BinaryAUROC()
    together = pooled(metric, three_sites(metric)[0], ("a", "b", "c"))
    assert math.isnan(together.value)
    assert together.reason == "not told by a, b, c: the metric is not a function of sums"
    metric = classification.BinaryAccuracy()
    reports, *_ = three_sites(metric)
    reports[1] = EvalReport(1, math.nan, reason="fewer than 10 examples or persons")
    together = pooled(metric, reports, ("a", "b", "c"))
    assert (together.reason, together.n) == ("not told by b: fewer than 10 examples or persons", 0)


def test_small_counts_empty_the_pooled_cell():
    scores, labels = torch.tensor([0.9] * 28 + [0.1] * 32), torch.tensor([1] * 30 + [0] * 30)
    report = ask(classification.BinaryAccuracy(), scores, labels, least=10)
    assert report.value == pytest.approx(58 / 60)
    assert (report.sums, report.pooled) == ({}, "a count of fewer than 10")


def test_pooled_points_are_those_that_every_site_tells():
    metric = classification.BinaryROC(thresholds=6)
    reports, scores, labels = three_sites(metric, least=10)
    together = pooled(metric, reports, ("a", "b", "c"))
    told = ~together.points[1].isnan()
    assert told.tolist() == torch.stack([~one.points[1].isnan() for one in reports]).all(0).tolist()
    assert told.any()
    metric.reset()
    metric.update(scores, labels)
    for mine, theirs in zip(together.points, metric.compute(), strict=True):
        assert mine[told].numpy() == pytest.approx(theirs[told].numpy(), abs=1e-6)


@pytest.mark.parametrize(
    "sums", [{}, {"tp": torch.zeros(3)}, {"tp": torch.tensor(1.0), "fp": torch.tensor(1.0), "tn": torch.tensor(1.0)}]
)
def test_sums_of_another_shape_from_a_site_are_no_figure(sums):
    metric = classification.BinaryAccuracy()
    reports, *_ = three_sites(metric)
    reports[0] = EvalReport(0, 0.5, 40, sums=sums)
    together = pooled(metric, reports, ("a", "b", "c"))
    assert math.isnan(together.value)
    assert together.reason


def several_labels(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return probabilities and labels: of label 0, three examples are missed; of label 1, all is right in half of the cases."""
    labels = torch.stack([torch.arange(n) % 2, torch.arange(n) % 2], 1)
    scores = labels.double()
    scores[1:7:2, 0] = 0.0
    scores[: n // 2, 1] = 1 - scores[: n // 2, 1]
    return scores, labels


def test_the_cells_of_several_labels_are_those_of_torchmetrics_and_small_ones_are_withheld():
    scores, labels = several_labels(80)
    metric = classification.MultilabelConfusionMatrix(2)
    theirs = torch.from_numpy(sk.multilabel_confusion_matrix(labels, scores > 0.5))
    assert torch.equal(ask(metric, scores, labels).points[0], theirs.double())
    (told,) = ask(metric, scores, labels, least=10).points
    assert told[0].isnan().all()  # ((40, 0), (3, 37))
    assert torch.equal(told[1], theirs[1].double())
    assert (
        "predicted as one class" in ask(metric, torch.zeros(80, 2).index_fill(0, torch.arange(3), 1.0), labels, least=10).reason
    )


def test_a_calibration_curve_is_that_of_scikit_learn_and_bins_of_few_persons_are_hidden():
    scores, labels = two_classes(500)
    predicted, observed = (tensor.numpy() for tensor in ask(CalibrationCurve(8), scores, labels).points)
    there = ~np.isnan(predicted)
    theirs = calibration.calibration_curve(labels.numpy(), scores.numpy(), n_bins=8)
    assert observed[there] == pytest.approx(theirs[0])
    assert predicted[there] == pytest.approx(theirs[1])
    hidden = ask(CalibrationCurve(8), scores, labels, least=40).points[0].isnan().tolist()
    for k in range(8):
        counts = [int((((scores * 8).long() == k) & (labels == y)).sum()) for y in (0, 1)]
        assert hidden[k] == (not any(counts) or any(0 < count < 40 for count in counts))
    assert len({*hidden}) == 2


def test_a_calibration_curve_of_logits():
    scores, labels = two_classes(90)
    want = ask(CalibrationCurve(4), scores, labels).points[0]
    for target in (labels, labels.double()):
        got = ask(CalibrationCurve(4), torch.logit(scores), target, are="logits").points[0]
        assert got.numpy() == pytest.approx(want.numpy())
