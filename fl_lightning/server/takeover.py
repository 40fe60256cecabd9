"""Turn a user's module and Trainer into those of a server that runs rounds, for the duration of a fit."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, ModelSummary, ProgressBar
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

from fl_lightning.clients.attribute_values import PLAIN, equal, is_copied
from fl_lightning.clients.outer_run import IdleOptimizers
from fl_lightning.clients.session import TRAINING_HOOKS
from fl_lightning.compat.lightning import is_compiled
from fl_lightning.compat.signals import note_sigterm, on_sigterm
from fl_lightning.compat.torch import outside_autocast
from fl_lightning.data.views import TRANSFER_HOOKS, unless_round
from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.collectives import Collectives


class Takeover:
    """Replace methods on a module's instance, and restore them afterwards.

    Args:
        module: the user's module, whose class stays unchanged.
        run_round: a function without arguments that replaces ``training_step``.
        configure_optimizers: a function that returns the server's optimizer, called with the original module in place.
        before_load: a function of a checkpoint, called with the original module in place, before the checkpoint is restored.
        before_step: a function without arguments, called after all callbacks' hooks and before the server's optimizer steps.

    Raises:
        ConfigurationError: if ``training_step`` was replaced on the instance, where a client's copy would run the original's.
    """

    def __init__(
        self,
        module: LightningModule,
        run_round: Callable[[], None],
        configure_optimizers: Callable[[], Any],
        before_load: Callable[[dict[str, Any]], None],
        before_step: Callable[[], None],
    ) -> None:
        self._module = module
        self._automatic = module.automatic_optimization

        def training_step(batch: Any, batch_idx: int) -> None:  # Lightning inspects the parameters' names
            run_round()

        def server_optimizer() -> Any:
            with self.suspended():
                return configure_optimizers()

        own_load = module.on_load_checkpoint

        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            with self.suspended():
                before_load(checkpoint)
            own_load(checkpoint)

        # Hooks of training belong to the clients' copies, because the server's module never sees a batch.
        replaced: dict[str, Any] = {n: lambda *_, **__: None for n in TRAINING_HOOKS if is_overridden(n, module)}
        replaced |= {name: unless_round(getattr(module, name)) for name in TRANSFER_HOOKS if is_overridden(name, module)}
        replaced |= {"training_step": training_step, "configure_optimizers": server_optimizer}
        replaced |= {"on_load_checkpoint": on_load_checkpoint, "on_before_optimizer_step": lambda optimizer: before_step()}
        idle = IdleOptimizers(module, self.suspended)
        for name in ("optimizers", "lr_schedulers"):
            replaced[name] = _in_validation(module, getattr(idle, name), getattr(module, name))
        self._replaced = replaced
        self._before = {name: vars(module)[name] for name in replaced if name in vars(module)}
        for name, method in self._before.items():
            if name == "training_step" and not is_compiled(module) and not inspect.ismethod(method):
                raise ConfigurationError(
                    f"'{name}' of {type(module).__name__} was replaced on the instance, so a client's copy would run it on "
                    "the original module. Override it in a subclass instead."
                )
        self._take()

    def _take(self) -> None:
        vars(self._module).update(self._replaced)
        self._module.automatic_optimization = False

    def release(self) -> None:
        """Restore the module."""
        for name in self._replaced:
            vars(self._module).pop(name, None)
        vars(self._module).update(self._before)
        self._module.automatic_optimization = self._automatic

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the module for the duration of a block, for copying it."""
        self.release()
        try:
            yield
        finally:
            self._take()


def _in_validation(module: LightningModule, idle: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that answers with the server's optimizer while it steps, and with the module's own in validation."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        trainer = module.trainer
        return idle(*args, **kwargs) if trainer.validating or trainer.sanity_checking else own(*args, **kwargs)

    return answer


_BESIDE = (Checkpoint, ModelSummary, ProgressBar)
"""Lightning's own callbacks of every Trainer, which leave optimizers alone."""


class Untouched:
    """Compare the server's optimizer with what its last step left."""

    def note(self, optimizer: Optimizer, groups: Sequence[dict[str, Any]] | None = None) -> None:
        """Remember the optimizer and its settings.

        Args:
            optimizer: the server's optimizer.
            groups: the settings of its groups in a checkpoint that is about to be restored; by default its own.
        """
        self._optimizer = optimizer
        self._groups: list[dict[str, Any]] = [
            {k: copy.deepcopy(v) for k, v in group.items() if k != "params" and (isinstance(v, PLAIN) or is_copied(v))}
            for group in (optimizer.param_groups if groups is None else groups)
        ]

    def check(self, trainer: Trainer) -> None:
        """Refuse a change since then.

        Raises:
            ConfigurationError: naming the change, the callbacks that may have made it, and where rates are set.
        """
        now, its, change = self._optimizer.param_groups, "the server's optimizer", ""
        if len(trainer.optimizers) != 1 or trainer.optimizers[0] is not self._optimizer:
            change = f"replaced {its}"
        elif trainer.lr_scheduler_configs:
            change = f"added a schedule to {its}"
        elif len(now) != len(self._groups):
            change = f"added a group to {its}"
        for before, group in zip(self._groups, now, strict=False):
            for name, value in before.items():
                if not change and not equal(value, group.get(name)):
                    change = f"set '{name}' of {its} from {value} to {group.get(name)}"
        if change:
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            own = [type(one) for one in callbacks if not isinstance(one, _BESIDE)]
            names = ", ".join(kind.__name__ for kind in own if not kind.__module__.startswith("fl_lightning."))
            raise ConfigurationError(
                f"In round {trainer.current_epoch}, a hook of {type(trainer.lightning_module).__name__}"
                f"{f' or a callback of the Trainer ({names})' if names else ''} has {change}. This optimizer applies the "
                "clients' average and trains on no batch. Let the change act at the clients: in 'configure_optimizers' or "
                "'on_train_start' of the module, or by a callback in 'federation.local.callbacks'. The server's settings are "
                "those of 'federation.server_optimizer' in all rounds."
            )


class Termination:
    """Note SIGTERM on this rank during a fit, and tell the others between rounds; a single rank ends as Lightning does.

    Args:
        trainer: the user's Trainer, before it takes over signals.
        cleanup: an exit stack that gives the signal back to the Trainer.
    """

    def __init__(self, trainer: Trainer, cleanup: ExitStack) -> None:
        self._trainer, self._asked = trainer, Event()
        if trainer.world_size > 1:
            cleanup.callback(on_sigterm(trainer, self._asked.set))

    def agree(self, comm: Collectives, raises: bool) -> None:
        """End the run on all ranks if one of them has been told to; every rank must call this at the same points of a round.

        Args:
            comm: the ranks.
            raises: whether to end at once, and not at the next point where a Trainer would.

        Raises:
            SIGTERMException: on every rank, if the run ends at once.
        """
        if comm.size == 1:
            return
        asked = torch.tensor([self._asked.is_set()], dtype=torch.int64, device=self._trainer.strategy.root_device)
        if comm.elementwise_maximum(asked).item():
            note_sigterm(self._trainer)
            if raises:
                raise SIGTERMException


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
    cleanup.enter_context(patch.object(trainer, "log_every_n_steps", 1))
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision):
        cleanup.enter_context(patch.object(plugin, "scaler", None))
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
