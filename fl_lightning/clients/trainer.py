"""Train clients one after another with one Lightning Trainer, which runs silently inside the user's and is reused."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, ClassVar

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import WarningCache, rank_zero_module
from lightning.pytorch.utilities.warnings import PossibleUserWarning
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.clients.outer_run import silent_logger
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import ClientSession, LocalResult, PreparedTask
from fl_lightning.clients.turn import TurnPlan, refuse_unlimited
from fl_lightning.compat.light_steps import step_lightly
from fl_lightning.compat.lightning import continue_from, fresh_loops, in_place_results, swap_logging_advice
from fl_lightning.compat.lightning_hooks import lean_hooks
from fl_lightning.compat.signals import ignore_signals
from fl_lightning.compat.torch import buffers_of, parameters_of, parts_of, without_process_group
from fl_lightning.data.views import TRANSFER_HOOKS
from fl_lightning.functional.seeding import isolated_rng
from fl_lightning.settings.local_training import Place

_CHANGEABLE = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "limit_train_batches")
"""The flags of a Trainer that a module may set in training, for this client."""


class TrainerEngine:
    """Train clients one after another with one inner Trainer.

    Args:
        resident: the module that clients train.
        place: where and how the clients train.

    Attributes:
        name: the name of the engine that trains now, as in ``federation.local.engine``.
        reason: why it does under ``auto``; empty otherwise.
        side_by_side: whether it trains several clients at once, and so benefits from many tasks per call.
    """

    name = "trainer"
    reason = ""
    side_by_side: ClassVar[bool] = False
    _trainer: ClientTrainer | None

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        self.resident, self.place = resident, place
        self.close()

    def fit(self, tasks: Sequence[PreparedTask]) -> Iterator[LocalResult]:
        """Train clients from the published model, or from the models of their tasks, and yield each result at once.

        Between two results, the caller may load other models into the resident module. An error ends the iterator; tasks
        without a result may be passed again.

        Raises:
            EngineError: if another engine must train these clients.
        """
        for task in tasks:
            yield self.train(task)

    def train(self, prepared: PreparedTask) -> LocalResult:
        """Train one client."""
        plan = self.session.begin(prepared)
        # A module's own collectives would mix clients that train at the same time, or wait for ever.
        with isolated_rng(prepared.seed, self.place.device), without_process_group():
            try:
                steps, metrics = self._fit(prepared.open_data(), plan)
            finally:
                self.session.stop_listening()
        return self.session.end(steps, metrics)

    def _fit(self, data: LightningDataModule, plan: TurnPlan) -> tuple[int, dict[str, float]]:
        """Fit with :attr:`session` among the callbacks, and return the last ``global_step`` and the logged metrics."""
        trainer = self._trainer
        if trainer is None or self.place.local.callbacks:  # a user's callbacks are copied for each client
            place, local = self.place, self.place.local
            trainer = self._trainer = inner_trainer(
                place.device,
                self.session.callbacks(),
                logger=place.logger,
                outer=place.outer,
                precision=place.precision,
                gradient_clip_val=local.gradient_clip_val,
                gradient_clip_algorithm=local.gradient_clip_algorithm if local.gradient_clip_val else None,
                accumulate_grad_batches=local.accumulate_grad_batches,
                limit_train_batches=1 if place.fast_dev_run else local.limit_train_batches,
                limit_val_batches=0,
                detect_anomaly=local.detect_anomaly,
                deterministic=local.deterministic,
            )
            self._flags = {name: getattr(trainer, name) for name in _CHANGEABLE}
        else:
            fresh_loops(trainer)
            in_place_results(trainer)
            trainer.should_stop = False
            plugin = trainer.precision_plugin
            if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
                plugin.scaler = torch.amp.GradScaler(plugin.device)
            for name, value in self._flags.items():
                setattr(trainer, name, value)
        trainer.planned = trainer.fit_loop.max_epochs, trainer.fit_loop.epoch_loop.max_steps = plan.limits
        with quiet(), lean_hooks():
            trainer.fit(self.resident.module, datamodule=data)
        return trainer.global_step, scalar_metrics(trainer.callback_metrics)

    def recover(self) -> None:
        """Discard the Trainer, so that the next client gets a new one."""
        self._trainer = None

    def close(self) -> None:
        """Release the Trainer, and the data of its last client; :meth:`fit` builds it again."""
        self.recover()
        self.session = ClientSession(self.resident, self.place)


def scalar_metrics(logged: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics that the module logged, as numbers, with a single transfer from the device."""
    names = [name for name in logged if not name.endswith("_step")]
    if not names:
        return {}
    values = torch.stack([logged[name].double().mean() for name in names]).tolist()
    return dict(zip(names, values, strict=True))


# ---------------------------------------------------------------- the inner Trainer


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
        parts = parts_of(self.model)
        buffers = (buffer for part in parts.values() for buffer in buffers_of(part).values() if buffer is not None)
        metrics = (part for part in parts.values() if isinstance(part, Metric))
        if any(one.device != self.root_device for one in chain(parameters_of(self.model, parts).values(), buffers, metrics)):
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


def transfer_hooks(module: LightningModule, data: LightningDataModule | None) -> dict[str, Callable[..., Any]]:
    """Return the overridden transfer hooks of module and datamodule, by name; the datamodule's take precedence."""
    found: dict[str, Callable[..., Any]] = {}
    for hook in TRANSFER_HOOKS:
        if data is not None and is_overridden(hook, data, LightningDataModule):
            found[hook] = getattr(data, hook)
        elif is_overridden(hook, module):
            found[hook] = getattr(module, hook)
    return found


def transferred(batch: Any, hooks: Mapping[str, Callable[..., Any]], device: torch.device) -> Any:
    """Return a batch on a device, after a module's :func:`transfer_hooks`."""
    before, move, after = (hooks.get(name) for name in TRANSFER_HOOKS)
    batch = before(batch, 0) if before else batch
    if move:
        batch = move(batch, device, 0)
    elif not is_on(batch, device):
        batch = move_data_to_device(batch, device)
    return after(batch, 0) if after else batch


def is_on(batch: Any, device: torch.device) -> bool:
    """Return whether a batch is a tensor or a list of tensors on a device: Lightning's own search takes a tenth of a step."""
    parts = batch if type(batch) in (list, tuple) else (batch,)
    return all(isinstance(part, Tensor) and part.device == device for part in parts)


def moves_batches(module: LightningModule, data: LightningDataModule) -> bool:
    """Return whether module or datamodule override a hook that runs before or during a batch's transfer."""
    return bool(transfer_hooks(module, data).keys() & {"on_before_batch_transfer", "transfer_batch_to_device"})


class LastMetrics(dict[str, Tensor]):
    """Hold the metrics of a client's fit; ``metrics["name"]`` also finds those of the last validation of the run around it.

    ``get``, ``in`` and iteration see the client's own alone, so that a schedule that follows a metric is not stepped with them.

    Args:
        own: the client's metrics.
        outer: the user's Trainer.
    """

    def __init__(self, own: Mapping[str, Tensor], outer: Trainer | None) -> None:
        super().__init__(own)
        self._outer = outer

    def __deepcopy__(self, memo: dict[int, Any]) -> LastMetrics:
        """Return a copy of the client's metrics, for the same Trainer, which is not copied."""
        return LastMetrics(copy.deepcopy(dict(self), memo), self._outer)

    def __missing__(self, name: str) -> Tensor:
        """Return a metric of the run around the client."""
        if self._outer is None:
            raise KeyError(name)
        return self._outer.callback_metrics[name]


class ClientTrainer(Trainer):
    """Train clients inside another Trainer's run.

    It shows the limits of the whole training, beyond which the turns of an extended run lie, and the checkpoints and last
    metrics of the run around it. It refuses to estimate the steps of a training without an end.
    """

    outer: Trainer | None = None
    planned: tuple[int, int] | None = None
    datamodule: LightningDataModule | None

    def begin_at(self, epoch: int, step: int) -> None:
        """Let a fit that is about to begin count from an epoch and a step of the whole training."""
        continue_from(self, epoch, step)

    def end_before(self, epoch: float, step: float) -> None:
        """Let a fit end before an epoch and a step, whatever the module sets ``should_stop`` to; infinite for no limit."""
        self.fit_loop.max_epochs = -1 if epoch == math.inf else int(epoch)
        self.fit_loop.epoch_loop.max_steps = -1 if step == math.inf else int(step)

    @property
    def max_epochs(self) -> int | None:
        """Return the number of epochs of the whole training; -1 for no limit."""
        return super().max_epochs if self.planned is None else self.planned[0]

    @property
    def max_steps(self) -> int:
        """Return the number of optimizer steps of the whole training; -1 for no limit."""
        return super().max_steps if self.planned is None else self.planned[1]

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
        if self.max_epochs in (None, -1):
            return refuse_unlimited() if self.max_steps == -1 else self.max_steps
        if self.num_training_batches == math.inf and self.train_dataloader is None:
            self.fit_loop.setup_data()
        batches = self.num_training_batches
        planned = -1 if batches == math.inf else math.ceil(batches / self.accumulate_grad_batches) * max(self.max_epochs, 1)
        return max(planned, self.max_steps) if -1 in (planned, self.max_steps) else min(planned, self.max_steps)


class _NoProfiler(PassThroughProfiler):
    """Provide a free profiling context: Lightning opens one around each of about 25 hooks per step."""

    profile: Any = nullcontext


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
    kind = "gpu" if device.type == "cuda" else device.type
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
