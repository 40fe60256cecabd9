"""Call the hooks of a client's fit that are overridden, in Lightning's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.clients.engines.client_run import ClientRun
from fl_lightning.clients.engines.log_recorder import LogRecorder

HOOKS = (
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
)
Method = tuple[Any, str, Callable[..., Any]]
"""A callback or a module, the name of its class, and its method."""


class ClientHooks:
    """Call the hooks of the callbacks and the module.

    Args:
        module: the clients' copy of the user's module.
        callbacks: the callbacks of the fit.
    """

    def __init__(self, module: LightningModule, callbacks: Sequence[Callback]) -> None:
        self._module, self._callbacks = module, list(callbacks)
        self._methods = {name: self._find(name) for name in HOOKS}
        self._around = {
            name: [callback for callback in callbacks if is_overridden(name, callback, Callback)]
            for name in ("setup", "teardown", "on_exception")
        }

    def _find(self, hook: str) -> list[Method]:
        """Return the callbacks' methods, then the module's; at an epoch's end, callbacks that monitor its metrics come last."""
        found: list[Method] = []
        for callback in self._callbacks:
            if is_overridden(hook, callback, Callback):
                found.append((callback, type(callback).__name__, getattr(callback, hook)))
        name = type(self._module).__name__
        own = [(self._module, name, getattr(self._module, hook))] if is_overridden(hook, self._module) else []
        watching = [one for one in found if isinstance(one[0], EarlyStopping | Checkpoint) and hook == "on_train_epoch_end"]
        return [one for one in found if one not in watching] + own + watching

    def begin(self, run: ClientRun, recorder: LogRecorder) -> None:
        """Prepare for the next fit."""
        self.run, self.recorder = run, recorder
        for callback in self._callbacks:  # as Lightning does
            callback.log, callback.log_dict = recorder.log, self._module.log_dict  # type: ignore[attr-defined]

    def set_up(self) -> None:
        """Set up the callbacks, then the module."""
        for callback in self._around["setup"]:
            callback.setup(self._stand_in, self._module, stage="fit")
        self._module.setup(stage="fit")
        self._module.configure_model()

    def tear_down(self) -> None:
        """Tear down the callbacks, then the module."""
        for callback in self._around["teardown"]:
            callback.teardown(self._stand_in, self._module, stage="fit")
        self._module.teardown(stage="fit")

    def hear_of(self, error: BaseException) -> None:
        """Tell the callbacks that the fit ends with an error."""
        for callback in self._around["on_exception"]:
            callback.on_exception(self._stand_in, self._module, error)

    @property
    def _stand_in(self) -> Any:
        return self.run

    def call(self, hook: str, *args: Any) -> Any:
        """Call a hook, and return the result of the module's own method."""
        answer = None
        for owner, name, method in self._methods[hook]:
            vars(self.run)["_asking"] = name
            self.recorder.hook = hook
            if owner is self._module:
                answer = method(*args)
            else:
                method(self.run, self._module, *args)
        return answer
