"""Scoring models: clients' on the server's validation set, any on a client's examples."""

from __future__ import annotations

import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.attacks.backdoor import Backdoor
from fl_lightning.clients.inner_trainer import inner_trainer, quiet
from fl_lightning.clients.session import keep_metrics_to_this_process, scalar_metrics
from fl_lightning.data.client_datasets import Part
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.metrics.update import update_metric
from fl_lightning.settings.server_evaluation import ServerEvaluation

_STRATEGY = "federation.strategy.metric"
_BACKDOOR = "federation.attackers.backdoor"
_BATCH_SIZES = (100, 250, 500, 1000, 2000)


class ModelEvaluation:
    """Evaluators one metric of models, on this rank.

    Args:
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        setting: the setting that asks for it, for messages.
        precision: as Lightning's Trainer takes it.
        device: where to evaluate.
        limit_batches: as ``limit_val_batches`` of a Trainer.
        logger: whether the module finds a (silent) logger.
        inference_mode: as the outer Trainer's: whether no gradient can be had in validation.
    """

    def __init__(
        self,
        metric: str | Metric,
        setting: str,
        precision: str,
        device: torch.device,
        limit_batches: int | float = 1.0,
        logger: bool = False,
        inference_mode: bool = True,
    ) -> None:
        self.metric = metric
        self._setting = setting
        if isinstance(metric, Metric):
            self.metric = metric.to(device)
            metric.distributed_available_fn = lambda: False  # each rank scores models of its own
        self._reload = _Reload()
        self._trainer = inner_trainer(
            device,
            [self._reload],
            logger=logger,
            precision=precision,
            limit_val_batches=limit_batches,
            inference_mode=inference_mode,
        )

    def score(self, module: LightningModule, data: LightningDataModule) -> float:
        """The metric of the model on the data's validation set.

        Raises:
            ConfigurationError: if the module does not log the metric in validation; it lists what it does log.
        """
        self._reload.remember(module)
        scored = _Scorer(module, self.metric, self._setting) if isinstance(self.metric, Metric) else module
        with quiet(), torch.random.fork_rng(devices=[]):
            self._trainer.validate(scored, datamodule=data, verbose=False)
        logged = scalar_metrics(self._trainer.callback_metrics)
        name = "score" if isinstance(self.metric, Metric) else self.metric
        if name not in logged:
            raise ConfigurationError(
                f"Models are measured by {name!r}, which {type(module).__name__} does not log in validation. It logs: "
                f"{', '.join(sorted(logged)) or 'nothing'}. Set '{self._setting}' to one of these, "
                f"or to a torchmetrics class by its class_path.{did_you_mean(str(name), logged)}"
            )
        return logged[name]


def require_server_set(
    metric: str | Metric, data: FederatedDataModule, limit_batches: int | float, setting: str = _STRATEGY
) -> None:
    """Refuse a metric on the server's validation set if the server has no such set.

    Raises:
        ConfigurationError: saying what to give.
    """
    if limit_batches == 0 or not data.has_validation_set:
        raise ConfigurationError(
            f"'{setting}' measures models by {metric if isinstance(metric, str) else type(metric).__name__} on the server's "
            "validation set, and there is none. Give your datamodule a 'val_dataloader' and leave "
            "'trainer.limit_val_batches' above 0, or use a strategy that needs none, such as FedAvg."
        )


class Evaluators:
    """All that a federation measures of models, each by a Trainer that is built once.

    Args:
        data: holds the server's validation set and the clients' examples.
        precision: as Lightning's Trainer takes it.
        device: where to evaluate.
        limit_batches: of the server's set, as the outer Trainer's ``limit_val_batches``.
        logger: whether the module finds a (silent) logger.
        inference_mode: as the outer Trainer's: whether no gradient can be had in validation.
        server: what measuring on the server's set may cost.
        seed: of the federation.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        precision: str,
        device: torch.device,
        limit_batches: int | float,
        logger: bool,
        inference_mode: bool = True,
        server: ServerEvaluation = ServerEvaluation(),  # noqa: B008 (frozen)
        seed: int = 0,
    ) -> None:
        self._data, self.server_evaluation, self._seed = data, server, seed
        self._server_view: LightningDataModule | None = None
        self._num_server_examples: int | None = None
        self._triggered: tuple[Metric, LightningDataModule] | None = None
        self._limit = limit_batches
        self._flags: dict[str, Any] = {
            "precision": precision,
            "device": device,
            "logger": logger,
            "inference_mode": inference_mode,
        }
        self._evaluations: dict[tuple[object, bool], ModelEvaluation] = {}

    def on_server(self, module: LightningModule, metric: str | Metric, setting: str = _STRATEGY) -> float:
        """A metric of a model on the server's validation set."""
        evaluation = self._evaluation(metric, setting, server=True)
        if self._server_view is None:
            self._server_view = self._choose_view(module, evaluation)
        return evaluation.score(module, self._server_view)

    def backdoor_success(self, module: LightningModule, backdoor: Backdoor) -> float:
        """The share, in [0, 1], of the server's images of other classes that a model takes for the target, the trigger on."""
        if self._triggered is None:
            self._triggered = _Agreement(), self._data.server_view(self.server_evaluation.examples, None, self._seed, backdoor)
        metric, view = self._triggered
        return self._evaluation(metric, _BACKDOOR, server=True).score(module, view)

    @staticmethod
    def _server_precision(local: str, wanted: str) -> str:
        """The wanted precision, unless the clients' weights are kept in another dtype, which evaluation would change."""
        if local.endswith("-true") and local != "32-true":
            raise ConfigurationError(
                f"'federation.server_evaluation.precision' is {wanted!r}, but the clients' models are kept in {local}. Leave "
                "it out, or set 'federation.local.precision' to 32-true or a mixed one."
            )
        return wanted

    @property
    def num_server_examples(self) -> int:
        """On which a model is measured, as far as the server's loader tells; 0 where it does not."""
        if self._num_server_examples is None:
            view = self._data.server_view(self.server_evaluation.examples, None, self._seed)
            loader = view.val_dataloader()
            try:
                self._num_server_examples = len(loader) * int(getattr(loader, "batch_size", None) or 0)
            except (TypeError, RuntimeError, NotImplementedError):
                self._num_server_examples = 0
        return self._num_server_examples

    def _choose_view(self, module: LightningModule, evaluation: ModelEvaluation) -> LightningDataModule:
        """The server's set as the settings say; with ``auto`` in batches of the size that is fastest here."""
        examples, size = self.server_evaluation.examples, self.server_evaluation.batch_size
        if size != "auto":
            return self._data.server_view(examples, size, self._seed)
        if self._limit != 1.0:
            raise ConfigurationError(
                "'federation.server_evaluation.batch_size' is 'auto', but 'trainer.limit_val_batches' counts batches: the "
                "choice would change what is measured. Use 'federation.server_evaluation.examples' instead of the limit, or a "
                "number."
            )
        seconds: dict[int, float] = {}
        own = int(getattr(self._data.server_view(examples, None, self._seed).val_dataloader(), "batch_size", None) or 100)
        for candidate in sorted({own, *(size for size in _BATCH_SIZES if size < self.num_server_examples)}):
            view = self._data.server_view(examples, candidate, self._seed)
            try:
                evaluation.score(module, view)
                begun = time.perf_counter()
                evaluation.score(module, view)
                seconds[candidate] = time.perf_counter() - begun
            except torch.OutOfMemoryError:
                break
        if not seconds:
            return self._data.server_view(examples, None, self._seed)
        fastest = min(seconds, key=lambda candidate: seconds[candidate])
        rank_zero_info(f"Evaluation on the server's set in batches of {fastest}: the fastest of {sorted(seconds)}.")
        return self._data.server_view(examples, fastest, self._seed)

    def on_client(
        self,
        module: LightningModule,
        metric: str | Metric,
        client: int,
        part: Part,
        setting: str = _STRATEGY,
    ) -> float:
        """A metric of a model on a part of a client's examples."""
        view = self._data.client_evaluation_view(client, part)
        return self._evaluation(metric, setting, server=False).score(module, view)

    def _evaluation(self, metric: str | Metric, setting: str, server: bool) -> ModelEvaluation:
        key = (metric if isinstance(metric, str) else id(metric), server)
        if key not in self._evaluations:
            if server:
                require_server_set(metric, self._data, self._limit, setting)
            flags = self._flags | {"limit_batches": self._limit if server else 1.0}
            if server and self.server_evaluation.precision is not None:
                flags["precision"] = self._server_precision(flags["precision"], self.server_evaluation.precision)
            self._evaluations[key] = ModelEvaluation(metric, setting, **flags)
        return self._evaluations[key]


class _Agreement(Metric):
    """The share of the target classes that a model predicts, of however many classes."""

    hits: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", torch.zeros((), dtype=torch.int64))
        self.add_state("total", torch.zeros((), dtype=torch.int64))

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Logits, shape (N, C), and classes, shape (N,)."""
        self.hits += (predictions.argmax(dim=1) == target).sum()
        self.total += target.numel()

    def compute(self) -> Tensor:
        """From 0 to 1."""
        return self.hits / self.total


class _Reload(Callback):
    """Validation calls a module's ``setup`` again; where that builds a new network, give it the trained weights back."""

    def remember(self, module: LightningModule) -> None:
        """Keep what the next validation must find."""
        self._module = module
        rebuilt = is_overridden("setup", module) or is_overridden("configure_model", module)
        self._trained = {name: t.detach().clone() for name, t in module.state_dict().items()} if rebuilt else None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give it back, after ``setup``."""
        keep_metrics_to_this_process(self._module)
        if self._trained is not None:
            self._module.load_state_dict(self._trained)


class _Scorer(LightningModule):
    """Validates another module by a metric of (predictions, target), in place of what it logs itself."""

    def __init__(self, module: LightningModule, metric: Metric, setting: str) -> None:
        super().__init__()
        self.module = module
        self.metric = metric
        self._setting = setting
        for hook in ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"):
            if is_overridden(hook, module):
                vars(self)[hook] = getattr(module, hook)

    def on_validation_epoch_start(self) -> None:
        """Forget the last model."""
        self.metric.reset()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add a batch of (input, target)."""
        if not (isinstance(batch, list | tuple) and len(batch) >= 2 and isinstance(batch[1], Tensor)):
            raise ConfigurationError(
                f"A torchmetrics metric as '{self._setting}' needs batches of (input, target), but got a "
                f"{type(batch).__name__}. Name a metric that your module logs in validation instead."
            )
        compare = getattr(self.module, "predictions_and_target", None)  # what the module itself measures, where it says so
        predictions, target = (self.module(batch[0]), batch[1]) if compare is None else compare(batch)
        update_metric(self.metric, predictions, target, self._setting)

    def on_validation_epoch_end(self) -> None:
        """Log the score."""
        self.log("score", self.metric.compute())
