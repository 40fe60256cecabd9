"""Private names of Lightning: a Trainer and its loops, checkpoints, optimizers, what ``self.log`` collects, modules, W&B."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.utilities.seed import pl_worker_init_function
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.plugins import CheckpointIO, LayerSync
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.rank_zero import WarningCache
from torch.optim import Optimizer
from torchmetrics import Metric

from fl_lightning.compat.private import MISSING, Private, is_tested

# ---------------------------------------------------------------- data


def seed_workers(loader: Any, rank: int) -> None:
    """Do for a DataLoader outside of a Trainer what ``seed_everything(workers=True)`` asks for."""
    if int(os.environ.get("PL_SEED_WORKERS", 0)) and getattr(loader, "worker_init_fn", MISSING) is None:
        loader.worker_init_fn = partial(pl_worker_init_function, rank=rank)


def set_sampler_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's samplers the epoch, if they have ``set_epoch``."""
    found: list[Any] = [getattr(one, "sampler", None) for one in (loader, getattr(loader, "batch_sampler", None))]
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
_EPOCHS, _AUTOMATIC, _MANUAL, _RESUMES = (
    Private("lightning", _LOOP, name)
    for name in (
        "epoch_progress.total.completed",
        "epoch_loop.automatic_optimization.optim_progress.optimizer.step.total",
        "epoch_loop.manual_optimization.optim_step_progress.total",
        "_resuming_from_checkpoint",
    )
)
_CONTINUES = "A fit that continues another one"


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
    automatic, manual = (name.require(_CONTINUES, loop) for name in (_AUTOMATIC, _MANUAL))
    automatic.completed = manual.completed


def continue_from(trainer: Trainer, epoch: int, step: int) -> None:
    """Let a fit that is about to begin count from an epoch and a step; in public, only a checkpoint can do so."""
    loop: Any = trainer.fit_loop
    automatic, manual, *_ = (name.require(_CONTINUES, loop) for name in (_AUTOMATIC, _MANUAL, _EPOCHS, _RESUMES))
    for counts in (loop.epoch_progress.total, loop.epoch_progress.current):
        counts.reset()
        counts.increment_by(epoch)
    automatic.completed = manual.completed = step
    loop._resuming_from_checkpoint = True  # the first epoch's iterator exists: a second one would draw other numbers


def has_whole_epoch(trainer: Trainer) -> bool:
    """Return whether a fit has completed an epoch, in this process or before; ``current_epoch`` also counts one that broke."""
    return bool(_EPOCHS.require(_CONTINUES, trainer.fit_loop))


def detects_anomalies(trainer: Trainer) -> bool:
    """Return the flag ``detect_anomaly``, which a Trainer does not show."""
    return bool(_ANOMALY.get(torch.is_anomaly_enabled(), trainer))


def synchronises_batch_norm(trainer: Trainer) -> bool:
    """Return the flag ``sync_batchnorm``, which a Trainer does not show; strategies for one process have none."""
    return any(isinstance(value, LayerSync) for value in vars(trainer.strategy).values())


# ---------------------------------------------------------------- checkpoints and the plugins that write them

_DUMP = Private("lightning", _TRAINER, "_checkpoint_connector.dump_checkpoint")
_LAST = Private(
    "lightning",
    "lightning.pytorch.callbacks.ModelCheckpoint",
    "_find_last_checkpoints",
    "leaves the choice for ckpt_path='last' to Lightning",
)


def checkpoint_of(trainer: Trainer, weights_only: bool) -> dict[str, Any]:
    """Return what ``trainer.save_checkpoint`` would write, which in public goes to a plugin only."""
    checkpoint: dict[str, Any] = _DUMP.require("A trial of checkpoints", trainer)(weights_only)
    return checkpoint


def innermost_checkpoint_io(trainer: Trainer) -> tuple[CheckpointIO, Any]:
    """Return the plugin that writes a Trainer's checkpoints, and a function that replaces it.

    A plugin that wraps another, such as AsyncCheckpointIO, shows the other, but has no public base class, and its other is
    set only once.
    """
    used, replace = trainer.strategy.checkpoint_io, partial(setattr, trainer.strategy, "checkpoint_io")
    while (inner := getattr(used, "checkpoint_io", None)) is not None:
        name = next((name for name, value in vars(used).items() if value is inner), None)
        if name is None:  # it makes another one each time
            break
        used, replace = inner, partial(setattr, used, name)
    return used, replace


class FindsLastCheckpoint(ModelCheckpoint):
    """Let subclasses say which checkpoints ``ckpt_path="last"`` chooses from; ModelCheckpoint has a private method for it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set up as Lightning does, and tell if it no longer asks."""
        _LAST.exists(ModelCheckpoint)
        super().setup(trainer, pl_module, stage)

    def find_last(self, trainer: Trainer) -> set[str]:
        """Return the paths of checkpoints that may be the last one. Stands in for ``_find_last_checkpoints``."""
        return super()._find_last_checkpoints(trainer)

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        return self.find_last(trainer)


# ---------------------------------------------------------------- optimizers

_HOME = "lightning.pytorch.core.optimizer"
_PARTS, _CONFIGS, _CHECK = (
    Private("lightning", _HOME, name)
    for name in ("_configure_optimizers", "_configure_schedulers_automatic_opt", "_validate_scheduler_api")
)
_READS = "Reading what 'configure_optimizers' returns, as the engines 'fabric' and 'stacked' do,"
_OFFERED = Private(
    "lightning", "lightning.pytorch.strategies.Strategy", "_lightning_optimizers", "answers any private look-up of optimizers"
)


def configured_parts(answer: Any) -> tuple[list[Optimizer], list[Any], str | None]:
    """Return the optimizers, schedulers and monitor in what ``configure_optimizers`` returned; only a Trainer can read it."""
    optimizers, schedulers, monitor = _PARTS.require(_READS)(answer)
    return optimizers, schedulers, monitor


def configured(answer: Any, module: LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """Return the optimizers and the schedulers' configurations in what ``configure_optimizers`` returned, and check them.

    Stands in for a Trainer, the only one that can do so in public.

    Args:
        answer: what the method returned.
        module: whose method it is; optimizes automatically.
    """
    optimizers, schedulers, monitor = configured_parts(answer)
    configs: list[Any] = _CONFIGS.require(_READS)(schedulers, monitor)
    _CHECK.require(_READS)(configs, module)
    return optimizers, configs


class _Stepping(LightningOptimizer):
    """Wrap an optimizer, with another one to make its steps."""

    stepper: Any = None

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        """Let the other one make a step."""
        return self.stepper.optimizer_step(self.optimizer, closure or (lambda: None), **kwargs)


def stepping_through(optimizer: Optimizer, strategy: Any) -> Any:
    """Wrap an optimizer as for a module's ``optimizer_step``; only a Trainer's strategy can be wrapped in public.

    Args:
        optimizer: any.
        strategy: whose ``optimizer_step(optimizer, closure, **kwargs)`` runs when the wrapper is told to step.
    """
    wrapped = _Stepping(optimizer)
    wrapped.stepper = strategy
    return wrapped


class OffersOptimizers:
    """Answer a module's ``self.optimizers()`` in place of a Trainer's strategy, which has no public name for it."""

    def wrapped_optimizers(self) -> list[LightningOptimizer]:
        """Return the optimizers of the fit, each in Lightning's wrapper."""
        raise NotImplementedError

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        return self.wrapped_optimizers()

    @staticmethod
    def asks_for_optimizers(name: str) -> bool:
        """Return whether an attribute that does not exist may be the one that Lightning looks up."""
        found = name.startswith("_") and name.endswith("optimizers")
        if found:
            _OFFERED.tell()
        return found


# ---------------------------------------------------------------- what ``self.log`` collects

_LOGS = "lightning.pytorch.trainer.connectors.logger_connector"
_METRIC, _COLLECTION = (Private("lightning", f"{_LOGS}.result", name) for name in ("_ResultMetric", "_ResultCollection"))
_RESULTS = Private("lightning", "lightning.pytorch.loops.training_epoch_loop._TrainingEpochLoop", "_results")
_ADVICE = Private("lightning", f"{_LOGS}.result", "warning_cache", "lets a client's fit use up advice on 'self.log'")
_COLLECTS = "Clients' 'self.log'"
_LEVELS = Private("lightning", f"{_LOGS}.fx_validator", "_FxValidator.check_logging_and_get_default_levels")


def logging_levels(hook: str, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
    """Return whether ``self.log`` logs each step, and each epoch, in a hook; only a Trainer looks that up.

    Args:
        hook: the name of the hook.
        on_step: what ``self.log`` was told; None for the hook's default.
        on_epoch: what it was told; None for the hook's default.
    """
    levels: Callable[..., tuple[bool, bool]] = _LEVELS.require("'self.log' with the engine 'fabric'")
    return levels(hook, on_step, on_epoch)


def swap_logging_advice(cache: WarningCache) -> WarningCache:
    """Replace what gives Lightning's once-only advice on ``self.log``, and return the one before.

    Advice that a filter for warnings drops counts as given, and there is no public way to keep it for later.
    """
    from lightning.pytorch.trainer.connectors.logger_connector import result

    before: WarningCache | None = _ADVICE.get(None, result)
    if before is None:
        return cache
    result.warning_cache = cache
    return before


@cache
def _in_place_collection(metric: Any, collection: Any) -> Any:
    """Return Lightning's collection of logged values, whose values move only if they are on another device.

    Lightning rebuilds every attribute of a logged value in each ``self.log``.

    Args:
        metric: Lightning's class of logged values.
        collection: its class of their collection.
    """

    class InPlaceMetric(metric):  # type: ignore[misc]
        def to(self, device: torch.device | str, *others: Any, **settings: Any) -> Any:
            value = getattr(self, "value", None)
            if value is not None and value.device == torch.device(device):
                return self
            return super().to(device, *others, **settings)

    class InPlaceResults(collection):  # type: ignore[misc]
        def __setitem__(self, key: str, metric: Any) -> None:
            metric.__class__ = InPlaceMetric
            super().__setitem__(key, metric)

    return InPlaceResults


def in_place_results(trainer: Trainer) -> None:
    """Make ``self.log`` cheaper in a Trainer's loops, which create what collects the values themselves."""
    if not is_tested("lightning"):
        return
    steps: Any = trainer.fit_loop.epoch_loop
    kind = _in_place_collection(_METRIC.require(_COLLECTS), _COLLECTION.require(_COLLECTS))
    for loop in (steps, steps.val_loop, trainer.validate_loop):
        _RESULTS.require(_COLLECTS, loop)
        loop._results = kind(training=loop is steps)


# ---------------------------------------------------------------- modules, and loggers

_MODULE = "lightning.pytorch.LightningModule"
_COMPILED = Private("lightning", _MODULE, "_compiler_ctx", "takes a module with its own 'forward' for a compiled one")
_METRICS = Private("lightning", _MODULE, "_metric_attributes", "looks for the names of metrics among the module's attributes")
_METHODS = ("forward", "training_step", "validation_step", "test_step", "predict_step")


def is_compiled(module: LightningModule) -> bool:
    """Return whether ``torch.compile`` replaced methods on a module; Lightning's ``to_uncompiled`` tells only by an error."""
    found: Any = _COMPILED.get(MISSING, module)
    return "forward" in vars(module) if found is MISSING else found is not None


def forget_compiled(module: LightningModule) -> None:
    """Undo ``torch.compile`` on the copy of a module; ``to_uncompiled`` would give it the original's methods."""
    if _COMPILED.exists(module):
        module._compiler_ctx = None
    for name in _METHODS:
        vars(module).pop(name, None)


def forget_metric_names(module: LightningModule) -> None:
    """Let the copy of a module find its metrics' names anew: Lightning keeps them by the ids of the original's metrics."""
    if _METRICS.exists(module):
        module._metric_attributes = None
        return
    names = {name for name, part in module.named_modules() if isinstance(part, Metric)}
    for attribute, value in list(vars(module).items()):
        if isinstance(value, dict) and value and all(isinstance(key, int) and one in names for key, one in value.items()):
            setattr(module, attribute, None)


if TYPE_CHECKING:
    class_only = classmethod
else:

    class class_only(classmethod):  # noqa: N801
        """Refuse a method of a class on an instance, where 'load_from_checkpoint' would lose its result."""

        def __get__(self, instance, owner=None):
            """Return the method of the class; if it was asked for on an instance, one that refuses to be called."""
            kind = type(instance) if owner is None else owner
            method = super().__get__(None, kind)
            if instance is None:
                return method

            @wraps(method)
            def refused(*args, **kwargs):
                raise TypeError(
                    f"The classmethod `{kind.__name__}.{method.__name__}` cannot be called on an instance. "
                    "Call it on the class, and use what it returns."
                )

            return refused


_LOGGER = "lightning.pytorch.loggers.WandbLogger"
_RUN = Private("lightning", _LOGGER, "_experiment", "takes W&B's active run for the logger's")
_INIT = Private("lightning", _LOGGER, "_wandb_init", "leaves the settings of a W&B run as Lightning makes them")


def wandb_run(logger: WandbLogger) -> Any:
    """Return a logger's run if it has begun; the public ``experiment`` begins one."""
    found: Any = _RUN.get(MISSING, logger)
    if found is MISSING:
        import wandb  # slow to import

        return wandb.run
    return None if found is None else logger.experiment


def wandb_settings(logger: WandbLogger) -> dict[str, Any]:
    """Return what a logger will pass to ``wandb.init``, to be changed in place; it shows that only through its run."""
    settings: dict[str, Any] = _INIT.get({}, logger)
    return settings
