"""Stand in for ``self.trainer`` in a module that is trained without a Trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim import Optimizer

from fl_lightning.clients.isolation.outer_run import LastMetrics, silent_logger
from fl_lightning.clients.training.turn import refuse_unlimited
from fl_lightning.compat.lightning import OffersOptimizers
from fl_lightning.errors import EngineError
from fl_lightning.settings.local_training import LocalTraining

_SETTABLE = ("should_stop",)
"""The attributes of a running fit that a callback may change."""

_AS_IN_A_TRAINER: dict[str, Any] = {
    "_asking": "The module",
    "num_training_batches": float("inf"),
    "_epoch": 0,
    "_steps": 0,
    "_time_was_read": False,
    "_count_batches": None,
    "should_stop": False,
    "last_epoch": float("inf"),
    "last_step": float("inf"),
    "state": SimpleNamespace(fn=TrainerFn.FITTING, stage="train"),
    "training": True,
    "validating": False,
    "testing": False,
    "predicting": False,
    "sanity_checking": False,
    "evaluating": False,
    "fast_dev_run": False,
    "barebones": False,
    "enable_validation": False,
    "num_val_batches": [],
    "world_size": 1,
    "num_devices": 1,
    "num_nodes": 1,
    "global_rank": 0,
    "local_rank": 0,
    "node_rank": 0,
    "is_global_zero": True,
    "is_last_batch": False,
}
"""The attributes that are the same in every client's fit, or have their initial values."""


class ClientRun:
    """Hold the state of one client's fit, under the names that a Trainer uses.

    Any other attribute that a module or a callback reads or sets is refused by name, so that nothing is ignored silently.

    Args:
        engine: the name of the engine, for messages.
        local: the settings of the local training.
        data: the client's examples.
        callbacks: the callbacks of this fit.
        precision: the plugin that converts inputs and scales the loss.
        device: the device to train on.
        logger: whether the module finds a (silent) logger.
        outer: the user's Trainer, of which the module may read some attributes; None at a site.
    """

    def __init__(
        self,
        engine: str,
        local: LocalTraining,
        data: LightningDataModule,
        callbacks: Sequence[Callback],
        precision: Any,
        device: torch.device,
        logger: bool = False,
        outer: Trainer | None = None,
    ) -> None:
        found = silent_logger(logger, outer)
        loggers = [] if found is None else [found]
        optimizers: list[Optimizer] = []
        metrics = LastMetrics({}, outer)
        vars(self).update(
            _AS_IN_A_TRAINER
            | {
                "_engine": engine,
                "datamodule": data,
                "callbacks": list(callbacks),
                "precision_plugin": precision,
                "precision": precision.precision,
                "strategy": _Strategy(self, device),
                "optimizers": optimizers,
                "lr_scheduler_configs": [],
                "callback_metrics": metrics,
                "accumulate_grad_batches": local.accumulate_grad_batches,
                "gradient_clip_val": local.gradient_clip_val,
                "gradient_clip_algorithm": local.gradient_clip_algorithm if local.gradient_clip_val else None,
                "max_epochs": local.max_epochs,
                "max_steps": local.max_steps,
                "loggers": loggers,
                "logger": found,
                "checkpoint_callback": None if outer is None else outer.checkpoint_callback,
            }
        )

    def __getattr__(self, name: str) -> Any:
        """Refuse an attribute that only a Trainer has.

        Raises:
            EngineError: always; it names the attribute and its user.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that callbacks may change on a Trainer.

        Raises:
            EngineError: if this engine does not support setting the attribute; it names the attribute and its user.
        """
        if name not in _SETTABLE:
            raise EngineError(
                f"{self._asking} sets 'trainer.{name}', which the engine '{self._engine}' of local training does not follow. "
                "Set 'federation.local.engine' to 'trainer'."
            )
        vars(self)[name] = value

    @property
    def current_epoch(self) -> int:
        """Return the local epoch, counted from 0."""
        vars(self)["_time_was_read"] = True
        epoch: int = vars(self)["_epoch"]
        return epoch

    @property
    def global_step(self) -> int:
        """Return the number of optimizer steps so far."""
        vars(self)["_time_was_read"] = True
        steps: int = vars(self)["_steps"]
        return steps

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Return the number of optimizer steps in the whole training, as a Trainer does.

        Raises:
            EngineError: if it is asked for before the client's batches are known.
            ConfigurationError: if the training has no end.
        """
        if self._count_batches is None:
            self.refuse("estimated_stepping_batches")
        limit: int = self.max_steps
        if self.max_epochs == -1:
            return refuse_unlimited() if limit == -1 else limit
        steps: int = math.ceil(self._count_batches() / self.accumulate_grad_batches) * max(self.max_epochs, 1)
        return steps if limit == -1 else min(steps, limit)

    def refuse(self, name: str) -> NoReturn:
        """Refuse an attribute that only a Trainer has.

        Raises:
            EngineError: always; it names the attribute and its user.
        """
        raise EngineError(
            f"{self._asking} asks for 'trainer.{name}', which the engine '{self._engine}' of local training does not provide. "
            "Set 'federation.local.engine' to 'trainer'."
        )

    def note(self, **state: Any) -> None:
        """Set the engine's own state."""
        vars(self).update(state)


class _Strategy(OffersOptimizers):
    """Provide the parts of a Trainer's strategy that a single process needs."""

    def __init__(self, run: ClientRun, device: torch.device) -> None:
        self._run = run
        self.root_device = device

    def __getattr__(self, name: str) -> Any:
        """Refuse an attribute that only a strategy has."""
        if name.startswith("__"):
            raise AttributeError(name)
        if self.asks_for_optimizers(name):
            return self.wrapped_optimizers()
        return self._run.refuse(f"strategy.{name}")

    def wrapped_optimizers(self) -> list[LightningOptimizer]:
        """Return the optimizers, for the module's ``self.optimizers()``."""
        return [LightningOptimizer(optimizer) for optimizer in self._run.optimizers]

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return the decision of the only process."""
        return decision

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object: no other process takes part."""
        return obj

    def barrier(self, *_: Any, **__: Any) -> None:
        """Do nothing: no other process takes part."""
