"""Evaluate models on the server's validation set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torchmetrics import Metric

from fl_lightning.clients.evaluate import STRATEGY_METRIC, ModelEvaluation
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ServerModel
from fl_lightning.settings.server_evaluation import ServerEvaluation
from fl_lightning.types import Snapshot

_BATCH_SIZES = (100, 250, 500, 1000, 2000)


def require_server_set(
    metric: str | Metric,
    data: FederatedDataModule,
    limit_batches: int | float,
    setting: str = STRATEGY_METRIC,
    module: LightningModule | None = None,
) -> None:
    """Refuse a metric on the server's validation set if the server does not have one, or the module does not log any.

    Raises:
        ConfigurationError: if the server has no validation set, or the module no ``validation_step`` to log the metric in.
    """
    if module is not None and isinstance(metric, str) and not is_overridden("validation_step", module):
        raise ConfigurationError(
            f"'{setting}' needs {metric}, but {type(module).__name__} has no 'validation_step' to log it in. Define one, set "
            f"'{setting}' to a torchmetrics metric, or use a strategy that needs no validation, such as FedAvg."
        )
    if limit_batches == 0 or not data.has_validation_set:
        raise ConfigurationError(
            f"'{setting}' needs {metric if isinstance(metric, str) else type(metric).__name__} on the server's validation set, "
            "but the server has none. Add a 'val_dataloader' to your datamodule and keep 'trainer.limit_val_batches' above 0, "
            "or use a strategy that needs no validation set, such as FedAvg."
        )


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
            self._server_view = self._choose_view(partial(score, module))
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

    def _choose_view(self, score: Callable[[LightningDataModule], float]) -> LightningDataModule:
        """Return the server's set with the batch size in the settings; with ``auto``, choose the fastest one here."""
        examples, size = self.settings.examples, self.settings.batch_size
        if size != "auto":
            return self._data.server_view(examples, size, self._seed)
        if self._limit != 1.0:
            raise ConfigurationError(
                "'federation.server_evaluation.batch_size' is 'auto', but 'trainer.limit_val_batches' counts batches, so the "
                "batch size would change the set of examples. Set 'federation.server_evaluation.examples' instead of the "
                "limit, or set the batch size to a number."
            )
        seconds: dict[int, float] = {}
        own = int(getattr(self._data.server_view(examples, None, self._seed).val_dataloader(), "batch_size", None) or 100)
        for candidate in sorted({own, *(size for size in _BATCH_SIZES if size < self.num_server_examples)}):
            view = self._data.server_view(examples, candidate, self._seed)
            try:
                score(view)
                begun = time.perf_counter()
                score(view)
                seconds[candidate] = time.perf_counter() - begun
            except torch.OutOfMemoryError:
                break
        if not seconds:
            return self._data.server_view(examples, None, self._seed)
        fastest = min(seconds, key=lambda candidate: seconds[candidate])
        rank_zero_info(f"Evaluation on the server's set uses batches of {fastest}, the fastest of {sorted(seconds)}.")
        return self._data.server_view(examples, fastest, self._seed)

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
