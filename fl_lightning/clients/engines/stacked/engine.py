"""The engine ``stacked``: clients of equal shape are trained at once, their parameters along an axis of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from fl_lightning.clients.engines.fabric.engine import refuse_module
from fl_lightning.clients.engines.fabric.hooks import HOOKS
from fl_lightning.clients.engines.fabric.optimizer import batches_per_epoch
from fl_lightning.clients.engines.options import EngineOptions
from fl_lightning.clients.engines.precision import fabric_precision
from fl_lightning.clients.engines.stacked.fit import Assignment, StackedFit, Trained
from fl_lightning.clients.engines.stacked.step import StackedStep
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_state import ModelState
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.settings.local_training import LocalTraining

_REFUSED_HOOKS = ("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "setup", "configure_model", "prepare_data")
_REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."


class StackedEngine:
    """Trains clients of equally many batches side by side, in stacks.

    A module whose hooks leave nothing behind but metrics and logs, and read no parameters, names them in a class attribute
    ``stacked_hooks``; they are called for each client, those of the start before any training. Other hooks of training are
    refused, and so is what has no form for a stack.

    Args:
        module: the clients' module.
        local: the settings of the local training.
        options: where and how; detecting anomalies is refused.

    Raises:
        ConfigurationError: for a module or settings that only another engine can follow.
    """

    def __init__(self, module: LightningModule, local: LocalTraining, options: EngineOptions) -> None:
        refuse_module(module, "stacked", _REFUSED_HOOKS)
        _refuse(module, local, options.precision, options.detect_anomaly)
        device = options.device
        self._precision: Any = fabric_precision(options.precision, device)
        if local.deterministic is not None:
            torch.use_deterministic_algorithms(local.deterministic)
        self._module, self._local, self._device = module, local, device
        self._fast, self._logger = options.fast_dev_run, options.logger
        self._precision.convert_module(module)
        module.to(device)
        largest = min(local.stack_size, options.cohort or local.stack_size)
        self._step = StackedStep(module, self._precision.forward_context, largest, local.compile)

    def recover(self) -> None:
        """Forget what a client's error may have left behind, but keep the compiled graphs."""
        self._step.recover()

    def fit(
        self, assignments: Sequence[Assignment], server: ModelState, state: ModelState, round_idx: int
    ) -> Iterator[tuple[Assignment, Trained]]:
        """Train clients from the global model or from where they start, stack by stack.

        Args:
            assignments: who trains, on what.
            server: the view of the global model, which is not changed.
            state: the view of the clients' module.
            round_idx: from 0.

        Returns:
            Each assignment with what came out, as soon as its stack is done.
        """
        groups: dict[tuple[int, int], list[tuple[Assignment, Any]]] = {}
        most = 1 if self._fast else self._local.max_epochs
        for job in assignments:
            loader: Any = job.data.train_dataloader()
            count = batches_per_epoch(len(loader), self._local, self._fast)
            epochs = most if job.epochs is None else min(job.epochs, most)
            groups.setdefault((count, epochs), []).append((job, loader))
        for (count, epochs), members in groups.items():
            for begin in range(0, len(members), self._local.stack_size):
                stack = members[begin : begin + self._local.stack_size]
                jobs = [job for job, _ in stack]
                state.copy_from(server)
                fit = StackedFit(
                    self._module, self._step, state, jobs, self._local, self._precision, self._device, self._logger
                )
                yield from zip(jobs, fit.run([loader for _, loader in stack], count, epochs, round_idx), strict=True)


def _refuse(module: LightningModule, local: LocalTraining, precision: str, detect_anomaly: bool) -> None:
    allowed = getattr(module, "stacked_hooks", ())
    name = type(module).__name__
    for hook in HOOKS:
        if is_overridden(hook, module) and hook not in allowed:
            raise ConfigurationError(
                f"{name} overrides '{hook}', which stacked clients would share. {_REMEDY} Or, where it only logs and updates "
                f"metrics, name it in a class attribute: stacked_hooks = ('{hook}',)."
            )
    if any(isinstance(part, ProximalLoss) and part.mu for part in module.modules()):
        raise ConfigurationError(
            f"{name} holds a ProximalLoss, which measures the distance of one model. Set 'federation.local.proximal_mu' "
            f"instead: the same gradient for stacked clients. Or: {_REMEDY}"
        )
    for part in module.modules():
        if isinstance(part, nn.RReLU | nn.AlphaDropout | nn.FeatureAlphaDropout):
            raise ConfigurationError(f"{type(part).__name__} has no form for stacked clients. {_REMEDY}")
    settings = {
        "callbacks": local.callbacks,
        "detect_anomaly": local.detect_anomaly or detect_anomaly,
        "precision": precision if precision.endswith("mixed") else "",  # autocast does not reach inside of vmap
    }
    for setting, value in settings.items():
        if value:
            raise ConfigurationError(f"'federation.local.{setting}' ({value}) has no form for stacked clients. {_REMEDY}")
