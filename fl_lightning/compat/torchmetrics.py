"""Private names of torchmetrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_sum

from fl_lightning.compat.private import Private

_LATEST = Private("torchmetrics", "torchmetrics.Metric", "_forward_cache")
_DEFAULTS = Private("torchmetrics", "torchmetrics.Metric", "_defaults", "copies every state of a metric to get their names")
_REDUCTIONS = Private("torchmetrics", "torchmetrics.Metric", "_reductions")


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


def summed_states(metric: Metric) -> dict[str, Tensor] | None:
    """Return a metric's states by name if all of them are tensors that torchmetrics adds up over processes; otherwise None.

    Raises:
        VersionError: if torchmetrics keeps elsewhere how it joins states.
    """
    reductions: Mapping[str, Any] = _REDUCTIONS.require("Pooling a metric over clients", metric)
    states = metric.metric_state
    if not states or any(reductions.get(name) is not dim_zero_sum for name in states):
        return None
    tensors = {name: state for name, state in states.items() if isinstance(state, Tensor)}
    return tensors if len(tensors) == len(states) else None
