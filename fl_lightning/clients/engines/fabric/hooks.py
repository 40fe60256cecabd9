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
Method = tuple[Any, Callable[..., Any]]


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
                method = getattr(callback, hook)
                found.append((callback, lambda *a, method=method: method(self.run, self._module, *a)))
        own = [(self._module, getattr(self._module, hook))] if is_overridden(hook, self._module) else []
        watching = [pair for pair in found if isinstance(pair[0], EarlyStopping | Checkpoint) and hook == "on_train_epoch_end"]
        return [pair for pair in found if pair not in watching] + own + watching

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
        methods = self._methods[hook]
        if not methods:
            return None
        answer = None
        for owner, method in methods:
            self.run.note(_asking=type(owner).__name__)
            self.recorder.hook = hook
            result = method(*args)
            answer = result if owner is self._module else answer
        return answer
