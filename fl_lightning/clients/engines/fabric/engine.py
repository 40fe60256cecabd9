"""The engine ``fabric``: a lean loop on Lightning Fabric whose results equal those of ``trainer`` to the last bit."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from fl_lightning.clients.engines.fabric.fit import ClientFit
from fl_lightning.clients.engines.precision import fabric_precision
from fl_lightning.clients.engines.sequential import SequentialEngine
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.errors import EngineError

_NOT_HERE = ("backward", "configure_gradient_clipping", "clip_gradients", "log", "log_dict")
"""The hooks that a Trainer calls and this loop does not."""


def refuse_module(module: LightningModule, engine: str, more: tuple[str, ...] = ()) -> None:
    """Refuse a module that only a Trainer can train.

    Raises:
        EngineError: if the module needs a Trainer; it names the reason.
    """
    remedy = f"which the engine '{engine}' of local training does not follow. Set 'federation.local.engine' to 'trainer'."
    name = type(module).__name__
    if not module.automatic_optimization:
        raise EngineError(f"{name} optimizes manually ('automatic_optimization = False'), {remedy}")
    for hook in (*_NOT_HERE, *more):
        if is_overridden(hook, module):
            raise EngineError(f"{name} overrides '{hook}', {remedy}")
    if is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True):
        raise EngineError(f"{name}.training_step takes 'dataloader_iter', {remedy}")


class FabricEngine(SequentialEngine):
    """Train clients one after another with a loop that does only what the module, its callbacks and the settings need.

    Args:
        resident: the module that clients train.
        place: where and how the clients train.

    Raises:
        EngineError: if only a Trainer can train the module.
    """

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        super().__init__(resident, place)
        refuse_module(resident.module, "fabric")
        local = place.local
        self._anomalies = local.detect_anomaly or place.detect_anomaly
        self._precision = fabric_precision(place.precision, place.device)
        if local.deterministic is not None:
            torch.use_deterministic_algorithms(local.deterministic)
        self._loop: ClientFit | None = None

    def _fit(self, data: LightningDataModule, plan: TurnPlan) -> tuple[int, dict[str, float]]:
        if getattr(self._precision, "scaler", None) is not None:
            self._precision.scaler = torch.amp.GradScaler(self.place.device.type)
        if self._loop is None or self.place.local.callbacks:  # a user's callbacks are copied for each client
            callbacks = [*self.session.callbacks, *copy.deepcopy(self.place.local.callbacks or [])]
            self._loop = ClientFit(self.resident.module, callbacks, self._precision, self.place)
        with torch.autograd.set_detect_anomaly(self._anomalies):
            return self._loop.fit(data, plan)

    @staticmethod
    def _place(trainer: Any, epoch: int, step: int) -> None:
        trainer.note(_epoch=epoch, _steps=step)

    @staticmethod
    def _limit(trainer: Any, epoch: float, step: float) -> None:
        trainer.note(last_epoch=epoch, last_step=step)

    def recover(self) -> None:
        """Discard the loop, so that the next client gets a new one."""
        self._loop = None
