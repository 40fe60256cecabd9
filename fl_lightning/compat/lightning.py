"""Private names of Lightning's Trainer and loops. Those of other parts have files of their own, and are found here as well."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import ParallelStrategy

from fl_lightning.compat.lightning_checkpoints import FindsLastCheckpoint, checkpoint_of, innermost_checkpoint_io
from fl_lightning.compat.lightning_logs import in_place_results, logging_levels, swap_logging_advice
from fl_lightning.compat.lightning_modules import (
    class_only,
    forget_compiled,
    forget_metric_names,
    is_compiled,
    wandb_run,
    wandb_settings,
)
from fl_lightning.compat.lightning_optimizers import OffersOptimizers, configured, configured_parts, stepping_through
from fl_lightning.compat.private import MISSING, Private

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
    "slurm_environment",
    "stepping_through",
    "swap_logging_advice",
    "synchronises_batch_norm",
    "validation_loaders",
    "wandb_run",
    "wandb_settings",
]

# ---------------------------------------------------------------- data


def seed_workers(loader: Any, rank: int) -> None:
    """Do for a DataLoader outside of a Trainer what ``seed_everything(workers=True)`` asks for."""
    if int(os.environ.get("PL_SEED_WORKERS", 0)) and getattr(loader, "worker_init_fn", MISSING) is None:
        loader.worker_init_fn = partial(pl_worker_init_function, rank=rank)


def set_sampler_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's samplers the epoch, if they have ``set_epoch``."""
    found: tuple[Any, Any] = (
        getattr(loader, "sampler", None),
        getattr(getattr(loader, "batch_sampler", None), "sampler", None),
    )
    for sampler in {id(one): one for one in found}.values():
        if callable(getattr(sampler, "set_epoch", None)):
            sampler.set_epoch(epoch)


def validation_loaders(trainer: Trainer) -> Any:
    """Return a fit's loaders of the validation set before the first validation; ``val_dataloaders`` is None until then."""
    loop: Any = trainer.fit_loop.epoch_loop.val_loop
    set_up: Any = _SET_UP.get(None, loop)
    if set_up is not None:
        set_up()
        return trainer.val_dataloaders
    data: Any = getattr(trainer, "datamodule", None) or trainer.lightning_module
    return data.val_dataloader()


# ---------------------------------------------------------------- a Trainer and its loops

_TRAINER, _LOOP = "lightning.pytorch.Trainer", "lightning.pytorch.loops.fit_loop._FitLoop"
_SET_UP = Private("lightning", f"{_LOOP}.epoch_loop.val_loop", "setup_data", "builds the validation set's loader once more")
_CONNECTOR = Private(
    "lightning", _TRAINER, "_accelerator_connector.cluster_environment", "asks the strategy and SLURM's variables"
)
_ANOMALY = Private("lightning", _TRAINER, "_detect_anomaly", "does not pass 'detect_anomaly' on to the clients' fits")
_SYNC = Private(
    "lightning",
    "lightning.pytorch.strategies.ParallelStrategy",
    "_layer_sync",
    "looks for a LayerSync among the strategy's attributes",
)
_EPOCHS = Private("lightning", _LOOP, "epoch_progress.total.completed", "counts a broken epoch as complete")
_AUTOMATIC = Private(
    "lightning",
    _LOOP,
    "epoch_loop.automatic_optimization.optim_progress.optimizer.step.total",
    "sets the progress of a fit through the loops' 'state_dict'",
)
_MANUAL = Private(
    "lightning",
    _LOOP,
    "epoch_loop.manual_optimization.optim_step_progress.total",
    "sets the progress of a fit through the loops' 'state_dict'",
)
_RESUMES = Private(
    "lightning", _LOOP, "_resuming_from_checkpoint", "sets the progress of a fit through the loops' 'state_dict'"
)
_STEP_KEYS = (
    ("epoch_loop.automatic_optimization.optim_progress", "optimizer", "step", "total", "completed"),
    ("epoch_loop.manual_optimization.optim_step_progress", "total", "completed"),
)


def fresh_loops(trainer: Trainer) -> None:
    """Give a Trainer that has fitted new loops with the old limits; in public, only a new Trainer has those."""
    old, steps = trainer.fit_loop, trainer.fit_loop.epoch_loop
    trainer.fit_loop = type(old)(trainer, min_epochs=old.min_epochs, max_epochs=old.max_epochs)
    trainer.fit_loop.epoch_loop = type(steps)(trainer, min_steps=steps.min_steps, max_steps=steps.max_steps)


def slurm_environment(trainer: Trainer) -> SLURMEnvironment | None:
    """Return the environment of a Trainer that SLURM has started; a Trainer does not show it."""
    found: Any = _CONNECTOR.get(MISSING, trainer)
    if found is MISSING:
        found = getattr(trainer.strategy, "cluster_environment", None) or (SLURMEnvironment.detect() and SLURMEnvironment())
    return found if isinstance(found, SLURMEnvironment) else None


def continue_global_step(trainer: Trainer) -> None:
    """Let ``trainer.global_step`` continue after a switch from manual to automatic optimization; it cannot be set."""
    loop: Any = trainer.fit_loop
    if _MANUAL.exists(loop) and _AUTOMATIC.exists(loop):
        steps = loop.epoch_loop.manual_optimization.optim_step_progress.total.completed
        loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps
    else:
        automatic, manual = _STEP_KEYS
        _load_progress(loop, lambda state: [(automatic, functools.reduce(_entry, manual, state))])


def continue_from(trainer: Trainer, epoch: int, step: int) -> None:
    """Let a fit that is about to begin count from an epoch and a step; in public, only a checkpoint can do so."""
    loop: Any = trainer.fit_loop
    if not all(name.exists(loop) for name in (_MANUAL, _AUTOMATIC, _EPOCHS, _RESUMES)):
        epochs = [
            ("epoch_progress", part, name)
            for part in ("total", "current")
            for name in loop.state_dict()["epoch_progress"][part]
        ]
        _load_progress(loop, lambda _: [*((keys, epoch) for keys in epochs), *((keys, step) for keys in _STEP_KEYS)])
        return
    for counts in (loop.epoch_progress.total, loop.epoch_progress.current):
        counts.reset()
        counts.increment_by(epoch)
    steps = loop.epoch_loop
    steps.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    steps.manual_optimization.optim_step_progress.total.completed = step
    loop._resuming_from_checkpoint = True  # the first epoch's iterator exists: a second one would draw other numbers


def _load_progress(loop: Any, changes: Callable[[Any], list[tuple[tuple[str, ...], int]]]) -> None:
    """Change numbers in the state that a checkpoint holds of a loop, and load it."""
    state = loop.state_dict()
    try:
        for keys, number in changes(state):
            functools.reduce(_entry, keys[:-1], state)[keys[-1]] = number
    except KeyError:
        _AUTOMATIC.refuse("A fit that continues another one")
    loop.load_state_dict(state)


def _entry(state: Any, key: str) -> Any:
    return state[key]


def has_whole_epoch(trainer: Trainer) -> bool:
    """Return whether a fit has completed an epoch, in this process or before; ``current_epoch`` also counts one that broke."""
    return bool(_EPOCHS.get(trainer.current_epoch, trainer.fit_loop))


def detects_anomalies(trainer: Trainer) -> bool:
    """Return the flag ``detect_anomaly``, which a Trainer does not show."""
    return bool(_ANOMALY.get(torch.is_anomaly_enabled(), trainer))


def synchronises_batch_norm(trainer: Trainer) -> bool:
    """Return the flag ``sync_batchnorm``, which a Trainer does not show; strategies for one process have none."""
    if not isinstance(trainer.strategy, ParallelStrategy):
        return getattr(trainer.strategy, _SYNC.name, None) is not None
    found: Any = _SYNC.get(MISSING, trainer.strategy)
    if found is MISSING:
        return any(isinstance(value, LayerSync) for value in vars(trainer.strategy).values())
    return found is not None
