"""Build Lightning Trainers that run inside another one: silent, on one device, and reused."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import WarningCache, rank_zero_module
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.clients.outer_run import LastMetrics, silent_logger
from fl_lightning.clients.training.turn import refuse_unlimited
from fl_lightning.compat.light_steps import step_lightly
from fl_lightning.compat.lightning import fresh_loops, in_place_results, swap_logging_advice
from fl_lightning.compat.signals import ignore_signals
from fl_lightning.compat.torch import buffers_of, parameters_of, parts_of
from fl_lightning.data.views import TRANSFER_HOOKS

ACCELERATORS = {"cuda": "gpu", "cpu": "cpu", "mps": "mps"}


class _ResidentStrategy(SingleDeviceStrategy):
    """Keep the module on its device when a fit ends, instead of moving it to the CPU and back for the next client.

    A small client's step takes a millisecond or two, so Lightning's overhead matters: batches that are already on the
    device skip three transfer hooks that would do nothing.
    """

    accelerator: Accelerator | None

    def setup(self, trainer: Trainer) -> None:
        """Check whether batches are already on the device."""
        self._hookless = not transfer_hooks(trainer.lightning_module, getattr(trainer, "datamodule", None))
        self._in_place = self._hookless and self.root_device.type == "cpu"
        super().setup(trainer)

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Build the optimizers, which skip the work around their steps that does not change them."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            step_lightly(optimizer)

    def model_to_device(self) -> None:
        """Move the module only if a part of it is on another device: Lightning moves logged metrics to the CPU after a fit."""
        assert self.model is not None
        if any(part.device != self.root_device for part in _parts(self.model)):
            super().model_to_device()

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """Send a batch through the transfer hooks, unless they would do nothing."""
        if self._in_place or (self._hookless and is_on(batch, self.root_device)):
            return batch
        return super().batch_to_device(batch, device, dataloader_idx)

    def teardown(self) -> None:
        """Release the client's optimizers."""
        self.optimizers = []
        self.lr_scheduler_configs = []
        self.precision_plugin.teardown()


def _parts(module: nn.Module) -> Iterator[Tensor | Metric]:
    """Yield everything of a module that is on a device."""
    parts = parts_of(module)
    yield from parameters_of(module, parts).values()
    for part in parts.values():
        yield from (buffer for buffer in buffers_of(part).values() if buffer is not None)
        if isinstance(part, Metric):
            yield part


def transfer_hooks(module: LightningModule, data: LightningDataModule | None) -> dict[str, Callable[..., Any]]:
    """Return the overridden transfer hooks of module and datamodule, by name; the datamodule's take precedence."""
    found: dict[str, Callable[..., Any]] = {}
    for hook in TRANSFER_HOOKS:
        if data is not None and is_overridden(hook, data, LightningDataModule):
            found[hook] = getattr(data, hook)
        elif is_overridden(hook, module):
            found[hook] = getattr(module, hook)
    return found


def is_on(batch: Any, device: torch.device) -> bool:
    """Return whether a batch is a tensor or a list of tensors on a device: Lightning's own search takes a tenth of a step."""
    parts = batch if type(batch) in (list, tuple) else (batch,)
    return all(isinstance(part, Tensor) and part.device == device for part in parts)


def moves_batches(module: LightningModule, data: LightningDataModule) -> bool:
    """Return whether module or datamodule override a hook that runs before or during a batch's transfer."""
    return bool(transfer_hooks(module, data).keys() & {"on_before_batch_transfer", "transfer_batch_to_device"})


class ClientTrainer(Trainer):
    """Train clients inside another Trainer's run.

    It shows the limits of the whole training, beyond which the turns of an extended run lie, and the checkpoints and last
    metrics of the run around it. It refuses to estimate the steps of a training without an end.
    """

    outer: Trainer | None = None
    _planned: tuple[int, int] | None = None

    def plan(self, max_epochs: int, max_steps: int) -> None:
        """Set the limits that the module sees, and at which a fit ends that has no place in a longer training."""
        self._planned = max_epochs, max_steps
        self.fit_loop.max_epochs, self.fit_loop.epoch_loop.max_steps = self._planned

    @property
    def max_epochs(self) -> int | None:
        """Return the number of epochs of the whole training; -1 for no limit."""
        return super().max_epochs if self._planned is None else self._planned[0]

    @property
    def max_steps(self) -> int:
        """Return the number of optimizer steps of the whole training; -1 for no limit."""
        return super().max_steps if self._planned is None else self._planned[1]

    @property
    def checkpoint_callback(self) -> Any:
        """Return the first checkpoint callback of the user's Trainer."""
        return None if self.outer is None else self.outer.checkpoint_callback

    @property
    def callback_metrics(self) -> LastMetrics:
        """Return the client's metrics; see :class:`LastMetrics`."""
        return LastMetrics(super().callback_metrics, self.outer)

    @property
    def estimated_stepping_batches(self) -> int | float:
        """Return the number of optimizer steps in the whole training."""
        if self.max_epochs == -1 and self.max_steps == -1:
            refuse_unlimited()
        return super().estimated_stepping_batches


class _NoProfiler(PassThroughProfiler):
    """Provide a free profiling context: Lightning opens one around each of about 25 hooks per step."""

    _context = nullcontext()

    def profile(self, action_name: str) -> nullcontext[None]:  # type: ignore[override]
        """Return a shared context that does nothing."""
        return self._context


def inner_trainer(
    device: torch.device, callbacks: list[Callback], *, logger: bool = False, outer: Trainer | None = None, **flags: Any
) -> ClientTrainer:
    """Build a Trainer on one device, without checkpoints, bars, summary or sanity check, and with a silent logger if any.

    Args:
        device: the device.
        callbacks: its callbacks.
        logger: whether the module finds a (silent) logger.
        outer: the user's Trainer, of which the module may read some attributes; None at a site.
        flags: further flags.
    """
    kind = ACCELERATORS.get(device.type, device.type)
    with quiet():
        trainer = ClientTrainer(
            accelerator=kind,
            devices=[device.index or 0] if kind == "gpu" else 1,
            strategy=_ResidentStrategy(device=device),
            plugins=[LightningEnvironment()],  # independent of the outer launcher's ranks
            callbacks=list(callbacks),
            logger=silent_logger(logger, outer) or False,
            log_every_n_steps=2**31,
            enable_autolog_hparams=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            profiler=_NoProfiler(),
            **flags,
        )
    # The outer Trainer handles signals: replacing and restoring sixty handlers per client takes time, and loses some.
    ignore_signals(trainer)
    in_place_results(trainer)
    trainer.outer = outer
    return trainer


def restart(trainer: Trainer) -> None:
    """Reset a Trainer after a fit: its loops, gradient scaler and stop flag."""
    fresh_loops(trainer)
    in_place_results(trainer)
    trainer.should_stop = False
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        plugin.scaler = torch.amp.GradScaler(plugin.device)


_LOGGERS = ("lightning.pytorch.accelerators.cuda", "lightning.fabric.utilities.seed")


class _NoAdvice(WarningCache):
    """Suppress advice that Lightning gives only once."""

    def warn(self, message: str, stacklevel: int = 5, **kwargs: Any) -> None:
        """Do nothing."""


_NO_ADVICE = _NoAdvice()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Lightning's messages about an inner Trainer: announcements, tips, and advice on ``sync_dist``.

    Lightning gives this advice once per metric and process, so an inner Trainer on a single rank must not use it up.
    """
    advice = swap_logging_advice(_NO_ADVICE)
    # 'pytorch_lightning' puts a logger of its own in the place of Lightning's where anything imports it
    loggers = [rank_zero_module.log, *(logging.getLogger(name) for name in _LOGGERS)]
    states = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True  # cheaper than setting a level, which clears the caches of all loggers
    try:
        yield
    finally:
        swap_logging_advice(advice)
        for logger, state in zip(loggers, states, strict=True):
            logger.disabled = state


# Lightning's advice on data loading and logging, which for an inner Trainer does not concern the user.
_ADVICE = (
    "does not have many workers",
    "The number of training batches",
    "You defined a `validation_step` but have no `val_dataloader`",
    "You passed in a `val_dataloader` but have no `validation_step`",
    "The `srun` command",
    "ReduceLROnPlateau conditioned on metric",
    "You called `self.log",
    "There is a wandb run already in progress",
    r"Found \d+ module\(s\) in eval mode",  # intended for a frozen backbone
    r"It is recommended to use `self.log\('(federation/|class_weight/|robust_loss/|round')",  # the same on every rank
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",  # Lightning's own call of torch
)


@contextmanager
def without_advice() -> Iterator[None]:
    """Filter out Lightning's advice on inner Trainers during a federation, and let other warnings pass."""
    with warnings.catch_warnings():
        for text in _ADVICE:
            for category in (PossibleUserWarning, UserWarning, RuntimeWarning, FutureWarning):
                warnings.filterwarnings("ignore", message=f".*{text}", category=category, module="lightning")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus's hooks need no input's gradient
        yield
