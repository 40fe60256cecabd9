"""Lightning Trainers that run inside another one: silent, on one device, and used again and again."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import WarningCache
from lightning.pytorch.utilities.warnings import PossibleUserWarning

from fl_lightning.compat.lightning import fresh_loops, ignore_signals, swap_logging_advice
from fl_lightning.data.views import TRANSFER_HOOKS

ACCELERATORS = {"cuda": "gpu", "cpu": "cpu", "mps": "mps"}


class _ResidentStrategy(SingleDeviceStrategy):
    """Leaves the module where it is when a fit ends, instead of moving it to the CPU and back for the next client.

    A small client's step takes a millisecond or two, so what Lightning does around it counts: batches that are in place
    are not sent through three hooks that do nothing.
    """

    accelerator: Accelerator | None

    def setup(self, trainer: Trainer) -> None:
        """See whether batches are in place already."""
        self._in_place = self.root_device.type == "cpu" and not transfer_hooks(
            trainer.lightning_module, getattr(trainer, "datamodule", None)
        )
        super().setup(trainer)

    def model_to_device(self) -> None:
        """Move the module only if it is elsewhere."""
        assert self.model is not None
        if any(parameter.device != self.root_device for parameter in self.model.parameters()):
            super().model_to_device()

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Send a batch through the transfer hooks, unless they would do nothing."""
        return batch if self._in_place else super().batch_to_device(batch, device, dataloader_idx)

    def teardown(self) -> None:
        """Forget the client's optimizers."""
        self.optimizers = []
        self.lr_scheduler_configs = []
        self.precision_plugin.teardown()


def transfer_hooks(module: LightningModule, data: LightningDataModule | None) -> dict[str, Callable[..., Any]]:
    """Return the transfer hooks that module or datamodule override, by name; the datamodule's take precedence."""
    found: dict[str, Callable[..., Any]] = {}
    for hook in TRANSFER_HOOKS:
        if data is not None and is_overridden(hook, data, LightningDataModule):
            found[hook] = getattr(data, hook)
        elif is_overridden(hook, module):
            found[hook] = getattr(module, hook)
    return found


def moves_batches(module: LightningModule, data: LightningDataModule) -> bool:
    """Whether somebody overrides what happens to a batch before it is on the device."""
    return bool(transfer_hooks(module, data).keys() & {"on_before_batch_transfer", "transfer_batch_to_device"})


class _NoProfiler(PassThroughProfiler):
    """Lightning opens a profiling context around each of some 25 hooks per step: this one costs nothing."""

    _context = nullcontext()

    def profile(self, action_name: str) -> nullcontext[None]:  # type: ignore[override]
        """A context that does nothing, always the same."""
        return self._context


def inner_trainer(device: torch.device, callbacks: list[Callback], *, logger: bool = False, **flags: Any) -> Trainer:
    """A Trainer on one device without checkpoints, bars, summary or sanity check; its logger, if any, writes nothing."""
    kind = ACCELERATORS.get(device.type, device.type)
    with quiet():
        trainer = Trainer(
            accelerator=kind,
            devices=[device.index or 0] if kind == "gpu" else 1,
            strategy=_ResidentStrategy(device=device),
            plugins=[LightningEnvironment()],  # never the outer launcher's idea of ranks
            callbacks=list(callbacks),
            logger=DummyLogger() if logger else False,
            log_every_n_steps=2**31,
            enable_autolog_hparams=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            profiler=_NoProfiler(),
            **flags,
        )
    # Signals are the outer Trainer's: taking over and restoring sixty handlers per client costs time, and loses some.
    ignore_signals(trainer)
    return trainer


def restart(trainer: Trainer) -> None:
    """Make a Trainer that has fitted as good as new: fresh loops, gradient scaler and stop flag."""
    fresh_loops(trainer)
    trainer.should_stop = False
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        plugin.scaler = torch.amp.GradScaler(plugin.device)


_LOGGERS = ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda", "lightning.fabric.utilities.seed")


class _NoAdvice(WarningCache):
    """Lightning's once-only advice, which is not given."""

    def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
        """Say nothing."""


_NO_ADVICE = _NoAdvice()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what Lightning says of an inner Trainer off the terminal: announcements, tips, and advice on ``sync_dist``.

    That advice is given once for each metric of a process, so that it must not be used up here, where one rank is alone.
    """
    advice = swap_logging_advice(_NO_ADVICE)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    states = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True  # cheaper than a level, which clears the caches of all loggers
    try:
        yield
    finally:
        swap_logging_advice(advice)
        for logger, state in zip(loggers, states, strict=True):
            logger.disabled = state


# What Lightning advises about a Trainer's data loading and logging, which is advice to us here and not to the user.
_ADVICE = (
    "does not have many workers",
    "The number of training batches",
    "You defined a `validation_step` but have no `val_dataloader`",
    "You passed in a `val_dataloader` but have no `validation_step`",
    "The `srun` command",
    "ReduceLROnPlateau conditioned on metric",
    "You called `self.log",
    "There is a wandb run already in progress",
    r"Found \d+ module\(s\) in eval mode",  # a frozen backbone is meant to be
    r"It is recommended to use `self.log\('(federation/|class_weight/|robust_loss/|round')",  # the same on every rank
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own call of torch
)


@contextmanager
def without_advice() -> Iterator[None]:
    """Filter Lightning's advice to inner Trainers for the duration of a federation; other warnings pass."""
    with warnings.catch_warnings():
        for text in _ADVICE:
            for category in (PossibleUserWarning, UserWarning, RuntimeWarning, FutureWarning):
                warnings.filterwarnings("ignore", message=f".*{text}", category=category, module="lightning")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus's hooks need no input's gradient
        yield
