"""Evaluate models on the server's validation set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from torchmetrics import Metric

from fl_lightning.clients.evaluate import STRATEGY_METRIC, ModelEvaluation
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.core.option import require_server_set
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ServerModel
from fl_lightning.settings.local_training import Place
from fl_lightning.settings.server import ServerEvaluation
from fl_lightning.types import Snapshot


class Evaluators:
    """Evaluate models on the server's validation set.

    Args:
        resident: the module into which models are loaded.
        data: the data, with the server's validation set.
        settings: the settings of the evaluation at the server.
        place: where models are evaluated, and in which precision unless the settings name another.
        limit_batches: the limit on the server's batches, as the outer Trainer's ``limit_val_batches``.
        seed: the seed of the federation.
    """

    def __init__(
        self,
        resident: ResidentModel,
        data: FederatedDataModule,
        settings: ServerEvaluation,
        place: Place,
        *,
        limit_batches: int | float,
        seed: int,
    ) -> None:
        self._resident, self._data, self.settings, self._seed = resident, data, settings, seed
        self._server_view: LightningDataModule | None = None
        self._num_server_examples: int | None = None
        self._changed: dict[str, LightningDataModule] = {}
        self._limit, self._place = limit_batches, place
        self._evaluation: ModelEvaluation | None = None

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""
        self._resident.publish(model)

    def score(self, model: Snapshot | None, metric: str | Metric, setting: str = STRATEGY_METRIC) -> float:
        """Return the score of a model on the server's validation set.

        Args:
            model: the model; None for the global one.
            metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
            setting: the setting that names the metric, for messages.
        """
        score = self._scorer(metric, setting)
        module = self._resident.load(model)
        if self._server_view is None:
            self._server_view = self._data.server_view(self.settings.examples, self.settings.batch_size, self._seed)
        return score(module, self._server_view)

    def score_changed(self, metric: Metric, changed: Callable[[Any], Any], setting: str) -> float:
        """Return the score of the global model on the server's validation set with its batches changed.

        Args:
            metric: the torchmetrics metric, the same object in each call.
            changed: a function from the loader of the set to the one to read, used once for each setting.
            setting: the setting that asks for the score.
        """
        if setting not in self._changed:
            self._changed[setting] = self._data.server_view(self.settings.examples, None, self._seed, changed)
        return self._scorer(metric, setting)(self._resident.load(), self._changed[setting])

    @property
    def num_server_examples(self) -> int:
        """Return the number of examples for one evaluation at the server; 0 if the loader does not tell."""
        if self._num_server_examples is None:
            view = self._data.server_view(self.settings.examples, None, self._seed)
            loader = view.val_dataloader()
            try:
                self._num_server_examples = len(loader) * int(getattr(loader, "batch_size", None) or 0)
            except (TypeError, RuntimeError, NotImplementedError):
                self._num_server_examples = 0
        return self._num_server_examples

    def _scorer(self, metric: str | Metric, setting: str) -> Callable[[LightningModule, LightningDataModule], float]:
        require_server_set(metric, self._data, self._limit, setting)
        if self._evaluation is None:
            place, wanted = self._place, self.settings.precision
            if wanted is not None:
                place = replace(place, precision=_server_precision(place.precision, wanted))
            self._evaluation = ModelEvaluation(place, self._limit)
        return partial(self._evaluation.score, metric, setting)


def _server_precision(local: str, wanted: str) -> str:
    """Return the wanted precision, or refuse it if evaluation would change the dtype of the clients' weights."""
    if local.endswith("-true") and local != "32-true":
        raise ConfigurationError(
            f"'federation.server_evaluation.precision' is {wanted!r}, but the clients' models are stored in {local}. Remove "
            "it, or set 'federation.local.precision' to 32-true or a mixed precision."
        )
    return wanted
