"""Private names of torchmetrics."""

from __future__ import annotations

from typing import Any

from torchmetrics import Metric

from fl_lightning.compat.private import Private

_LATEST = Private("torchmetrics", "torchmetrics.Metric", "_forward_cache")
_DEFAULTS = Private("torchmetrics", "torchmetrics.Metric", "_defaults", "copies every state of a metric to get their names")


def latest_value(metric: Metric) -> Any:
    """Return a metric's value for the last batch; torchmetrics returns it from ``forward``, and does not show it later.

    Raises:
        VersionError: if torchmetrics keeps it under another name, where Lightning does not find it either.
    """
    return _LATEST.require("Logging a metric object in each step", metric)


def state_names(metric: Metric) -> set[str]:
    """Return the names of a metric's states; the public ``metric_state`` copies every value."""
    defaults: Any = _DEFAULTS.get(None, metric)
    return set(metric.metric_state if defaults is None else defaults)
