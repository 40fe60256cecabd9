"""Let the model that arrived win over weights that a module's own hooks load at the start of each fit."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.clients.engines.base import PreparedTask
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.compat.torch import buffers_of, is_batch_norm, parts_of
from fl_lightning.functional.description import is_users
from fl_lightning.functional.model_state import ModelState


class Arrival:
    """Load the model of a turn again after hooks that may have loaded another one, such as a pretrained network.

    In one long training, such a hook runs once. The server's module runs ``on_fit_start`` before the first round, and clients
    run ``on_train_start`` in it; what these load counts then, and never again.

    Args:
        resident: the module that clients train.
    """

    def __init__(self, resident: ResidentModel) -> None:
        self._resident = resident
        self._loads: dict[str, bool] = {}

    def hold(self, hook: str, trainer: Any, module: LightningModule, prepared: PreparedTask, state: ModelState) -> None:
        """Load the model again, if the module or a callback overrides a hook that has just run.

        Buffers stay as the hook left them, except those of BatchNorm, which belong to the weights.

        Args:
            hook: ``on_fit_start`` or ``on_train_start``.
            trainer: the Trainer of the fit, or what stands in for it.
            module: the module.
            prepared: the task.
            state: the view of the module.
        """
        if hook not in self._loads:
            self._loads[hook] = _may_load(hook, trainer, module)
        if not self._loads[hook]:
            return
        task = prepared.task
        if hook == "on_train_start" and task.start is None and not (task.round_idx or task.period):
            return
        found = [buffers_of(part) for part in parts_of(module).values() if not is_batch_norm(part)]
        kept = [(buffer, buffer.detach().clone()) for buffers in found for buffer in buffers.values() if buffer is not None]
        self._resident.fill(state, task.start, prepared.held)
        for buffer, value in kept:
            buffer.copy_(value)


def _may_load(hook: str, trainer: Any, module: LightningModule) -> bool:
    if is_overridden(hook, module) and hook not in getattr(module, "stacked_hooks", ()):  # those read no weights
        return True
    own = filter(is_users, map(type, trainer.callbacks))
    return any(getattr(kind, hook) is not getattr(Callback, hook) for kind in own)
