"""The loop of the engine ``fabric``: one client's fit without a Trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.core.optimizer import (
    LightningOptimizer,
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _validate_scheduler_api,
)
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.engines.client_run import ClientRun
from fl_lightning.clients.engines.log_recorder import LogRecorder
from fl_lightning.clients.inner_trainer import transfer_hooks
from fl_lightning.clients.local_training import LocalTraining
from fl_lightning.clients.session import scalar_metrics
from fl_lightning.data.views import TRANSFER_HOOKS
from fl_lightning.errors import ConfigurationError

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
_SEPARATE = ("optimizer_zero_grad", "lr_scheduler_step", "optimizer_step", "prepare_data")


class ClientFit:
    """One client's fit: the steps of a Trainer's, in its order, without what nobody asked for.

    Args:
        module: the clients' copy of the user's module.
        callbacks: of the fit.
        local: the settings of the local training.
        precision: Fabric's plugin.
        device: where the clients train.
        fast: one batch only.
        logger: whether the module finds a (silent) logger.
    """

    def __init__(
        self,
        module: LightningModule,
        callbacks: Sequence[Callback],
        local: LocalTraining,
        precision: Any,
        device: torch.device,
        fast: bool,
        logger: bool,
    ) -> None:
        self.module, self._callbacks, self._local, self._precision = module, list(callbacks), local, precision
        self._device, self._fast, self._logger = device, fast, logger
        self._hooks = {name: self._methods(name) for name in HOOKS}
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        own = {name for name in _SEPARATE if is_overridden(name, module)}
        self._own_zero_grad, self._own_schedule = "optimizer_zero_grad" in own, "lr_scheduler_step" in own
        self._own_step, self._prepares = "optimizer_step" in own, "prepare_data" in own
        self._sets_up = [callback for callback in callbacks if is_overridden("setup", callback, Callback)]
        self._tears_down = [callback for callback in callbacks if is_overridden("teardown", callback, Callback)]
        self._plain = device.type == "cpu" and type(precision).__name__ in ("Precision", "_Mixed")

    def fit(self, data: LightningDataModule, max_epochs: int) -> tuple[int, dict[str, float]]:
        """Train a client.

        Args:
            data: its examples.
            max_epochs: local epochs; -1 for no limit.

        Returns:
            The optimizer's steps and what the module logged.
        """
        module, attributes = self.module, vars(self.module)
        self._scaler = getattr(self._precision, "scaler", None)
        self.run = ClientRun("fabric", self._local, data, self._callbacks, self._precision, self._device, self._logger)
        self.run.note(max_epochs=max_epochs)
        self._data, self._max_epochs, self.recorder = data, max_epochs, LogRecorder(self._device)
        stand_in: Any = self.run
        module.trainer = data.trainer = stand_in
        attributes["log"] = self.recorder.log
        data.setup("fit")
        try:
            self._run_all()
        finally:
            del attributes["log"]
            data.teardown("fit")
        self.run.callback_metrics.update(self.recorder.metrics)
        return self.run.global_step, scalar_metrics(self.run.callback_metrics)

    def _methods(self, hook: str) -> list[tuple[str, Callable[..., Any]]]:
        """Who overrides a hook: callbacks, then the module; without the first two arguments of a callback's."""
        found: list[tuple[str, Callable[..., Any]]] = []
        for callback in self._callbacks:
            if is_overridden(hook, callback, Callback):
                method = getattr(callback, hook)
                found.append((type(callback).__name__, lambda *a, method=method: method(self.run, self.module, *a)))
        if is_overridden(hook, self.module):
            found.append((type(self.module).__name__, getattr(self.module, hook)))
        return found

    def _call(self, hook: str, *args: Any) -> Any:
        """Call a hook; what the module's own gives back."""
        methods = self._hooks[hook]
        if not methods:
            return None
        answer = None
        for name, method in methods:
            self.run.note(_asking=name)
            self.recorder.hook = hook
            answer = method(*args)
        return answer

    # ---------------------------------------------------------------- the fit

    def _run_all(self) -> None:
        """Everything from set-up to teardown, in the order of a Trainer."""
        module, run = self.module, self.run
        stand_in: Any = run
        if self._prepares:
            module.prepare_data()
        for callback in self._sets_up:
            callback.setup(stand_in, module, "fit")
        module.setup("fit")
        module.configure_model()
        self._precision.convert_module(module)
        if any(parameter.device != self._device for parameter in module.parameters()):
            module.to(self._device)
        self._transfers = transfer_hooks(module, self._data)
        self._in_place = self._plain and not self._transfers
        self._configure()
        self._call("on_fit_start")
        loader = self._data.train_dataloader()
        run.note(train_dataloader=loader, num_training_batches=batches_per_epoch(len(loader), self._local, self._fast))
        if run.num_training_batches:
            torch.set_grad_enabled(True)
            self._call("on_train_start")
            while not self._done():
                self._epoch(loader)
            self._call("on_train_end")
        self._call("on_fit_end")
        for callback in self._tears_down:
            callback.teardown(stand_in, module, "fit")
        module.teardown("fit")

    def _configure(self) -> None:
        optimizers, configs = configured_optimizers(self.module)
        if len(optimizers) != 1:
            raise ConfigurationError(
                f"{type(self.module).__name__}.configure_optimizers gives {len(optimizers)} optimizers, but the engine "
                "'fabric' of local training takes one. Give one, or set 'federation.local.engine' to 'trainer'."
            )
        self.run.note(optimizers=optimizers, lr_scheduler_configs=configs)
        self._optimizer: Optimizer = optimizers[0]
        self._wrapped = None
        if self._own_step:
            wrapped: Any = LightningOptimizer(self._optimizer)
            wrapped._strategy = self
            self._wrapped = wrapped

    def _steps_done(self) -> bool:
        return bool(0 <= self._local.max_steps <= self.run.global_step)

    def _done(self) -> bool:
        epochs_done = self._max_epochs != -1 and self.run.current_epoch >= self._max_epochs
        return self._steps_done() or epochs_done or bool(self.run.should_stop)

    def _epoch(self, loader: Any) -> None:
        run, recorder, last = self.run, self.recorder, self.run.num_training_batches
        self._call("on_train_epoch_start")
        complete = False
        for batch_idx, raw in enumerate(loader):
            complete = batch_idx + 1 >= last
            run.note(is_last_batch=complete)
            batch = self._transferred(raw)
            recorder.batch = batch
            skips = self._call("on_train_batch_start", batch, batch_idx) == -1
            steps = complete or (batch_idx + 1) % self._local.accumulate_grad_batches == 0
            outputs = {} if skips else self._batch(batch, batch_idx, steps)
            if steps:
                self._schedule("step", batch_idx, False)
            if complete:
                self._schedule("epoch", run.current_epoch, False)
            if skips:
                break
            self._call("on_train_batch_end", outputs, batch, batch_idx)
            recorder.batch = None
            run.callback_metrics.update(recorder.metrics)
            if steps:
                self._schedule("step", batch_idx, True)
            if complete or self._steps_done() or run.should_stop:
                break
        recorder.batch = None
        recorder.end_epoch()
        run.callback_metrics.update(recorder.metrics)
        self._call("on_train_epoch_end")
        recorder.end_epoch()
        run.callback_metrics.update(recorder.metrics)
        if complete:
            self._schedule("epoch", run.current_epoch, True)
        run.note(current_epoch=run.current_epoch + 1)

    def _transferred(self, batch: Any) -> Any:
        if self._in_place:
            return batch
        batch = self._precision.convert_input(batch)
        before, move, after = (self._transfers.get(name) for name in TRANSFER_HOOKS)
        batch = before(batch, 0) if before else batch
        batch = move(batch, self._device, 0) if move else move_data_to_device(batch, self._device)
        return after(batch, 0) if after else batch

    # ---------------------------------------------------------------- a batch

    def _batch(self, batch: Any, batch_idx: int, steps: bool) -> dict[str, Any]:
        """Train on a batch; what Lightning hands to ``on_train_batch_end``."""
        result: dict[str, Any] = {}

        def closure() -> Tensor | None:
            loss = self._training_step(batch, batch_idx, result)
            if batch_idx % self._local.accumulate_grad_batches == 0:
                self._zero_grad(batch_idx)
            if loss is not None:
                self._backward(loss)
            return loss

        if not steps:
            closure()
            return result
        if self._wrapped is not None:
            self.run.note(_asking=type(self.module).__name__)
            self.module.optimizer_step(self.run.current_epoch, batch_idx, self._wrapped, closure)
        else:
            self.optimizer_step(self._optimizer, closure)
        self.run.note(global_step=self.run.global_step + 1)
        return result

    def _training_step(self, batch: Any, batch_idx: int, result: dict[str, Any]) -> Tensor | None:
        self.recorder.hook = "training_step"
        self.run.note(_asking=type(self.module).__name__)
        with self._precision.forward_context():
            output: Any = self.module.training_step(batch, batch_idx) if self._takes_index else self.module.training_step(batch)
        if isinstance(output, Mapping):
            result |= {key: value for key, value in output.items() if key != "loss"}
            output = output["loss"]
        if output is None:
            return None
        loss: Tensor = output / self._local.accumulate_grad_batches if self._local.accumulate_grad_batches > 1 else output
        result["loss"] = loss.detach().clone()
        return loss

    def _zero_grad(self, batch_idx: int) -> None:
        self._call("on_before_zero_grad", self._optimizer)
        if self._own_zero_grad:
            self.module.optimizer_zero_grad(self.run.current_epoch, batch_idx, self._optimizer)
        else:
            self._optimizer.zero_grad()

    def _backward(self, loss: Tensor) -> None:
        loss = loss if self._scaler is None else self._scaler.scale(loss)
        self._call("on_before_backward", loss)
        loss.backward()
        self._call("on_after_backward")

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Step, with the hooks and the clipping between the closure and the step."""
        if self._scaler is None:

            def wrapped() -> Any:
                loss = closure()
                self._before_step(optimizer)
                return loss

            return optimizer.step(wrapped, **kwargs)
        if closure() is None:
            return None
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            self._scaler.unscale_(optimizer)
        self._before_step(optimizer)
        self._scaler.step(optimizer, **kwargs)
        self._scaler.update()
        return None

    def _before_step(self, optimizer: Optimizer) -> None:
        self._call("on_before_optimizer_step", optimizer)
        limit = self._local.gradient_clip_val
        if limit is None:
            return
        parameters = self._precision.main_params(optimizer)
        if self._local.gradient_clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_value=limit)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, limit)

    def _schedule(self, interval: str, index: int, plateau: bool) -> None:
        """Let schedulers step that are due."""
        for config in self.run.lr_scheduler_configs:
            if config.reduce_on_plateau != plateau or config.interval != interval or (index + 1) % config.frequency:
                continue
            value = None
            if plateau:
                value = self.run.callback_metrics.get(config.monitor)
                if value is None:
                    if config.strict:
                        raise ConfigurationError(
                            f"A scheduler watches {config.monitor!r}, which {type(self.module).__name__} does not log in "
                            "training. Log it, or let the scheduler watch something else."
                        )
                    continue
            if self._own_schedule:
                self.module.lr_scheduler_step(config.scheduler, value)
            elif value is None:
                config.scheduler.step()
            else:
                config.scheduler.step(value)


def configured_optimizers(module: LightningModule) -> tuple[list[Optimizer], list[Any]]:
    """What the module configures, as Lightning reads it: optimizers, and the configurations of their schedulers."""
    answer: Any = module.configure_optimizers() or []
    optimizers, schedulers, monitor = _configure_optimizers(answer)
    configs = _configure_schedulers_automatic_opt(schedulers, monitor)
    _validate_scheduler_api(configs, module)
    return optimizers, configs


def batches_per_epoch(length: int, local: LocalTraining, fast: bool) -> int:
    """Batches of a local epoch, out of those that a client has.

    Raises:
        ConfigurationError: if a share of them is less than one.
    """
    limit = 1 if fast else local.limit_train_batches
    if isinstance(limit, int):
        return min(length, limit)
    count = int(length * limit)
    if length and not count:
        raise ConfigurationError(
            f"'federation.local.limit_train_batches' is {limit}, but a client has {length} batches: that is less than one. "
            f"Set it to {math.ceil(100 / length) / 100} or above, or to a number of batches."
        )
    return count
