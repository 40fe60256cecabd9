"""Turning a user's module, for the time of a fit, into the server's module that runs rounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.compat.lightning import is_compiled
from fl_lightning.data.rounds import unless_round
from fl_lightning.errors import ConfigurationError

# Hooks of training. The server's module never sees a batch: they belong to the clients' copies.
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
    """Replaces methods of a module's instance and puts everything back.

    Args:
        module: the user's module; its class is not touched.
        run_round: called with nothing, in place of ``training_step``.
        configure_optimizers: gives the server's optimizer; called while the module is as it was.
        before_load: called likewise with a checkpoint, before the module is restored from it.

    Raises:
        ConfigurationError: if ``training_step`` was replaced on the instance: no copy of it would work on the copy.
    """

    def __init__(
        self,
        module: LightningModule,
        run_round: Callable[[], None],
        configure_optimizers: Callable[[], Any],
        before_load: Callable[[dict[str, Any]], None],
    ) -> None:
        self._module = module
        self._automatic = module.automatic_optimization

        def training_step(batch: Any, batch_idx: int) -> None:  # Lightning looks at the names of the parameters
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
        replaced |= {"on_load_checkpoint": on_load_checkpoint}
        self._replaced = replaced
        self._before = {name: vars(module)[name] for name in replaced if name in vars(module)}
        for name, method in self._before.items():
            if name == "training_step" and not is_compiled(module) and not inspect.ismethod(method):
                raise ConfigurationError(
                    f"'{name}' of {type(module).__name__} was replaced on the instance: a client's copy would run it on "
                    "the original. Override it in a subclass instead."
                )
        self._take()

    def _take(self) -> None:
        vars(self._module).update(self._replaced)
        self._module.automatic_optimization = False

    def release(self) -> None:
        """Give the module back as it was."""
        for name in self._replaced:
            vars(self._module).pop(name, None)
        vars(self._module).update(self._before)
        self._module.automatic_optimization = self._automatic

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The module as it was, for the time of a block: to copy it."""
        self.release()
        try:
            yield
        finally:
            self._take()


def _do_nothing(*args: Any, **kwargs: Any) -> None:
    return None
