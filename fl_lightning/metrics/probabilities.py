"""Give metrics of classes probabilities, because of what a module says its predictions are and not of how a batch looks."""

from __future__ import annotations

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError

_OF_PROBABILITIES = ("MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss")
"""The metrics of many classes that read more than the order of the scores; subclasses included."""


def as_probabilities(metric: Metric, predictions: Tensor, target: Tensor, module: object) -> Tensor:
    """Return probabilities for a metric that compares them, and other metrics' predictions unchanged.

    torchmetrics takes scores for logits if some of an update are outside [0, 1], so each client, batch and resample would
    decide anew. Here the module's ``predictions_are``, ``"logits"`` or ``"probabilities"``, decides for all.

    Args:
        metric: the metric.
        predictions: the module's predictions, shape (N, ...); for a metric of two classes also of both, shape (N, 2).
        target: the true classes, shape (N, ...).
        module: the module.

    Raises:
        ConfigurationError: if the module does not say what its predictions are, or they are something else.
    """
    kind = next(filter(None, map(_kind, metric.modules())), "")  # also of the metric inside a wrapper
    refused = target.is_floating_point() and getattr(metric, "validate_args", False)  # by the metric, with its own words
    if not kind or refused or not predictions.is_floating_point():
        return predictions
    said, name, measure = _said(module), type(module).__name__, type(metric).__name__
    if said not in ("logits", "probabilities"):
        raise ConfigurationError(
            f"{measure} compares probabilities, but {name} does not say whether its predictions are. Give {name} the "
            'attribute `predictions_are = "logits"`, or "probabilities".'
        )
    outputs = predictions.shape[1] if kind == "Binary" and predictions.dim() == target.dim() + 1 else 0
    if said == "logits":
        predictions = predictions.softmax(1) if kind == "Multiclass" or outputs == 2 else predictions.sigmoid()
    if outputs in (1, 2):
        predictions = predictions[:, -1]
    if not bool(((predictions >= 0) & (predictions <= 1)).all()):
        raise ConfigurationError(
            f"{name} says that its predictions are {said}, but they give {measure} probabilities from "
            f"{float(predictions.min()):.3g} to {float(predictions.max()):.3g}. Set its `predictions_are` to what they are; "
            "NaN is of a model that has diverged."
        )
    return predictions


def _kind(metric: object) -> str:
    """Return ``Binary``, ``Multilabel`` or ``Multiclass`` if a metric compares such probabilities; otherwise nothing."""
    if getattr(metric, "takes_probabilities", False):
        return "Binary"
    for base in type(metric).__mro__:
        if base.__name__.startswith("Binary"):
            return "Binary"
        if base.__module__.startswith("torchmetrics.") and base.__name__.startswith("Multilabel"):
            return "Multilabel"
        if base.__name__ in _OF_PROBABILITIES:
            return "Multiclass"
    return ""


def _said(module: object) -> object:
    """Return what a module says that its predictions are, unless a subclass returns others without saying what these are."""
    for holder in (module, *type(module).__mro__):
        if "predictions_are" in vars(holder):
            return vars(holder)["predictions_are"]
        if "predictions_and_target" in vars(holder):
            break
    return None
