"""Turn a user's module into the server's module, which runs rounds, for the duration of a fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.clients.idle_optimizers import IdleOptimizers
from fl_lightning.compat.lightning import is_compiled
from fl_lightning.data.rounds import unless_round
from fl_lightning.errors import ConfigurationError

# Training hooks belong to the clients' copies, because the server's module never sees a batch.
_TRAINING_HOOKS = (
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


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

        replaced: dict[str, Any] = {name: _do_nothing for name in _TRAINING_HOOKS if is_overridden(name, module)}
        for name in _TRANSFER_HOOKS:
            if is_overridden(name, module):
                replaced[name] = unless_round(getattr(module, name))
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


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None
