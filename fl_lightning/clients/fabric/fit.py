"""The training loop of the engine ``fabric``: one client's fit without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fl_lightning.clients.fabric.client_run import ClientRun
from fl_lightning.clients.fabric.log_recorder import LogRecorder
from fl_lightning.clients.session import TRAINING_HOOKS
from fl_lightning.clients.trainer import scalar_metrics, transfer_hooks, transferred
from fl_lightning.clients.turn import TurnPlan
from fl_lightning.compat.light_steps import backward_lightly, step_lightly
from fl_lightning.compat.lightning import configured, seed_workers, set_sampler_epoch, stepping_through
from fl_lightning.compat.torch import parameters_of, unscales_in_step
from fl_lightning.errors import ConfigurationError, EngineError
from fl_lightning.settings.local_training import Place

HOOKS = ("on_fit_start", *TRAINING_HOOKS, "on_fit_end")
_MAYBE = ("prepare_data", "zero_grad", "optimizer_zero_grad", "lr_scheduler_step", "optimizer_step")
"""The methods of a module that are called only if it overrides them."""
Method = tuple[Any, str, Callable[..., Any]]
"""A callback or a module, the name of its class, and its method."""


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


class ClientFit:
    """Run clients' fits with the steps of a Trainer, in its order, without the parts that are not used.

    Args:
        module: the clients' copy of the user's module.
        callbacks: the callbacks of the fits.
        precision: a Trainer's precision plugin.
        place: where and how the clients train.
    """

    def __init__(self, module: LightningModule, callbacks: Sequence[Callback], precision: Any, place: Place) -> None:
        self.module, self._callbacks, self._precision = module, list(callbacks), precision
        self._place, self._local, self._device = place, place.local, place.device
        self._methods = {name: self._find(name) for name in HOOKS}
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        self._own = {name for name in _MAYBE if is_overridden(name, module)}
        self._plain = self._device.type == "cpu" and type(precision).__name__ in ("Precision", "MixedPrecision")

    def _find(self, hook: str) -> list[Method]:
        """Return the callbacks' methods, then the module's; at an epoch's end, callbacks that monitor its metrics come last."""
        callbacks = [callback for callback in self._callbacks if is_overridden(hook, callback, Callback)]
        modules = [self.module] if is_overridden(hook, self.module) else []
        found, own = ([(one, type(one).__name__, getattr(one, hook)) for one in owners] for owners in (callbacks, modules))
        watching = [one for one in found if isinstance(one[0], EarlyStopping | Checkpoint) and hook == "on_train_epoch_end"]
        return [one for one in found if one not in watching] + own + watching

    def fit(self, data: LightningDataModule, plan: TurnPlan) -> tuple[int, dict[str, float]]:
        """Train a client.

        Args:
            data: the client's examples.
            plan: the epochs and steps of its turn.

        Returns:
            The last ``global_step`` and the metrics that the module logged.
        """
        attributes = vars(self.module)
        self.run = ClientRun("fabric", self._place, data, self._callbacks, self._precision)
        self.recorder = LogRecorder(self._device, self.run.callback_metrics)
        epochs, steps = plan.limits
        self.run.note(max_epochs=epochs, max_steps=steps, _count_batches=self._count_batches)
        self._data = data
        for callback in self._callbacks:  # as Lightning does
            callback.log, callback.log_dict = self.recorder.log, self.module.log_dict  # type: ignore[attr-defined]
        stand_in: Any = self.run
        self.module.trainer = data.trainer = stand_in
        attributes["log"] = self.recorder.log
        data.setup("fit")
        try:
            self._run_all()
        except BaseException as error:
            self.around("on_exception", error)
            raise
        finally:
            del attributes["log"]
            data.teardown("fit")
            self.run.note(train_dataloader=None)  # released now: cycles keep the run for a while
        self.run.end()
        return self.run.global_step, scalar_metrics(self.run.callback_metrics)

    def _run_all(self) -> None:
        """Run everything from setup to teardown, in the order of a Trainer."""
        module, run = self.module, self.run
        if "prepare_data" in self._own:
            module.prepare_data()
        self.around("setup", stage="fit")
        module.setup(stage="fit")
        module.configure_model()
        self._precision.convert_module(module)
        parameters = list(parameters_of(module).values())
        if {parameter.device for parameter in parameters} - {self._device}:
            module.to(self._device)
        self._transfers = transfer_hooks(module, self._data)
        self._in_place = self._plain and not self._transfers
        self._configure()
        self.call("on_fit_start")
        if "zero_grad" in self._own or any(parameter.grad is not None for parameter in parameters):
            module.zero_grad()
        loader = self._data.train_dataloader()
        if isinstance(loader, DataLoader):
            seed_workers(loader, 0)  # only after seed_everything(workers=True)
        run.note(train_dataloader=loader, num_training_batches=self._count_batches())
        if run.num_training_batches:
            torch.set_grad_enabled(True)
            self.call("on_train_start")
            while not self._stops() and run.current_epoch < run.last_epoch:
                self._epoch(loader)
            self.call("on_train_end")
        self.call("on_fit_end")
        self.around("teardown", stage="fit")
        module.teardown(stage="fit")

    def _count_batches(self) -> int:
        return self._local.batches(length_of(self._data.train_dataloader(), "fabric"), self._place.fast_dev_run)

    def _stops(self) -> bool:
        return bool(self.run.should_stop) or self.run.global_step >= self.run.last_step

    def _epoch(self, loader: Any) -> None:
        run, recorder, last = self.run, self.recorder, self.run.num_training_batches
        set_sampler_epoch(loader, run.current_epoch)
        self.call("on_train_epoch_start")
        complete = False
        for batch_idx, raw in enumerate(loader):
            complete = batch_idx + 1 >= last
            run.note(is_last_batch=complete)
            batch = raw if self._in_place else transferred(self._precision.convert_input(raw), self._transfers, self._device)
            recorder.batch = batch
            skips = batch is not None and self.call("on_train_batch_start", batch, batch_idx) == -1
            complete = complete or skips  # the rest of the epoch
            steps = complete or (batch_idx + 1) % self._local.accumulate_grad_batches == 0
            outputs = None if skips or batch is None else self._batch(batch, batch_idx, steps)
            if steps:
                self._schedule("step", batch_idx, False)
            if complete:
                self._schedule("epoch", run.current_epoch, False)
            if skips:
                break
            self.call("on_train_batch_end", outputs, batch, batch_idx)
            recorder.batch = None
            if steps:
                self._schedule("step", batch_idx, True)
            if complete or self._stops():
                break
        recorder.batch = None
        recorder.compute()
        self.call("on_train_epoch_end")
        recorder.compute()
        if complete:
            self._schedule("epoch", run.current_epoch, True)
        recorder.reset()
        run.note(_epoch=run.current_epoch + 1)

    def _batch(self, batch: Any, batch_idx: int, steps: bool) -> dict[str, Any]:
        """Train on a batch, and return the outputs for ``on_train_batch_end``."""
        result: dict[str, Any] = {}

        def closure() -> Tensor | None:
            loss = self._training_step(batch, batch_idx, result)
            if batch_idx % self._local.accumulate_grad_batches == 0:
                self._zero_grad(batch_idx)
            if loss is not None:
                self._backward(loss)
            return loss

        if steps:
            self._step(batch_idx, closure)
        else:
            closure()
        return result

    def _training_step(self, batch: Any, batch_idx: int, result: dict[str, Any]) -> Tensor | None:
        self.recorder.hook = "training_step"
        self.run.note(_asking=type(self.module).__name__)
        with self._precision.forward_context():
            output: Any = self.module.training_step(batch, batch_idx) if self._takes_index else self.module.training_step(batch)
        if isinstance(output, Mapping):
            result |= {key: value for key, value in output.items() if key != "loss"}
            output = output.get("loss", output)
        if output is None:
            return None
        if not isinstance(output, Tensor):
            raise ConfigurationError(
                f"The training_step of {type(self.module).__name__} returns a {type(output).__name__} without a loss. Return "
                "a tensor, a dictionary with 'loss', or None to skip the batch."
            )
        loss: Tensor = output / self._local.accumulate_grad_batches if self._local.accumulate_grad_batches > 1 else output
        result["loss"] = loss.detach().clone()
        return loss

    # ---------------------------------------------------------------- hooks

    def around(self, hook: str, *args: Any, **more: Any) -> None:
        """Call a hook around the fit: ``setup``, ``teardown`` or ``on_exception`` of the callbacks."""
        for callback in self._callbacks:
            getattr(callback, hook)(self.run, self.module, *args, **more)

    def call(self, hook: str, *args: Any) -> Any:
        """Call a hook, and return the result of the module's own method."""
        answer = None
        for owner, name, method in self._methods[hook]:
            vars(self.run)["_asking"] = name
            self.recorder.hook = hook
            if owner is self.module:
                answer = method(*args)
            else:
                method(self.run, self.module, *args)
        return answer

    # ---------------------------------------------------------------- the optimizer and its schedules

    def _configure(self) -> None:
        """Build the optimizer for the next fit."""
        answer: Any = self.module.configure_optimizers() or []
        optimizers, configs = configured(answer, self.module)
        if len(optimizers) != 1:
            remedy = "Return one." if optimizers else "Return one, or set 'federation.local.engine' to 'trainer'."
            raise EngineError(
                f"{type(self.module).__name__}.configure_optimizers returns {len(optimizers)} optimizers, but the engine "
                f"'fabric' of local training needs exactly one. {remedy}"
            )
        self.run.note(optimizers=optimizers, lr_scheduler_configs=configs)
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
        self._wrapped: Any = stepping_through(self._optimizer, self) if "optimizer_step" in self._own else None

    def _zero_grad(self, batch_idx: int) -> None:
        """Clear the gradients, between the forward and the backward pass."""
        self.call("on_before_zero_grad", self._optimizer)
        if "optimizer_zero_grad" in self._own:
            self.module.optimizer_zero_grad(self.run.current_epoch, batch_idx, self._optimizer)
        else:
            self._optimizer.zero_grad()

    def _backward(self, loss: Tensor) -> None:
        """Run the backward pass, with the loss scaled if the precision needs it."""
        loss = loss if self._scaler is None else self._scaler.scale(loss)
        self.call("on_before_backward", loss)
        backward_lightly(loss)
        self.call("on_after_backward")

    def _step(self, batch_idx: int, closure: Callable[[], Any]) -> None:
        """Make one step around the closure, with the module's own ``optimizer_step`` if it has one."""
        run, called = self.run, []

        def noticed() -> Any:
            called.append(True)
            return closure()

        if self._wrapped is None:
            self.optimizer_step(self._optimizer, closure)
        else:
            run.note(_asking=type(self.module).__name__)
            self.module.optimizer_step(run.current_epoch, batch_idx, self._wrapped, noticed)
            if not called:
                raise ConfigurationError(
                    f"{type(self.module).__name__}.optimizer_step does not call its closure, so nothing was trained. Pass "
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
        self.call("on_before_optimizer_step", optimizer)
        limit = self._local.gradient_clip_val
        if limit is None:
            return
        parameters = self._precision.main_params(optimizer)
        if self._local.gradient_clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_value=limit)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, limit)

    def _schedule(self, interval: str, index: int, plateau: bool) -> None:
        """Step the schedulers that are due.

        Raises:
            ConfigurationError: if a scheduler monitors a metric that the module does not log.
        """
        run = self.run
        for config in run.lr_scheduler_configs:
            if config.reduce_on_plateau != plateau or config.interval != interval or (index + 1) % config.frequency:
                continue
            value = run.callback_metrics.get(config.monitor) if plateau else None
            if plateau and value is None:
                if config.strict:
                    raise ConfigurationError(
                        f"A scheduler monitors {config.monitor!r}, which {type(self.module).__name__} does not log in "
                        "training. Log it, or let the scheduler monitor another metric."
                    )
            elif "lr_scheduler_step" in self._own:
                self.module.lr_scheduler_step(config.scheduler, value)
            else:
                config.scheduler.step(*(() if value is None else (value,)))
