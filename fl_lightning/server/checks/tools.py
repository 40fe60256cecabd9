"""Refuse tools of the outer Trainer that would act on rounds as if they were training steps."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch import callbacks as known
from lightning.pytorch.callbacks.spike import SpikeDetection
from lightning.pytorch.callbacks.throughput_monitor import ThroughputMonitor
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.compat.lightning import synchronises_batch_norm
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.model_parts import constant_modules
from fl_lightning.settings.local_training import LocalTraining

_TUNERS = known.BatchSizeFinder, known.LearningRateFinder
_TUNE = "Tune without a federation ('federation.enabled' false, or a Trainer without it), set what it finds, and remove it."
_REFUSED: dict[type[Callback] | tuple[type[Callback], ...], str] = {
    _TUNERS: f"would tune rounds as if they were training steps. {_TUNE}",
    known.GradientAccumulationScheduler: "would accumulate rounds. Set 'federation.local.accumulate_grad_batches' instead, "
    "which counts the clients' batches.",
    known.BackboneFinetuning: "would set the rate of the server's optimizer, and leave that of the clients alone. Use "
    "TransferLearning, which freezes and thaws; the rate of each part is that of its group in 'configure_optimizers'.",
    known.StochasticWeightAveraging: "would set the rate of the server's optimizer, and leave that of the clients alone. Use "
    "WeightAveraging or EMAWeightAveraging, which average the global model over rounds.",
    known.ModelPruning: "would prune the server's weights, but the clients' updates would not follow its masks. Prune "
    "after the federation.",
    SpikeDetection: "would look for the loss of a training step, but a round has none. Put it into "
    "'federation.local.callbacks', where it sees the clients' steps.",
    ThroughputMonitor: "would measure batches of examples, but a batch of the federation's Trainer is a round. See "
    "'federation/seconds' and 'client_seconds/<client>' in the log.",
}
_REFUSED_AT_CLIENTS: dict[type[Callback] | tuple[type[Callback], ...], str] = {
    known.Checkpoint: "writes checkpoints, but a client's Trainer writes none. Remove it; a ModelCheckpoint among the "
    "federation's own callbacks saves the federation after a round.",
    known.ProgressBar: "shows progress, but a client's Trainer shows none. Remove it; FederationProgressBar among the "
    "federation's own callbacks shows rounds and clients.",
    _TUNERS: f"would tune each client anew in every turn. {_TUNE}",
}
_OF_CLIENTS = {
    "gradient_clip_val": (None, "gradient_clip_val"),
    "gradient_clip_algorithm": (None, "gradient_clip_algorithm"),
    "accumulate_grad_batches": (1, "accumulate_grad_batches"),
    "limit_train_batches": (1.0, "limit_train_batches"),
    "overfit_batches": (0.0, "limit_train_batches"),
}
"""Flags that would act on rounds, with their neutral values, and the settings of local training to use instead."""
_ACT_WITHIN_A_TURN = (known.EarlyStopping, SpikeDetection, known.Timer)
"""Callbacks with a state that does not change weights, and whose limits are those of a turn."""


def refuse_second(trainer: Trainer, kind: Any) -> None:
    """Refuse two callbacks that would each take over the module.

    Args:
        trainer: the user's Trainer.
        kind: the class of the callback that federates.

    Raises:
        ConfigurationError: if more than one callback of the Trainer federates.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    active = [type(callback).__name__ for callback in callbacks if isinstance(callback, kind) and callback.enabled]
    if len(active) > 1:
        raise ConfigurationError(
            f"The Trainer has {len(active)} callbacks that federate the module: {', '.join(active)}. Keep one of them."
        )


def refuse_tools(trainer: Trainer) -> None:
    """Refuse callbacks and flags that act on training steps, of which a round is only one, and ranks with parts of a model.

    Args:
        trainer: the user's Trainer.

    Raises:
        ConfigurationError: naming the callback or flag, and what to do instead.
    """
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    for callback in callbacks:
        name = type(callback).__name__
        for kind, reason in _REFUSED.items():
            if isinstance(callback, kind):
                raise ConfigurationError(f"The callback {name} {reason}")
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ConfigurationError(
            f"A federation needs one device or DDP, where every rank holds the whole model, but 'trainer.strategy' is "
            f"{type(trainer.strategy).__name__}. Set it to 'auto' or 'ddp'."
        )
    synchronises = synchronises_batch_norm(trainer)
    hint = "Ranks train different clients, whose statistics must not be mixed."
    require(not synchronises, "trainer.sync_batchnorm", "false in a federation", synchronises, hint)
    if trainer.val_check_interval not in (1, 1.0, None):
        raise ConfigurationError(
            f"'trainer.val_check_interval' is {trainer.val_check_interval}, but a federation validates between rounds, not "
            "inside one. Remove it; 'trainer.check_val_every_n_epoch' counts rounds."
        )
    reloads = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    if reloads:
        raise ConfigurationError(
            f"'trainer.reload_dataloaders_every_n_epochs' is {reloads}, but a federation asks for the clients' training sets "
            "once. Remove it; a set that changes can be an IterableDataset, or a Dataset that draws anew in '__getitem__'."
        )
    for flag, (neutral, setting) in {} if trainer.fast_dev_run else _OF_CLIENTS.items():  # type: ignore[attr-defined]
        value = getattr(trainer, flag)
        if value is not None and (value != neutral or type(value) is not type(neutral)):
            raise ConfigurationError(
                f"'trainer.{flag}' is {value!r}, but a batch of the federation's Trainer is a whole round. Remove it and set "
                f"'federation.local.{setting}' instead, which applies to the clients' batches."
            )


def refuse_client_callbacks(local: LocalTraining) -> None:
    """Refuse callbacks that a client's Trainer does not serve, or whose effect would differ from their purpose.

    Raises:
        ConfigurationError: naming the callback, and what to do instead.
    """
    for callback in local.callbacks or ():
        contains = f"'federation.local.callbacks' contains {type(callback).__name__}, which"
        for kind, reason in _REFUSED_AT_CLIENTS.items():
            if isinstance(callback, kind):
                raise ConfigurationError(f"{contains} {reason}")
        if local.progress == "run":
            reason = _lost_after_a_turn(callback)
            if reason:
                raise ConfigurationError(f"{contains} {reason}, or set 'federation.local.progress' to 'round'.")


def _lost_after_a_turn(callback: Callback) -> str:
    """Return what a callback would do wrongly because it begins anew in each turn, and what to do instead; empty if nothing."""
    if isinstance(callback, known.GradientAccumulationScheduler):
        return (
            "changes the number of steps in an epoch, from which a client's place in the whole training is computed. Set "
            "'federation.local.accumulate_grad_batches'"
        )
    for name in ("state_dict", "on_save_checkpoint"):
        own = name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)
        if own and not isinstance(callback, _ACT_WITHIN_A_TURN):
            return (
                f"keeps a state for the rest of a training ('{name}'), but begins anew in every turn of a client. Put it among "
                "the federation's own callbacks, keep the state in the module ('client_state'), remove the method if the "
                "callback may begin anew"
            )
    return ""


def warn_of_resting_parts(module: LightningModule) -> None:
    """Warn once if parts that are trained are in evaluation mode, as Lightning does; frozen ones rest on purpose."""
    constant = constant_modules(module)
    resting = [name for name, part in module.named_modules() if name and not part.training and id(part) not in constant]
    if resting:
        several = f"{len(resting)} parts" if len(resting) > 1 else "1 part"
        are = "are" if len(resting) > 1 else "is"
        shown = ", ".join(map(repr, resting[:3])) + (", ..." if len(resting) > 3 else "")
        rank_zero_warn(
            f"{several} of {type(module).__name__} that {are} trained {are} in evaluation mode ({shown}): dropout is off, and "
            "BatchNorm's statistics stay. If that is not intended, call module.train() before the fit."
        )


def refuse_other_package(trainer: object, module: object) -> None:
    """Refuse a Trainer or module of the package ``pytorch_lightning``, whose classes are not those of ``lightning``.

    Raises:
        ConfigurationError: naming what to import instead.
    """
    for what, given, kind in (("Trainer", trainer, Trainer), ("module", module, LightningModule)):
        theirs = any(base.__module__.startswith("pytorch_lightning.") for base in type(given).__mro__)
        if theirs and not isinstance(given, kind):
            raise ConfigurationError(
                f"The {what} is a {type(given).__module__}.{type(given).__qualname__}, but fl_lightning works with the package "
                "'lightning', not with 'pytorch_lightning', which has the same classes under other names: import from "
                "'lightning.pytorch' instead of 'pytorch_lightning'."
            )
