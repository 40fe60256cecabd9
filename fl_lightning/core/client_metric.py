"""Name a metric that clients compute on examples of their own."""

from __future__ import annotations

from dataclasses import dataclass

from torchmetrics import Metric

from fl_lightning.messages import Part


@dataclass(frozen=True)
class ClientMetric:
    """Describe a metric that clients compute whenever the server orders it by its role.

    Attributes:
        role: its name in orders, which no other part of the federation uses.
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        part: the part of each client's examples on which models are evaluated.
    """

    role: str
    metric: str | Metric
    part: Part
