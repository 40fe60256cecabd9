"""Let a site answer questions about models: metrics from a list, as often as its policy allows, of data that stay the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torchmetrics import Metric

from fl_lightning.clients.answering import Questions
from fl_lightning.errors import WireError
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.flower.site.store import SiteRecord
from fl_lightning.functional.digest import digest
from fl_lightning.messages import EvalOrder, Part, Question, ServerModel
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.kept_file import read_kept

MOST_RESAMPLES = 10_000
"""The most resamples of a bootstrap."""
_LARGEST = 1000
_FILE = "evaluations.json"


def questions_at_site(policy: Policy) -> Questions:
    """Return what answers a server's questions within a policy."""

    def build(values: Mapping[str, Any]) -> Metric:
        policy.recipe.check(values, "metrics")
        return policy.recipe.build(values, Metric, "metrics")  # type: ignore[no-any-return]

    return Questions(build, policy.min_rows)


def check_question(order: EvalOrder, question: Question, policy: Policy) -> None:
    """Refuse a question before anything that it names is imported.

    Raises:
        RefusedError: naming the limit.
        WireError: if it is no question that a server asks.
    """
    if not 0 <= question.resamples <= MOST_RESAMPLES:
        raise RefusedError(f"The question asks for {question.resamples} resamples, but sites draw 0 to {MOST_RESAMPLES}.")
    if not 0 < question.level < 1 or order.tasks or order.model is not None:
        raise WireError("A question asks for a metric of the published model or the client's own, with a level in (0, 1).")
    if not isinstance(question.metric, Mapping) or "class_path" not in question.metric:
        raise RefusedError("The metric of a question must be a class with 'class_path'.")
    policy.recipe.check(question.metric, "metrics")
    _refuse_large(question.metric.get("init_args"))


def _refuse_large(value: Any) -> None:
    """Refuse settings of a metric that would fill this machine's memory."""
    listed = isinstance(value, list | tuple)
    if (len(value) if listed else value if isinstance(value, int) else 0) > _LARGEST:
        raise RefusedError(f"A setting of the metric is above {_LARGEST}, or a longer list, which would fill a site's memory.")
    for item in value.values() if isinstance(value, Mapping) else value if listed else ():
        _refuse_large(item)


class SiteQuestions:
    """Refuse questions whose answers would differ from earlier ones by few rows, over all federations.

    Such are questions about data that have changed, which the site's staff allows, and about one model with other thresholds.

    Args:
        folder: the site's folder.
        policy: what the site allows.
        record: keeps which data the site was asked about.
    """

    def __init__(self, folder: Path, policy: Policy, record: SiteRecord) -> None:
        self._path, self._policy, self._record = folder / _FILE, policy, record
        self._versions: dict[str, str] = {}

    def check(self, orders: Sequence[Any], model: ServerModel | None, data: SiteData, own: Callable[[int], Any]) -> None:
        """Check the questions among a server's orders, before they are answered.

        Args:
            orders: the orders.
            model: the published model.
            data: the site's data.
            own: returns the client's own model, which a server can have trained to anything: another one is another question.

        Raises:
            RefusedError: if the data have changed, or the thresholds of an answer about the same model.
        """
        asked = [order for order in orders if isinstance(order, EvalOrder) and order.question is not None]
        if not asked or model is None:
            return
        known = read_kept(self._path, "Restore it from a copy: it has the thresholds of the questions that were answered.")
        tensors = digest([dict(sorted(model.tensors.items())), dict(sorted(model.first.items()))])
        for order in asked:
            question = order.question
            assert question is not None
            answering = digest([dict(own(order.client))]) if order.own else ""
            about = self._version(order.part, data) + tensors + answering
            self._require_same_cuts(known.setdefault(about, []), question.metric)
        write_whole(self._path, json.dumps(known).encode())

    def _version(self, part: Part, data: SiteData) -> str:
        """Return a digest of a part's rows, which must be the one of the questions before."""
        if part not in self._versions:
            self._versions[part] = data.version(part)
        changed = f"The {part} examples of this site have changed since it answered questions about them, and the "
        self._record.keep_once(
            f"asked_{part}", self._versions[part], f"{changed}difference of two answers would tell about these rows."
        )
        return self._versions[part]

    def _require_same_cuts(self, before: list[list[float]], values: Mapping[str, Any]) -> None:
        """Refuse thresholds that lie between those of an earlier answer about the model: both would tell of the rows between.

        Thresholds of which one list contains the other tell no more than the longer one, which is without points of few rows.
        """
        metric: Any = self._policy.recipe.build(values, Metric, "metrics")
        found, bins = getattr(metric, "thresholds", getattr(metric, "threshold", None)), getattr(metric, "n_bins", None)
        if isinstance(bins, int):
            found = torch.linspace(0, 1, bins + 1)
        if found is None or (cuts := [round(cut, 6) for cut in torch.as_tensor(found).flatten().tolist()]) in before:
            return
        if any(set(cuts) - set(one) and set(one) - set(cuts) for one in before):
            raise RefusedError(
                f"This site has answered a question about this model with other thresholds ({len(before[0])} of them), and two "
                "such answers differ by the rows between. Ask with the same 'thresholds', or with some of them."
            )
        before.append(cuts)
