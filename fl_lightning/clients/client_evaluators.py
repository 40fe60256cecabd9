"""Evaluate models on the examples of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.answering import SETTING
from fl_lightning.clients.client_data import ClientData
from fl_lightning.clients.model_evaluation import ModelEvaluation
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.stored_predictions import StoredPredictions
from fl_lightning.messages import MetricRole, Part
from fl_lightning.types import Snapshot

STRATEGY_METRIC = "federation.strategy.metric"
"""The setting of a strategy's metric, for messages."""
Tensors = Mapping[str, Tensor]
Metrics = Mapping[MetricRole, tuple[str | Metric, str]]
"""The metric of each role, and the setting that names it, for messages."""


class ClientEvaluators:
    """Evaluate models on the examples of the clients in this process.

    Args:
        resident: the module into which models are loaded.
        data: the clients' examples.
        metrics: the metrics to compute, by role.
        own: returns the parameters and buffers that a client holds, with which models are evaluated on its examples.
        place: where they are evaluated, and in which precision.
    """

    def __init__(
        self, resident: ResidentModel, data: ClientData, metrics: Metrics, own: Callable[[int], Tensors], place: Place
    ) -> None:
        self._resident, self._data, self._metrics, self._own, self._place = resident, data, metrics, own, place
        self._evaluations: dict[str | int, ModelEvaluation] = {}

    def measures(self, role: MetricRole) -> bool:
        """Return whether a metric has this role."""
        return role in self._metrics

    def score(self, model: Snapshot | None, role: MetricRole, client: int, part: Part, own: Tensors | None = None) -> float:
        """Return the score of a model on a part of a client's examples.

        Args:
            model: the model; None for the global one.
            role: the role of the metric.
            client: the client whose examples to use.
            part: the part of the examples to use.
            own: other held tensors than those that the client has stored.

        Raises:
            ConfigurationError: if the module does not log the metric in validation.
        """
        metric, setting = self._metrics[role]
        key = metric if isinstance(metric, str) else id(metric)  # the table of metrics keeps it alive
        if key not in self._evaluations:
            self._evaluations[key] = ModelEvaluation(metric, setting, self._place)
        module = self._resident.load(model, self._own(client) if own is None else own)
        return self._evaluations[key].score(module, self._data.client_evaluation_view(client, part))

    def predictions(
        self, model: Snapshot | None, client: int, part: Part
    ) -> tuple[Tensor, Tensor, Tensor | None, LightningModule]:
        """Return predictions, targets and persons of a part of a client's examples, and the module; see :meth:`score`."""
        store = StoredPredictions()
        evaluation = ModelEvaluation(store, SETTING, self._place)
        module = self._resident.load(model, self._own(client))
        evaluation.score(module, self._data.client_evaluation_view(client, part))
        return *store.take(), self._data.evaluated_persons(client, part), module
