"""Evaluate models on the server's validation set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
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


@dataclass(eq=False)
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

    resident: ResidentModel
    data: FederatedDataModule
    settings: ServerEvaluation
    place: Place
    limit_batches: int | float
    seed: int

    def __post_init__(self) -> None:
        self._changed: dict[str, LightningDataModule] = {}

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""
        self.resident.publish(model)

    def score(self, model: Snapshot | None, metric: str | Metric, setting: str = STRATEGY_METRIC) -> float:
        """Return the score of a model on the server's validation set.

        Args:
            model: the model; None for the global one.
            metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
            setting: the setting that names the metric, for messages.
        """
        return self._scorer(metric, setting)(self.resident.load(model), self._server_view)

    @cached_property
    def _server_view(self) -> LightningDataModule:
        return self.data.server_view(self.settings.examples, self.settings.batch_size, self.seed)

    def score_changed(self, metric: Metric, changed: Callable[[Any], Any], setting: str) -> float:
        """Return the score of the global model on the server's validation set with its batches changed.

        Args:
            metric: the torchmetrics metric, the same object in each call.
            changed: a function from the loader of the set to the one to read, used once for each setting.
            setting: the setting that asks for the score.
        """
        if setting not in self._changed:
            self._changed[setting] = self.data.server_view(self.settings.examples, None, self.seed, changed)
        return self._scorer(metric, setting)(self.resident.load(), self._changed[setting])

    @cached_property
    def num_server_examples(self) -> int:
        """Return the number of examples for one evaluation at the server; 0 if the loader does not tell."""
        loader = self.data.server_view(self.settings.examples, None, self.seed).val_dataloader()
        try:
            return len(loader) * int(getattr(loader, "batch_size", None) or 0)
        except (TypeError, RuntimeError, NotImplementedError):
            return 0

    def _scorer(self, metric: str | Metric, setting: str) -> Callable[[LightningModule, LightningDataModule], float]:
        require_server_set(metric, self.data, self.limit_batches, setting)
        return partial(self._evaluation.score, metric, setting)

    @cached_property
    def _evaluation(self) -> ModelEvaluation:
        local, wanted = self.place.precision, self.settings.precision
        if wanted is not None and local.endswith("-true") and local != "32-true":  # it would change the weights' dtype
            raise ConfigurationError(
                f"'federation.server_evaluation.precision' is {wanted!r}, but the clients' models are stored in {local}. "
                "Remove it, or set 'federation.local.precision' to 32-true or a mixed precision."
            )
        return ModelEvaluation(replace(self.place, precision=wanted or local), self.limit_batches)
