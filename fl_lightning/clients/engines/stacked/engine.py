"""The engine ``stacked``: clients of equal shape are trained at once, their parameters along an axis of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from fl_lightning.clients.engines.base import EngineJob, EngineSettings, Trained
from fl_lightning.clients.engines.fabric.engine import refuse_module
from fl_lightning.clients.engines.fabric.hooks import HOOKS
from fl_lightning.clients.engines.fabric.optimizer import batches_per_epoch
from fl_lightning.clients.engines.precision import fabric_precision
from fl_lightning.clients.engines.stacked.fit import StackedFit
from fl_lightning.clients.engines.stacked.step import StackedStep
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.errors import EngineError
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.settings.local_training import LocalTraining

_REFUSED_HOOKS = ("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "setup", "configure_model", "prepare_data")
_Member = tuple[EngineJob, LightningDataModule, Any]
_REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."


class StackedEngine:
    """Trains clients of equally many batches side by side, in stacks.

    A module whose hooks leave nothing behind but metrics and logs, and read no parameters, names them in a class attribute
    ``stacked_hooks``; they are called for each client, those of the start before any training. Other hooks of training are
    refused, and so is what has no form for a stack.

    Args:
        resident: the module in which they train.
        settings: how they train; detecting anomalies is refused.

    Raises:
        EngineError: for a module or settings that only another engine can follow.
    """

    side_by_side: ClassVar[bool] = True
    checks_between_steps: ClassVar[bool] = False
    pulls: ClassVar[bool] = False
    equals_trainer: ClassVar[bool] = False

    def __init__(self, resident: ResidentModel, settings: EngineSettings) -> None:
        module, local, device = resident.module, settings.local, settings.device
        if resident.builds_networks:
            raise EngineError(
                f"{type(module).__name__} builds its networks in 'setup' or 'configure_model', which stacked clients cannot "
                "share. Build them in '__init__', or set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        refuse_module(module, "stacked", _REFUSED_HOOKS)
        _refuse(module, local, settings.precision, settings.detect_anomaly)
        self._precision: Any = fabric_precision(settings.precision, device)
        if local.deterministic is not None:
            torch.use_deterministic_algorithms(local.deterministic)
        self._resident, self._settings = resident, settings
        self._precision.convert_module(module)
        module.to(device)
        largest = min(local.stack_size, settings.cohort or local.stack_size)
        self._step = StackedStep(module, self._precision.forward_context, largest, local.compile)

    def recover(self) -> None:
        """Drop what a client's error may have left behind, but keep the compiled graphs."""
        self._step.recover()

    def fit(self, jobs: Sequence[EngineJob]) -> Iterator[Trained]:
        """Train clients stack by stack; see :meth:`Engine.fit`."""
        local, fast = self._settings.local, self._settings.fast_dev_run
        most = 1 if fast else local.max_epochs
        groups: dict[tuple[int, int], list[_Member]] = {}
        for job in jobs:
            data = job.open_data()
            loader: Any = data.train_dataloader()
            count = batches_per_epoch(len(loader), local, fast)
            epochs = most if job.job.epochs is None else min(job.job.epochs, most)
            groups.setdefault((count, epochs), []).append((job, data, loader))
        for (count, epochs), members in groups.items():
            for begin in range(0, len(members), local.stack_size):
                stacked, data_of, loaders = zip(*members[begin : begin + local.stack_size], strict=True)
                self._resident.fill(self._resident.view(), None)
                fit = StackedFit(self._resident, self._step, stacked, data_of, self._settings, self._precision)
                yield from fit.run(loaders, count, epochs)


def _refuse(module: LightningModule, local: LocalTraining, precision: str, detect_anomaly: bool) -> None:
    allowed = getattr(module, "stacked_hooks", ())
    name = type(module).__name__
    for hook in HOOKS:
        if is_overridden(hook, module) and hook not in allowed:
            raise EngineError(
                f"{name} overrides '{hook}', which stacked clients would share. {_REMEDY} Or, where it only logs and updates "
                f"metrics, name it in a class attribute: stacked_hooks = ('{hook}',)."
            )
    if any(isinstance(part, ProximalLoss) and part.mu for part in module.modules()):
        raise EngineError(
            f"{name} holds a ProximalLoss, which measures the distance of one model. Set 'federation.local.proximal_mu' "
            f"instead: the same gradient for stacked clients. Or: {_REMEDY}"
        )
    for part in module.modules():
        if isinstance(part, nn.RReLU | nn.AlphaDropout | nn.FeatureAlphaDropout):
            raise EngineError(f"{type(part).__name__} has no form for stacked clients. {_REMEDY}")
    settings = {
        "callbacks": local.callbacks,
        "detect_anomaly": local.detect_anomaly or detect_anomaly,
        "precision": precision if precision.endswith("mixed") else "",  # autocast does not reach inside of vmap
    }
    for setting, value in settings.items():
        if value:
            raise EngineError(f"'federation.local.{setting}' ({value}) has no form for stacked clients. {_REMEDY}")
