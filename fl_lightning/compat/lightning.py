"""Private names of Lightning; those of its command line are in :mod:`fl_lightning.compat.lightning_cli`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.rank_zero import WarningCache
from torch.optim import Optimizer

from fl_lightning.compat import private_names_of

with private_names_of("lightning"):
    # A DataLoader outside of a Trainer gets no seeded workers. This does what 'seed_everything(workers=True)' asks for.
    from lightning.fabric.utilities.data import _auto_add_worker_init_fn as seed_workers

    # A Trainer tells a loader's samplers the epoch, if they have 'set_epoch'.
    from lightning.fabric.utilities.data import _set_sampler_epoch as set_sampler_epoch
    from lightning.pytorch.core.optimizer import (
        _configure_optimizers,
        _configure_schedulers_automatic_opt,
        _validate_scheduler_api,
    )
    from lightning.pytorch.loops.fit_loop import _FitLoop
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
    from lightning.pytorch.trainer.connectors.logger_connector import result as _results
    from lightning.pytorch.trainer.connectors.logger_connector.fx_validator import _FxValidator

    # A classmethod that refuses to be called on an instance, where 'load_from_checkpoint' would lose its result.
    from lightning.pytorch.utilities.model_helpers import _restricted_classmethod as class_only

    # (hook, on_step, on_epoch) to (on_step, on_epoch): the levels of 'self.log' in a hook, which only a Trainer looks up.
    logging_levels = _FxValidator.check_logging_and_get_default_levels
    # Only set below: without this look-up, a release that has renamed it would go unnoticed.
    _results.warning_cache  # noqa: B018

__all__ = [
    "FindsLastCheckpoint",
    "OffersOptimizers",
    "checkpoint_of",
    "class_only",
    "configured",
    "configured_parts",
    "continue_from",
    "continue_global_step",
    "detects_anomalies",
    "forget_compiled",
    "forget_metric_names",
    "fresh_loops",
    "has_whole_epoch",
    "in_place_results",
    "innermost_checkpoint_io",
    "is_compiled",
    "logging_levels",
    "seed_workers",
    "set_sampler_epoch",
    "set_up_validation",
    "slurm_environment",
    "stepping_through",
    "swap_logging_advice",
    "synchronises_batch_norm",
    "wandb_run",
    "wandb_settings",
]

# ---------------------------------------------------------------- optimizers


def configured_parts(answer: Any) -> tuple[list[Optimizer], list[Any], str | None]:
    """Return the optimizers, schedulers and monitor in what ``configure_optimizers`` returned; only a Trainer can read it."""
    optimizers, schedulers, monitor = _configure_optimizers(answer)
    return optimizers, schedulers, monitor


def configured(answer: Any, module: LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """Return the optimizers and the schedulers' configurations in what ``configure_optimizers`` returned, and check them.

    Stands in for a Trainer, the only one that can do so in public.

    Args:
        answer: what the method returned.
        module: whose method it is; optimizes automatically.
    """
    optimizers, schedulers, monitor = _configure_optimizers(answer)
    configs = _configure_schedulers_automatic_opt(schedulers, monitor)
    _validate_scheduler_api(configs, module)
    return optimizers, configs


def stepping_through(optimizer: Optimizer, strategy: Any) -> Any:
    """Wrap an optimizer as for a module's ``optimizer_step``; only a Trainer's strategy can be wrapped in public.

    Args:
        optimizer: any.
        strategy: whose ``optimizer_step(optimizer, closure, **kwargs)`` runs when the wrapper is told to step.
    """
    wrapped = LightningOptimizer(optimizer)
    wrapped._strategy = strategy
    return wrapped


class OffersOptimizers:
    """Answer a module's ``self.optimizers()`` in place of a Trainer's strategy, which has no public name for it."""

    def wrapped_optimizers(self) -> list[LightningOptimizer]:
        """Return the optimizers of the fit, each in Lightning's wrapper."""
        raise NotImplementedError

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        return self.wrapped_optimizers()


# ---------------------------------------------------------------- a Trainer and its loops


def fresh_loops(trainer: Trainer) -> None:
    """Give a Trainer that has fitted new loops with the old limits; in public, only a new Trainer has those."""
    old = trainer.fit_loop
    trainer.fit_loop = _FitLoop(trainer, min_epochs=old.min_epochs, max_epochs=old.max_epochs)
    trainer.fit_loop.epoch_loop = _TrainingEpochLoop(
        trainer, min_steps=old.epoch_loop.min_steps, max_steps=old.epoch_loop.max_steps
    )


class _InPlaceMetric(_results._ResultMetric):
    """Move only what is on another device: Lightning rebuilds every attribute of a logged value in each ``self.log``."""

    def to(self, device: torch.device | str, *others: Any, **settings: Any) -> _results._ResultMetric:  # type: ignore[override]
        """Move the value, as Lightning does, unless it is there."""
        value = getattr(self, "value", None)
        if value is not None and value.device == torch.device(device):
            return self
        return super().to(device, *others, **settings)


class _InPlaceResults(_results._ResultCollection):
    """Hold the values that a module logs as :class:`_InPlaceMetric`."""

    def __setitem__(self, key: str, metric: _results._ResultMetric) -> None:
        metric.__class__ = _InPlaceMetric
        super().__setitem__(key, metric)


def in_place_results(trainer: Trainer) -> None:
    """Make ``self.log`` cheaper in a Trainer's loops, which create what collects the values themselves."""
    steps = trainer.fit_loop.epoch_loop
    steps._results = _InPlaceResults(training=True)
    for loop in (steps.val_loop, trainer.validate_loop):
        loop._results = _InPlaceResults(training=False)


def slurm_environment(trainer: Trainer) -> SLURMEnvironment | None:
    """Return the environment of a Trainer that SLURM has started; a Trainer does not show it."""
    found = trainer._accelerator_connector.cluster_environment
    return found if isinstance(found, SLURMEnvironment) else None


def continue_global_step(trainer: Trainer) -> None:
    """Let ``trainer.global_step`` continue after a switch from manual to automatic optimization; it cannot be set."""
    loop = trainer.fit_loop.epoch_loop
    steps = loop.manual_optimization.optim_step_progress.total.completed
    loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps


def continue_from(trainer: Trainer, epoch: int, step: int) -> None:
    """Let a fit that is about to begin count from an epoch and a step; in public, only a checkpoint can do so."""
    loop = trainer.fit_loop
    for counts in (loop.epoch_progress.total, loop.epoch_progress.current):
        counts.reset()
        counts.increment_by(epoch)
    steps = loop.epoch_loop
    steps.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    steps.manual_optimization.optim_step_progress.total.completed = step
    loop._resuming_from_checkpoint = True  # the first epoch's iterator exists: a second one would draw other numbers


def has_whole_epoch(trainer: Trainer) -> bool:
    """Return whether a fit has completed an epoch, in this process or before; ``current_epoch`` also counts one that broke."""
    return bool(trainer.fit_loop.epoch_progress.total.completed)


def set_up_validation(trainer: Trainer) -> None:
    """Let a fit load its validation set before the first validation; ``trainer.val_dataloaders`` is None until then."""
    trainer.fit_loop.epoch_loop.val_loop.setup_data()


def detects_anomalies(trainer: Trainer) -> bool:
    """Return the flag ``detect_anomaly``, which a Trainer does not show."""
    return trainer._detect_anomaly


def synchronises_batch_norm(trainer: Trainer) -> bool:
    """Return the flag ``sync_batchnorm``, which a Trainer does not show; strategies for one process have none."""
    return getattr(trainer.strategy, "_layer_sync", None) is not None


# ---------------------------------------------------------------- checkpoints


def checkpoint_of(trainer: Trainer, weights_only: bool) -> dict[str, Any]:
    """Return what ``trainer.save_checkpoint`` would write, which in public goes to a file only."""
    checkpoint: dict[str, Any] = trainer._checkpoint_connector.dump_checkpoint(weights_only)
    return checkpoint


def innermost_checkpoint_io(trainer: Trainer) -> tuple[CheckpointIO, Any]:
    """Return the plugin that writes a Trainer's checkpoints, and a function that replaces it.

    A plugin that wraps another, such as AsyncCheckpointIO, shows the other, but has no public base class, and its other is
    set only once.
    """
    used, replace = trainer.strategy.checkpoint_io, partial(setattr, trainer.strategy, "checkpoint_io")
    while isinstance(used, _WrappingCheckpointIO) and used.checkpoint_io is not None:
        used, replace = used.checkpoint_io, partial(setattr, used, "_checkpoint_io")
    return used, replace


class FindsLastCheckpoint(ModelCheckpoint):
    """Let subclasses say which checkpoints ``ckpt_path="last"`` chooses from; ModelCheckpoint has a private method for it."""

    def find_last(self, trainer: Trainer) -> set[str]:
        """Return the paths of checkpoints that may be the last one. Stands in for ``_find_last_checkpoints``."""
        return super()._find_last_checkpoints(trainer)

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        return self.find_last(trainer)


# ---------------------------------------------------------------- modules


def is_compiled(module: LightningModule) -> bool:
    """Return whether ``torch.compile`` replaced methods on a module; Lightning's ``to_uncompiled`` tells only by an error."""
    return getattr(module, "_compiler_ctx", None) is not None


def forget_compiled(module: LightningModule) -> None:
    """Undo ``torch.compile`` on the copy of a module; ``to_uncompiled`` would give it the original's methods."""
    module._compiler_ctx = None
    for name in ("forward", "training_step", "validation_step", "test_step", "predict_step"):
        vars(module).pop(name, None)


def forget_metric_names(module: LightningModule) -> None:
    """Let the copy of a module find its metrics' names anew: Lightning keeps them by the ids of the original's metrics."""
    module._metric_attributes = None


# ---------------------------------------------------------------- logging


def swap_logging_advice(cache: WarningCache) -> WarningCache:
    """Replace what gives Lightning's once-only advice on ``self.log``, and return the one before.

    Advice that a filter for warnings drops counts as given, and there is no public way to keep it for later.
    """
    before, _results.warning_cache = _results.warning_cache, cache
    return before


def wandb_run(logger: WandbLogger) -> Any:
    """Return a logger's run if it has begun; the public ``experiment`` begins one."""
    return None if logger._experiment is None else logger.experiment


def wandb_settings(logger: WandbLogger) -> dict[str, Any]:
    """Return what a logger will pass to ``wandb.init``, to be changed in place; it shows that only through its run."""
    settings: dict[str, Any] = getattr(logger, "_wandb_init", {})
    return settings
