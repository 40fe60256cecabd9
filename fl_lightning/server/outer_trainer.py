"""Adapt the user's Trainer to rounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision

from fl_lightning.compat.torch import outside_autocast


@contextmanager
def outside_precision(trainer: Trainer, default: torch.dtype) -> Iterator[None]:
    """Leave the outer Trainer's precision context, because clients enter their own, and sums and metrics are exact.

    Args:
        trainer: the user's Trainer.
        default: the default type of new tensors outside of that context.
    """
    inside = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with outside_autocast(trainer.strategy.root_device.type):
            yield
    finally:
        torch.set_default_dtype(inside)


def prepare_trainer(trainer: Trainer, cleanup: ExitStack) -> None:
    """Adapt the Trainer to rounds: log and save every round, and use no scaler for the server's step.

    Args:
        trainer: the user's Trainer.
        cleanup: the stack on which to register the functions that undo all changes.
    """
    cleanup.callback(setattr, trainer, "log_every_n_steps", trainer.log_every_n_steps)  # type: ignore[attr-defined]
    trainer.log_every_n_steps = 1  # type: ignore[attr-defined]
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        cleanup.callback(setattr, plugin, "scaler", plugin.scaler)
        plugin.scaler = None
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, ModelCheckpoint):
            _save_after_manual_steps(callback, cleanup)


class _Automatic:
    """Show a module as one that optimizes automatically."""

    automatic_optimization = True

    def __init__(self, module: LightningModule) -> None:
        vars(self)["_module"] = module

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._module)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_module"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def _save_after_manual_steps(callback: ModelCheckpoint, cleanup: ExitStack) -> None:
    """Let a ModelCheckpoint act on the server's step, which is a manual one, as on a step of automatic optimization.

    After a manual step, it ignores its interval of time, and advises on code that the user's module does not have.
    """
    own: Any = callback.on_train_batch_end

    def on_train_batch_end(trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        own(trainer, _Automatic(pl_module), *args)

    vars(callback)["on_train_batch_end"] = on_train_batch_end
    cleanup.callback(vars(callback).pop, "on_train_batch_end")


def set_threads(wanted: int | None, trainer: Trainer, cleanup: ExitStack) -> None:
    """Set the clients' intra-op threads to the wanted number, or by default to one if ranks share a CPU."""
    shares = trainer.strategy.root_device.type == "cpu" and trainer.num_devices > 1
    threads = 1 if wanted is None and shares else wanted
    if threads is not None:
        cleanup.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)


def planned_rounds(trainer: Trainer) -> int | None:
    """Return the number of rounds for which a Trainer was started; None if it is unlimited."""
    limits = [limit for limit in (trainer.max_epochs, trainer.max_steps) if limit is not None and limit != -1]
    return min(limits, default=None)
