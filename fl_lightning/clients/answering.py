"""Answer what a server asks a client besides training: the sums of its inputs, and questions about a model.

A question is answered from predictions on the client's examples: by a metric, with an interval and its sums.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.compat.torchmetrics import state_names, summed_states
from fl_lightning.data.input_statistics import input_moments
from fl_lightning.data.schema import categories_of
from fl_lightning.errors import ClientError, ConfigurationError, VersionError, add_note
from fl_lightning.functional.bootstrap import percentile_interval, resamples
from fl_lightning.functional.digest import digest
from fl_lightning.functional.exact_moments import Moments
from fl_lightning.functional.small_cells import curves_among, few, few_predicted, told_states
from fl_lightning.functional.small_counts import without_small
from fl_lightning.messages import EvalReport, Question
from fl_lightning.metrics.probabilities import as_probabilities
from fl_lightning.metrics.update import update_metric
from fl_lightning.models.standardized import Standardized, standardized_parts

if TYPE_CHECKING:
    from fl_lightning.core.option import SitePlace
    from fl_lightning.data.federated import FederatedDataModule

SETTING = "metrics"
"""The setting that names the metrics, for messages."""
NO_OWN = "this client has no model of its own yet"
"""The reason why there is no figure of a client's own model."""
MOST_POINTS = 10_000
"""The most numbers of a curve."""
_MOST_UNDEFINED = 0.05
"""The largest share of resamples without a value with which there still is an interval."""


class StoredPredictions(Metric):
    """Keep predictions and targets on the CPU, in place of a metric."""

    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def reset(self) -> None:
        """Forget what was kept."""
        super().reset()
        self._kept = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep a batch."""
        wide = preds.float() if preds.dtype in (torch.float16, torch.bfloat16) else preds
        self._kept.append((wide.detach().cpu().clone(), target.detach().cpu().clone()))

    def compute(self) -> Tensor:
        """Return 0: the predictions are what counts."""
        return torch.zeros(())

    def take(self) -> tuple[Tensor, Tensor]:
        """Return all predictions and targets, and forget them."""
        predictions, targets = zip(*self._kept, strict=True)
        self.reset()
        return torch.cat(predictions), torch.cat(targets)


@dataclass(frozen=True)
class Questions:
    """Answer questions.

    Attributes:
        build: returns the metric that values describe.
        least: the fewest persons, or examples if the data name none, behind a figure, a class and a point of a curve.
    """

    build: Callable[[Mapping[str, Any]], Metric]
    least: int = 1

    def answer(
        self, question: Question, client: int, predictions: Tensor, target: Tensor, persons: Tensor | None, module: object
    ) -> EvalReport:
        """Return the answer.

        Args:
            question: the question.
            client: the client's id.
            predictions: the model's predictions on the client's examples, shape (N, ...).
            target: the true values, shape (N, ...).
            persons: the person of each example, shape (N,); None if each is a person of its own.
            module: the module, which says whether predictions are logits or probabilities.

        Raises:
            ConfigurationError: if the metric cannot compare them.
        """
        metric = self.build(question.metric)
        predictions = as_probabilities(metric, predictions, target, module)
        known = torch.arange(len(target)) if persons is None else torch.unique(persons, return_inverse=True)[1]
        n = torch.unique(known).numel()
        reason = self._too_few(n, target, known)
        if reason:
            return EvalReport(client, math.nan, reason=reason)
        with _quiet():
            metric.reset()
            update_metric(metric, predictions, target, SETTING)
            value = computed(metric)
        states, pooled = _states_of(metric)
        most = int(torch.bincount(known).max())
        rows = self.least * most if self.least > 1 else 1  # in so many rows there are enough persons, whoever they are
        if few_predicted(states, rows, _thresholds(metric)):
            return EvalReport(client, math.nan, reason=f"fewer than {self.least} examples are predicted as one class")
        sums = told_states(states, rows, _thresholds(metric))
        if not (isinstance(value, Tensor) and value.numel() == 1):
            return _curve(client, n, metric, sums, pooled)
        interval, why = _interval(metric, question, predictions, target, known)
        if any(bool(state.isnan().any()) for state in sums.values()):
            sums, pooled = {}, f"a count of fewer than {self.least}"
        if not (why or math.isfinite(float(value))):
            why = "the metric has no value on these examples, such as an area without examples of a class"
        return EvalReport(client, float(value), n, interval, sums=sums, reason=why, pooled=pooled)

    def _too_few(self, n: int, target: Tensor, persons: Tensor) -> str:
        """Return why nothing may be told; empty if something may."""
        if n < self.least:
            return f"fewer than {self.least} examples or persons"
        if target.is_floating_point() or self.least <= 1:
            return ""
        columns = target.reshape(len(target), -1).T if target.dim() <= 2 else [target.reshape(len(target), -1)]
        classes = (column == label for column in columns for label in torch.unique(column))
        for there in classes:
            count = torch.unique(persons[there if there.dim() == 1 else there.any(1)]).numel()
            if few(torch.tensor(count), self.least):
                return f"a class of fewer than {self.least} examples or persons"
        return ""


def computed(metric: Metric) -> Any:
    """Return what a metric's ``compute`` returns, and NaN for an area under a curve that does not exist.

    Without examples of a class, or with no others, torchmetrics reports such an area as 0, and warns or does not.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = metric.compute()
    if isinstance(value, Tensor) and value.numel() == 1:
        states = {name: getattr(metric, name) for name in state_names(metric)}
        curves = curves_among(states, _thresholds(metric))
        lacks = any(bool((states[name][0].sum(-1) == 0).any()) for name in curves)
        if lacks or any(word in str(one.message) for one in told for word in ("meaningless", "undefined")):
            return value.new_full((), math.nan)
    return value


def _thresholds(metric: Metric) -> int:
    """Return the number of a curve's thresholds; 0 if the metric is no curve on a grid."""
    grid = getattr(metric, "thresholds", None)
    return len(grid) if isinstance(grid, Tensor) else 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Let metrics warn of nothing: a resample without a class is left out, and a state is set without an update."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _states_of(metric: Metric) -> tuple[dict[str, Tensor], str]:
    """Return a metric's states if they add up over clients, or why they do not."""
    try:
        states = summed_states(metric)
    except VersionError as error:
        return {}, str(error)
    if states is None:
        return {}, "the metric is not a function of sums"
    return {name: state.detach().cpu() for name, state in states.items()}, ""


def value_of_sums(metric: Metric, sums: Mapping[str, Tensor]) -> Any:
    """Return a metric's value from its states, such as the sums of those of all clients.

    Args:
        metric: a metric, which is not changed.
        sums: the states by name, float64; NaN in one makes what follows from it NaN.
    """
    fresh = deepcopy(metric)
    fresh.reset()
    for name, state in sums.items():
        setattr(fresh, name, state)
    return computed(fresh)


def points_of(value: Any) -> tuple[Tensor, ...]:
    """Return the tensors that a metric's ``compute`` returned, as float64.

    Raises:
        ClientError: if they are no tensors, or too many numbers.
    """
    tensors = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, Tensor) for one in tensors) or sum(one.numel() for one in tensors) > MOST_POINTS:
        raise ClientError(f"The metric returns no tensors, or more than {MOST_POINTS} numbers.")
    return tuple(one.detach().cpu().double() for one in tensors)


def _curve(client: int, n: int, metric: Metric, sums: Mapping[str, Tensor], pooled: str) -> EvalReport:
    """Return the points of a curve: those that follow from states that may be told."""
    if pooled:
        name = type(metric).__name__
        reason = f"the points of {name} are those of single examples; set its 'thresholds' to a number, for a common grid"
        return EvalReport(client, math.nan, reason=reason, pooled=reason)
    try:
        points = points_of(value_of_sums(metric, sums))
    except ClientError as error:
        return EvalReport(client, math.nan, reason=str(error), pooled=str(error))
    return EvalReport(client, math.nan, n, points=points, sums=sums)


def _interval(
    metric: Metric, question: Question, predictions: Tensor, target: Tensor, persons: Tensor
) -> tuple[tuple[float, float] | None, str]:
    """Return the percentile interval, or why there is none.

    The draws follow from the predictions and targets alone: the same model on the same data gives the same interval, and
    asking again tells nothing new.
    """
    if not question.resamples:
        return None, ""
    seed = int(digest([predictions, target, persons])[:15], 16)
    values = []
    if getattr(metric, "validate_args", False):
        metric.validate_args = False  # these are values that it has accepted
    with _quiet():
        for rows in resamples(persons, question.resamples, seed):
            metric.reset()
            metric.update(predictions[rows], target[rows])
            values.append(float(computed(metric)))
    found = torch.tensor(values, dtype=torch.float64)
    found = found[found.isfinite()]
    if len(found) < (1 - _MOST_UNDEFINED) * question.resamples:
        return None, "no interval: more than 5 % of the resamples have no value"
    return percentile_interval(found, question.level), ""


def refuse_questions(values: Mapping[str, Any]) -> Metric:
    """Refuse to build a metric where no questions are answered.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError("No metric may be asked for here by its class.")


INPUTS = "sums of the inputs"
"""The name of the counts, the totals and the totals of the squares of all channels, one after the other."""


def told_moments(data: FederatedDataModule, client: int, part: Standardized) -> Moments:
    """Return the sums that a client of a simulation tells, without those over few rows.

    Args:
        data: the data of all clients.
        client: the client.
        part: the part of the module whose inputs are measured.
    """
    try:
        own = input_moments(data, client)
        return without_small(own, categories_of(data.datamodule, len(own.counts)), part.min_count)
    except Exception as error:
        add_note(error, f"In the statistics of client {data.client_name(client)}.")
        raise


def numbers_to_add(what: str, client: int, module: LightningModule, data: Any, site: SitePlace | None) -> tuple[int, ...]:
    """Return the whole numbers of a client that hooks add up; see ``ServerHooks.add_up``.

    Raises:
        ClientError: if there are none of this name.
        DataError: if a simulated client has another number of channels than the module.
    """
    if what != INPUTS:
        raise ClientError("The server adds up numbers that clients do not have.")
    if site is None:
        part = standardized_parts(module)[0]
        found = told_moments(data, client, part)
        part.require_channels(found)
    else:
        found = site.moments()
    return (*found.counts, *found.totals, *found.squares)
