"""Private names of torchmetrics."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torchmetrics import Metric

latest_value: Callable[[Metric], Any] = attrgetter("_forward_cache")
"""Return a metric's value for the last batch; torchmetrics returns it from ``forward``, and does not show it later."""


def state_names(metric: Metric) -> set[str]:
    """Return the names of a metric's states; the public ``metric_state`` copies every value."""
    return set(metric._defaults)
