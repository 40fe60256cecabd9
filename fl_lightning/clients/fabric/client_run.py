"""Stand in for ``self.trainer`` in a module that is trained without a Trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lightning.pytorch import Callback, LightningDataModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.trainer.states import RunningStage, TrainerFn, TrainerState, TrainerStatus
from lightning.pytorch.utilities import GradClipAlgorithmType

from fl_lightning.clients.outer_run import silent_logger
from fl_lightning.clients.trainer import LastMetrics
from fl_lightning.clients.turn import refuse_unlimited
from fl_lightning.compat.lightning import OffersOptimizers
from fl_lightning.errors import EngineError
from fl_lightning.settings.local_training import Place

_SETTABLE = ("should_stop",)
"""The attributes of a running fit that a callback may change."""

_AS_IN_A_TRAINER: dict[str, Any] = {
    "_asking": "The module",
    "num_val_batches": [],
    **dict.fromkeys(("training", "is_global_zero"), True),
    **dict.fromkeys(("validating", "testing", "predicting", "sanity_checking", "evaluating", "enable_validation"), False),
    **dict.fromkeys(("fast_dev_run", "barebones", "should_stop", "is_last_batch", "_time_was_read"), False),
    **dict.fromkeys(("_count_batches", "_refused")),
    **dict.fromkeys(("_epoch", "_steps", "global_rank", "local_rank", "node_rank"), 0),
    **dict.fromkeys(("world_size", "num_devices", "num_nodes"), 1),
    **dict.fromkeys(("num_training_batches", "last_epoch", "last_step"), math.inf),
}
"""The attributes that are the same in every client's fit, or have their initial values."""

_OF_THE_SETTINGS = ("accumulate_grad_batches", "gradient_clip_val", "max_epochs", "max_steps")
_IN_PRECISION = ("precision", "convert_input", "scaler")
"""What a module may read of the precision plugin."""


def varying(name: str, text: str) -> Any:
    """Return a property that notes that the module has read what changes during a fit or from fit to fit."""

    def read(run: ClientRun) -> Any:
        vars(run)["_time_was_read"] = True
        return vars(run)[name]

    return property(read, doc=text)


class ClientRun:
    """Hold the state of one client's fit, under the names that a Trainer uses.

    Any other attribute of a Trainer or its parts that a module or a callback reads or sets is refused by name, so that nothing
    is ignored silently.

    Args:
        engine: the name of the engine, for messages.
        place: where and how the client trains.
        data: the client's examples.
        callbacks: the callbacks of this fit.
        precision: the plugin that converts inputs and scales the loss.
    """

    _engine = ""

    def __init__(
        self, engine: str, place: Place, data: LightningDataModule, callbacks: Sequence[Callback], precision: Any
    ) -> None:
        local, outer, logger = place.local, place.outer, silent_logger(place.logger, place.outer)
        shared = {name: getattr(precision, name) for name in _IN_PRECISION if hasattr(precision, name)}
        clips = GradClipAlgorithmType(local.gradient_clip_algorithm) if local.gradient_clip_val else None
        vars(self).update(
            _AS_IN_A_TRAINER | {name: getattr(local, name) for name in _OF_THE_SETTINGS},
            _engine=engine,
            state=TrainerState(TrainerStatus.RUNNING, TrainerFn.FITTING, RunningStage.TRAINING),
            datamodule=data,
            callbacks=list(callbacks),
            precision_plugin=_Part(self, "precision_plugin", shared),
            precision=precision.precision,
            strategy=_Strategy(self, "strategy", {"root_device": place.device}),
            optimizers=[],
            lr_scheduler_configs=[],
            callback_metrics=LastMetrics({}, outer),
            gradient_clip_algorithm=clips,
            loggers=[] if logger is None else [logger],
            logger=logger,
            checkpoint_callback=None if outer is None else outer.checkpoint_callback,
        )

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Return Trainer, for ``isinstance(self.trainer, Trainer)``."""
        return Trainer

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
        if name not in _SETTABLE or name not in vars(self):
            self.refuse(name, "sets", "follow")
        vars(self)[name] = value

    current_epoch: int = varying("_epoch", "Return the local epoch, counted from 0.")
    global_step: int = varying("_steps", "Return the number of optimizer steps so far.")

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
        self.note(num_training_batches=self._count_batches())
        steps: int = math.ceil(self.num_training_batches / self.accumulate_grad_batches) * max(self.max_epochs, 1)
        return steps if limit == -1 else min(steps, limit)

    def refuse(self, name: str, verb: str = "asks for", lacks: str = "provide") -> NoReturn:
        """Refuse an attribute that only a Trainer has.

        Raises:
            EngineError: always; it names the attribute and its user.
        """
        vars(self)["_refused"] = EngineError(
            f"{self._asking} {verb} 'trainer.{name}', which the engine '{self._engine}' of local training does not {lacks}. "
            "Set 'federation.local.engine' to 'trainer'."
        )
        raise self._refused

    def end(self) -> None:
        """End the fit.

        Raises:
            EngineError: if the module or a callback has caught the error of :meth:`refuse`, and continued in another way.
        """
        if self._refused is not None:
            raise self._refused

    def begin_at(self, epoch: int, step: int) -> None:
        """Count from an epoch and a step of the whole training."""
        self.note(_epoch=epoch, _steps=step)

    def end_before(self, epoch: float, step: float) -> None:
        """End before an epoch and a step, whatever the module sets ``should_stop`` to; infinite for no limit."""
        self.note(last_epoch=epoch, last_step=step)

    def forget(self, *names: str) -> None:
        """Refuse attributes from now on."""
        for name in names:
            del vars(self)[name]

    def note(self, **state: Any) -> None:
        """Set the engine's own state."""
        vars(self).update(state)


class _Part:
    """Answer for a part of a Trainer, and refuse what only that part has or can set.

    Args:
        run: the fit.
        name: the part's name in a Trainer.
        known: the attributes that it has.
    """

    def __init__(self, run: ClientRun, name: str, known: Mapping[str, Any]) -> None:
        vars(self).update(known, _run=run, _name=name)

    def __getattr__(self, name: str) -> Any:
        """Refuse an attribute that only a Trainer's part has; only mixed precision has a ``scaler``."""
        if name.startswith("__") or name == "scaler":
            raise AttributeError(name)
        return self._run.refuse(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set an attribute."""
        self._run.refuse(f"{self._name}.{name}", "sets", "follow")


class _Strategy(_Part, OffersOptimizers):
    """Provide the parts of a Trainer's strategy that a single process needs."""

    def __getattr__(self, name: str) -> Any:
        """Return the optimizers, or refuse an attribute that only a strategy has."""
        return self.wrapped_optimizers() if self.asks_for_optimizers(name) else super().__getattr__(name)

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
