"""Whether more or less is better: told by the metric, said by the user, or asked for; never guessed."""

import pytest
from against_hand import Updates
from engine_runs import variant
from federations import Plain, federate
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassHammingDistance
from torchmetrics.regression import MeanAbsoluteError, R2Score

from fl_lightning import (
    AdaFed,
    BestCheckpoint,
    ClientEvaluation,
    ConfigurationError,
    FedLoss,
    FedStar,
    Focus,
    LocalOnly,
    ShapleyValues,
)
from fl_lightning.functional.metric_mode import known_direction
from fl_lightning.studies.panels import ReportOptions

HIGHER = [
    *("val_accuracy", "val_acc", "acc1", "val/acc", "val_f1_macro", "val_f1/0", "F1Score", "val_OverallAccuracy"),
    *("valAUROC", "test_auc", "precision", "recall_macro", "val_r2", "mIoU", MulticlassAccuracy(3), MulticlassAUROC(3)),
    R2Score(),
]
LOWER = [
    *("val_loss", "valid_loss", "valloss", "val/loss_epoch", "val_mae", "val_mse", "RMSE", "val_mape", "top1_error", "nll"),
    *(MeanAbsoluteError(), MulticlassHammingDistance(3)),
]
UNKNOWN = ["score", "val_acuracy", "federation/client_mean", "accuracy_loss", "", "maelstrom", "accent", "backdoor_success"]


def test_what_names_and_torchmetrics_tell():
    for metrics, direction in ((HIGHER, True), (LOWER, False), ([*UNKNOWN, MeanMetric()], None)):
        assert [metric for metric in metrics if known_direction(metric) is not direction] == []


RULES = {
    "federation.strategy.mode": (AdaFed, ShapleyValues),
    "federation.route.mode": (LocalOnly,),
    "federation.client_evaluation.mode": (lambda metric, mode=None: ClientEvaluation(1, metric, mode),),
    "best_checkpoint.mode": (BestCheckpoint,),
    "report.mode": (ReportOptions,),
}
EACH = [(rule, setting) for setting, rules in RULES.items() for rule in rules]


def upward(rule) -> bool:
    if isinstance(rule, ClientEvaluation):
        return rule.higher_is_better
    return rule.measure.higher if isinstance(rule, ReportOptions) else rule.mode == "max"


@pytest.mark.parametrize(("make", "setting"), EACH)
def test_each_rule_takes_the_direction_of_a_metric_and_asks_where_there_is_none(make, setting):
    assert upward(make("val_acc"))
    assert not upward(make("val_loss"))
    assert upward(make("val_loss", mode="max"))
    assert not upward(make("score", mode="min"))
    with pytest.raises(ConfigurationError, match=f"'{setting}' is not set, and the name 'score' does not tell whether"):
        make("score")
    with pytest.raises(ConfigurationError, match=f"'{setting}' must be max, min or null, but is 'lowest'"):
        make("val_loss", mode="lowest")
    if (make, setting) in EACH[:4]:  # those that also take a metric of torchmetrics
        assert not upward(make(MeanAbsoluteError()))
        with pytest.raises(ConfigurationError, match=f"'{setting}' is not set, and MeanMetric does not tell whether higher"):
            make(MeanMetric())


def test_rules_by_the_loss_take_the_lowest_and_those_of_one_direction_take_any_name():
    updates = Updates()
    federate(Plain(), 1, updates, strategy=AdaFed("val_loss", epsilon=0.5))
    assert [u.weight for u in updates.rounds[0]] == pytest.approx([1 / (u.score + 0.5) for u in updates.rounds[0]])
    run = federate(Plain(), 1, updates, route=LocalOnly("val_loss"))
    scores = [update.score for update in updates.rounds[-1]]
    assert float(run.callback_metrics["val_loss"]) == pytest.approx(min(scores), rel=1e-5)
    assert max(scores) > min(scores)
    assert FedLoss("mine").local_metric == Focus("mine").metric == FedStar(metric="mine").metric == "mine"
    assert not ClientEvaluation(metric="score").active  # measures nothing, and asks nothing


def scoring(value: float):
    return variant(on_validation_epoch_end=lambda self: self.log("score", value))()


def test_fedstar_looks_at_the_values_of_a_metric_that_does_not_tell():
    """If all are zero, models are wrong alike: everyone takes the mean, and the round is FedAvg of equal models."""
    message = "Fed-Star weighs models by 1 - accuracy, but 'federation.route.metric' 'score' returned values from 2 to 2"
    with pytest.raises(ConfigurationError, match=message):
        federate(scoring(2.0), 1, route=FedStar(metric="score"))
    assert federate(scoring(0.0), 1, route=FedStar(metric="score")).global_step == 1


def test_a_report_marks_no_best_where_nothing_tells_which_it_is():
    options = ReportOptions(also=["val_loss", "val_r2", "federation/client_mean"])
    found = {one.name: one.higher if one.ranked else None for one in options.measures()[0]}
    expected = {"accuracy": True, "loss": False, "r2": True}
    both = {f"{part}_{name}": up for part in ("val", "test") for name, up in expected.items()}
    assert found == {**both, "federation/client_mean": None}
