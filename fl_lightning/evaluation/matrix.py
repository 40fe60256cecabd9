"""Ask every client about every model, and pool what is a function of sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.answering import points_of, value_of_sums
from fl_lightning.core.federation import ClientPool
from fl_lightning.errors import ClientError
from fl_lightning.evaluation.models import STAYS, Model
from fl_lightning.messages import EvalOrder, EvalReport, Part, Question

ALL = "all"
"""The name of the column that pools all sites."""


@dataclass(frozen=True)
class Cell:
    """Hold a figure of the matrix.

    Attributes:
        model: the name of the model.
        metric: the name of the metric.
        site: the name of the site, or :data:`ALL`.
        report: the answer.
    """

    model: str
    metric: str
    site: str
    report: EvalReport


@dataclass(frozen=True)
class Asking:
    """Ask a pool about models.

    Attributes:
        pool: the pool.
        publish: publishes a model's tensors, or the model whose rest is at the clients, and returns its version.
        names: the names of the clients.
        part: the part of their examples.
        questions: the questions by name of the metric.
        metrics: the metrics by name, to compute the pooled values.
    """

    pool: ClientPool
    publish: Callable[[Model], int]
    names: Sequence[str]
    part: Part
    questions: Mapping[str, Question]
    metrics: Mapping[str, Metric]

    def cells(self, models: Sequence[Model]) -> list[Cell]:
        """Return the cells of all models."""
        return [cell for model in models for cell in self._of(model)]

    def _of(self, model: Model) -> list[Cell]:
        clients = range(len(self.names))
        at_site = model.client is not None and not model.tensors and not model.reason
        reasons = {k: model.reason or STAYS for k in clients if model.reason or (at_site and k != model.client)}
        version = 0 if len(reasons) == len(clients) else self.publish(model)
        found = []
        for metric, question in self.questions.items():
            asked = [k for k in clients if k not in reasons]
            orders = [EvalOrder(version, k, self.part, "question", own=at_site, question=question) for k in asked]
            told = dict(zip(asked, self.pool.evaluate(orders), strict=True)) if orders else {}
            reports = [told.get(k) or EvalReport(k, math.nan, reason=reasons[k]) for k in clients]
            found += [Cell(model.name, metric, self.names[k], report) for k, report in enumerate(reports)]
            found.append(Cell(model.name, metric, ALL, pooled(self.metrics[metric], reports, self.names)))
        return found


def pooled(metric: Metric, reports: Sequence[EvalReport], names: Sequence[str]) -> EvalReport:
    """Return the metric on the examples of all clients together, from the sums of their states.

    An average of their values would be another number, so there is none if one of them tells no sums.

    Args:
        metric: the metric.
        reports: the clients' answers.
        names: their names.
    """
    without = [(names[one.client], one.pooled or one.reason or "no sums") for one in reports if not one.sums]
    if without:
        why = ", ".join(dict.fromkeys(reason for _, reason in without))
        who = ", ".join(name for name, _ in without[:3]) + (", ..." if len(without) > 3 else "")
        return EvalReport(-1, math.nan, reason=f"not told by {who}: {why}"[:400])
    try:
        sums = _added(metric, [one.sums for one in reports])
        value = value_of_sums(metric, sums)
        n = sum(one.n for one in reports)
        if isinstance(value, Tensor) and value.numel() == 1:
            return EvalReport(-1, float(value), n)
        return EvalReport(-1, math.nan, n, points=points_of(value))
    except (ClientError, RuntimeError, ValueError, TypeError, IndexError) as error:  # a site may send other shapes
        return EvalReport(-1, math.nan, reason=f"the sums of the sites do not fit the metric ({type(error).__name__})")


def _added(metric: Metric, every: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sums of all clients' states, in the order of clients."""
    expected = metric.metric_state
    added: dict[str, Tensor] = {}
    for name, state in expected.items():
        parts = [sums[name] if name in sums else torch.empty(0) for sums in every]
        if not isinstance(state, Tensor) or any(part.shape != state.shape for part in parts):
            raise ClientError("The sums of a site have other names or shapes.")
        added[name] = torch.stack(parts).sum(0)
    return added
