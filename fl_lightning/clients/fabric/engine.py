"""The engine ``fabric``: a lean loop, as on Lightning Fabric, whose results equal those of ``trainer`` to the last bit."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from fl_lightning.clients.fabric.fit import ClientFit
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import LocalResult, PreparedTask
from fl_lightning.clients.trainer import TrainerEngine, inner_trainer
from fl_lightning.clients.turn import TurnPlan
from fl_lightning.errors import EngineError
from fl_lightning.settings.local_training import Place

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


class FabricEngine(TrainerEngine):
    """Train clients one after another with a loop that does only what the module, its callbacks and the settings need.

    Under ``engine: auto``, a Trainer trains them if the loop cannot: from the start, or from the first turn that needs one,
    which begins again. Both give the same bits.

    Args:
        resident: the module that clients train.
        place: where and how the clients train.

    Raises:
        EngineError: if only a Trainer can train the module.
    """

    _loop: ClientFit | None

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        self.name, self._falls_back = "fabric", place.local.engine == "auto"
        if self._falls_back:
            self.reason = "it gives the same weights as a Trainer, to the last bit, in less time"
        super().__init__(resident, place)
        device = place.device
        try:
            if self._falls_back and device.type not in ("cpu", "cuda"):  # tools/gpu.py compares them on a GPU
                raise EngineError(f"the lean loop has not been compared with a Trainer on '{device.type}'")
            refuse_module(resident.module, "fabric")
            self._precision = precision_of(place)
        except EngineError as error:
            self._fall_back(error)
        if self.name == "fabric" and place.local.deterministic is not None:
            torch.use_deterministic_algorithms(place.local.deterministic)

    def _fall_back(self, error: EngineError) -> None:
        """Train with a Trainer from now on, under ``auto``; otherwise raise the error."""
        if not self._falls_back or self.name == "trainer":
            raise error
        self.name, self.reason = "trainer", str(error)

    def train(self, prepared: PreparedTask) -> LocalResult:
        """Train one client."""
        try:
            return super().train(prepared)
        except EngineError as error:
            self._fall_back(error)
        rank_zero_info(f"Local training continues with the engine 'trainer'. {self.reason}")
        return super().train(prepared)

    def _fit(self, data: LightningDataModule, plan: TurnPlan) -> tuple[int, dict[str, float]]:
        if self.name == "trainer":
            return super()._fit(data, plan)
        if getattr(self._precision, "scaler", None) is not None:
            self._precision.scaler = torch.amp.GradScaler(self.place.device.type)
        if self._loop is None or self.place.local.callbacks:  # a user's callbacks are copied for each client
            self._loop = ClientFit(self.resident.module, self.session.callbacks(), self._precision, self.place)
        with torch.autograd.set_detect_anomaly(self.place.local.detect_anomaly):
            return self._loop.fit(data, plan)

    def recover(self) -> None:
        """Discard the loop, so that the next client gets a new one."""
        super().recover()
        self._loop = None


def precision_of(place: Place) -> Any:
    """Return a Trainer's plugin for the precision in the settings, on the device of the clients."""
    return inner_trainer(place.device, [], precision=place.precision).precision_plugin
