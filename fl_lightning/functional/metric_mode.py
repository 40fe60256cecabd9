"""Decide whether higher or lower values of a metric are better, in one place for every rule that compares by a metric."""

from __future__ import annotations

import re
from typing import Literal

from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError, did_you_mean, nearest, require

Mode = Literal["max", "min"]

_WORD = re.compile(r"[A-Za-z]+\d*")
_PART = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+\d*")  # of a word such as OverallAccuracy
_LOWER = re.compile(r".*(loss|error).*|nll|perplexity|r?mse|r?msle|mae|[sw]?mape")
_HIGHER = re.compile(
    r"acc(uracy)?\d*|m?ap|auc|auprc|auroc|dice|f1|m?iou|jaccard|kappa|mcc|precision|r2|recall|sensitivity|specificity"
)

_FULL = ("accuracy", "auroc", "dice", "error", "kappa", "loss", "precision", "recall", "sensitivity", "specificity")
"""Words that are long enough to be recognised with a letter wrong."""


def known_direction(metric: str | Metric) -> bool | None:
    """Return whether higher is better, if the metric itself shows it.

    Args:
        metric: a torchmetrics metric, which declares it in ``higher_is_better``, or the name of a logged figure. The words of
            a name decide: lower is better if one contains 'loss' or 'error' or is an abbreviation such as mae or rmse; higher
            is better if one is an accuracy, f1, auroc, precision, recall or similar.

    Returns:
        None if the metric does not declare it, or if the name suggests neither or both.
    """
    if isinstance(metric, Metric):
        return metric.higher_is_better
    words = [word.lower() for word in (*_WORD.findall(metric), *_PART.findall(metric))]
    lower = any(_LOWER.fullmatch(word) for word in words)
    higher = any(_HIGHER.fullmatch(word) for word in words)
    return None if lower == higher else higher


def require_loss(loss: str | Metric) -> None:
    """Refuse a metric for which higher is better where a strategy needs a loss.

    Raises:
        ConfigurationError: naming the setting.
    """
    wanted = "a loss, for which lower is better"
    require(known_direction(loss) is not True, "federation.strategy.loss", wanted, loss)


def higher_is_better(metric: str | Metric, mode: Mode | None, setting: str) -> bool:
    """Return whether higher is better, by ``mode`` if it is set and otherwise by the metric.

    Args:
        metric: see :func:`known_direction`.
        mode: ``max`` or ``min``; None to use the metric's direction.
        setting: the name of ``mode``, as the user types it.

    Raises:
        ConfigurationError: if the mode is neither, or is None and the metric's direction is unknown.
    """
    require(mode in ("max", "min", None), setting, "max, min or null", mode)
    if mode is not None:
        return mode == "max"
    direction = known_direction(metric)
    if direction is None and isinstance(metric, str) and (near := _did_you_mean(metric)):
        raise ConfigurationError(
            f"'{metric}' is not the name of a metric of known direction.{near} If it is right, set '{setting}' to max if "
            "higher is better, or to min if lower is."
        )
    if direction is None:
        what = f"the name '{metric}' does not" if isinstance(metric, str) else f"{type(metric).__name__} does not"
        raise ConfigurationError(
            f"'{setting}' is not set, and {what} tell whether higher or lower is better. Set '{setting}' to max if higher is "
            "better and to min if lower is, or correct the metric."
        )
    return direction


def _did_you_mean(metric: str) -> str:
    """Return ' Did you mean ...?' for a name with a misspelled word, or nothing."""
    fixed = {metric.replace(word, right) for word in _WORD.findall(metric) for right in nearest(word, _FULL, cutoff=0.8)}
    return did_you_mean(metric, [name for name in fixed if known_direction(name) is not None])
