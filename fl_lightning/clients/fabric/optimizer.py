"""Run the hooks, the optimizer and the schedulers of a client's fit without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.fabric.client_run import ClientRun
from fl_lightning.clients.fabric.log_recorder import LogRecorder
from fl_lightning.clients.session import TRAINING_HOOKS
from fl_lightning.compat.light_steps import backward_lightly, step_lightly
from fl_lightning.compat.lightning import configured, stepping_through
from fl_lightning.compat.torch import unscales_in_step
from fl_lightning.errors import ConfigurationError, EngineError
from fl_lightning.settings.local_training import LocalTraining

HOOKS = ("on_fit_start", *TRAINING_HOOKS, "on_fit_end")
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
        self.run: Any = run
        self.recorder = recorder
        for callback in self._callbacks:  # as Lightning does
            callback.log, callback.log_dict = recorder.log, self._module.log_dict  # type: ignore[attr-defined]

    def around(self, hook: str, *args: Any, **more: Any) -> None:
        """Call ``setup``, ``teardown`` or ``on_exception`` of the callbacks."""
        for callback in self._around[hook]:
            getattr(callback, hook)(self.run, self._module, *args, **more)

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


def length_of(loader: Any, engine: str) -> int:
    """Return the number of batches of a client's loader.

    Raises:
        EngineError: if it is unknown, as that of a stream, with which only a Trainer copes.
    """
    try:
        return len(loader)
    except TypeError as error:
        raise EngineError(
            f"The number of a client's batches is unknown, as its data are a stream, but the engine '{engine}' needs it. Set "
            "'federation.local.engine' to 'trainer'."
        ) from error


class ClientOptimizer:
    """Step as a Trainer's automatic optimization does.

    Args:
        module: the clients' copy of the user's module.
        local: the settings of the local training.
        precision: a Trainer's precision plugin.
        hooks: the hooks of the fits.
    """

    def __init__(self, module: LightningModule, local: LocalTraining, precision: Any, hooks: ClientHooks) -> None:
        self._module, self._local, self._precision, self._hooks = module, local, precision, hooks
        overridable = ("optimizer_zero_grad", "lr_scheduler_step", "optimizer_step")
        self._zeroes, self._schedules, self._steps = (is_overridden(name, module) for name in overridable)

    def begin(self) -> None:
        """Build the optimizer for the next fit."""
        answer: Any = self._module.configure_optimizers() or []
        optimizers, configs = configured(answer, self._module)
        if len(optimizers) != 1:
            remedy = "Return one." if optimizers else "Return one, or set 'federation.local.engine' to 'trainer'."
            raise EngineError(
                f"{type(self._module).__name__}.configure_optimizers returns {len(optimizers)} optimizers, but the engine "
                f"'fabric' of local training needs exactly one. {remedy}"
            )
        self._hooks.run.note(optimizers=optimizers, lr_scheduler_configs=configs)
        self._optimizer: Optimizer = optimizers[0]
        step_lightly(self._optimizer)
        self._scaler = getattr(self._precision, "scaler", None)
        self._unscales = unscales_in_step(self._optimizer)
        if self._scaler is not None and self._unscales and self._local.gradient_clip_val is not None:
            raise ConfigurationError(  # as Lightning does: otherwise it would clip scaled gradients
                f"'federation.local.gradient_clip_val' is {self._local.gradient_clip_val}, but the fused "
                f"{type(self._optimizer).__name__} removes the gradients' scale inside its step, after they are clipped. Set "
                "fused=False in 'configure_optimizers', remove the clipping, or set 'federation.local.precision' to bf16-mixed."
            )
        self._wrapped: Any = stepping_through(self._optimizer, self) if self._steps else None

    def zero_grad(self, batch_idx: int) -> None:
        """Clear the gradients, between the forward and the backward pass."""
        self._hooks.call("on_before_zero_grad", self._optimizer)
        if self._zeroes:
            self._module.optimizer_zero_grad(self._hooks.run.current_epoch, batch_idx, self._optimizer)
        else:
            self._optimizer.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass, with the loss scaled if the precision needs it."""
        loss = loss if self._scaler is None else self._scaler.scale(loss)
        self._hooks.call("on_before_backward", loss)
        backward_lightly(loss)
        self._hooks.call("on_after_backward")

    def step(self, batch_idx: int, closure: Callable[[], Any]) -> None:
        """Make one step around the closure, with the module's own ``optimizer_step`` if it has one."""
        run, called = self._hooks.run, []

        def noticed() -> Any:
            called.append(True)
            return closure()

        if self._wrapped is None:
            self.optimizer_step(self._optimizer, closure)
        else:
            run.note(_asking=type(self._module).__name__)
            self._module.optimizer_step(run.current_epoch, batch_idx, self._wrapped, noticed)
            if not called:
                raise ConfigurationError(
                    f"{type(self._module).__name__}.optimizer_step does not call its closure, so nothing was trained. Pass "
                    "the closure on: optimizer.step(closure=optimizer_closure)."
                )
        run.note(_steps=run.global_step + 1)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Step, with the hooks and clipping between the closure and the step; a module's own step calls this too."""
        if self._scaler is None:

            def wrapped() -> Any:
                loss = closure()
                self._before_step(optimizer)
                return loss

            return optimizer.step(wrapped, **kwargs)
        if closure() is None:
            return None
        if not self._unscales:
            self._scaler.unscale_(optimizer)
        self._before_step(optimizer)
        self._scaler.step(optimizer, **kwargs)
        self._scaler.update()
        return None

    def _before_step(self, optimizer: Optimizer) -> None:
        self._hooks.call("on_before_optimizer_step", optimizer)
        limit = self._local.gradient_clip_val
        if limit is None:
            return
        parameters = self._precision.main_params(optimizer)
        if self._local.gradient_clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_value=limit)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, limit)

    def schedule(self, interval: str, index: int, plateau: bool) -> None:
        """Step the schedulers that are due.

        Raises:
            ConfigurationError: if a scheduler monitors a metric that the module does not log.
        """
        run = self._hooks.run
        for config in run.lr_scheduler_configs:
            if config.reduce_on_plateau != plateau or config.interval != interval or (index + 1) % config.frequency:
                continue
            value = run.callback_metrics.get(config.monitor) if plateau else None
            if plateau and value is None:
                if config.strict:
                    raise ConfigurationError(
                        f"A scheduler monitors {config.monitor!r}, which {type(self._module).__name__} does not log in "
                        "training. Log it, or let the scheduler monitor another metric."
                    )
            elif self._schedules:
                self._module.lr_scheduler_step(config.scheduler, value)
            else:
                config.scheduler.step(*(() if value is None else (value,)))
