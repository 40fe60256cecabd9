"""The engine ``fabric``: a lean loop on Lightning Fabric, with the results of ``trainer`` to the last bit."""

from __future__ import annotations

import copy

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from fl_lightning.clients.engines.fabric.fit import ClientFit
from fl_lightning.clients.engines.options import EngineOptions
from fl_lightning.clients.engines.precision import fabric_precision
from fl_lightning.clients.session import ClientSession
from fl_lightning.errors import ConfigurationError
from fl_lightning.settings.local_training import LocalTraining

_NOT_HERE = ("backward", "configure_gradient_clipping", "clip_gradients", "log", "log_dict")
"""What a module may override for a Trainer, and for this loop not."""


def refuse_module(module: LightningModule, engine: str, more: tuple[str, ...] = ()) -> None:
    """Refuse a module that asks for what only a Trainer does.

    Raises:
        ConfigurationError: naming what it overrides.
    """
    remedy = f"which the engine '{engine}' of local training does not follow. Set 'federation.local.engine' to 'trainer'."
    name = type(module).__name__
    if not module.automatic_optimization:
        raise ConfigurationError(f"{name} optimizes manually ('automatic_optimization = False'), {remedy}")
    for hook in (*_NOT_HERE, *more):
        if is_overridden(hook, module):
            raise ConfigurationError(f"{name} overrides '{hook}', {remedy}")
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise ConfigurationError(f"{name}.training_step takes 'dataloader_iter', {remedy}")


class FabricEngine:
    """Fits clients one after another by a loop that does what the module, its callbacks and the settings ask for.

    Args: as :class:`TrainerEngine`.

    Raises:
        ConfigurationError: for a module that only a Trainer can train.
    """

    def __init__(self, local: LocalTraining, options: EngineOptions, session: ClientSession) -> None:
        self._local, self._session, self._device = local, session, options.device
        self._fast, self._logger = options.fast_dev_run, options.logger
        self._anomalies = local.detect_anomaly or options.detect_anomaly
        self._precision = fabric_precision(options.precision, options.device)
        if local.deterministic is not None:
            torch.use_deterministic_algorithms(local.deterministic)
        self._fit: ClientFit | None = None

    def fit(self, module: LightningModule, data: LightningDataModule, epochs: int | None) -> tuple[int, dict[str, float]]:
        """Train one client; see :meth:`TrainerEngine.fit`."""
        if self._fit is None:
            refuse_module(module, "fabric")
        if getattr(self._precision, "scaler", None) is not None:
            self._precision.scaler = torch.amp.GradScaler(self._device.type)
        if self._fit is None or self._local.callbacks:  # the user's get copies for each client
            callbacks = [*self._session.callbacks, *copy.deepcopy(self._local.callbacks or [])]
            self._fit = ClientFit(module, callbacks, self._local, self._precision, self._device, self._fast, self._logger)
        most = 1 if self._fast else self._local.max_epochs
        with torch.autograd.set_detect_anomaly(self._anomalies):
            return self._fit.fit(data, most if epochs is None else min(epochs, most))
