"""The training loop of the engine ``fabric``: one client's fit without a Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning.clients.fabric.client_run import ClientRun
from fl_lightning.clients.fabric.log_recorder import LogRecorder
from fl_lightning.clients.fabric.optimizer import ClientHooks, ClientOptimizer, length_of
from fl_lightning.clients.trainer import scalar_metrics, transfer_hooks, transferred
from fl_lightning.clients.turn import TurnPlan
from fl_lightning.compat.lightning import seed_workers, set_sampler_epoch
from fl_lightning.compat.torch import parameters_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.settings.local_training import Place


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
        self._hooks = ClientHooks(module, callbacks)
        self._optimizer = ClientOptimizer(module, self._local, precision, self._hooks)
        self._takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        self._prepares, self._zeroes = (is_overridden(name, module) for name in ("prepare_data", "zero_grad"))
        self._plain = self._device.type == "cpu" and type(precision).__name__ in ("Precision", "MixedPrecision")

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
        self._hooks.begin(self.run, self.recorder)
        stand_in: Any = self.run
        self.module.trainer = data.trainer = stand_in
        attributes["log"] = self.recorder.log
        data.setup("fit")
        try:
            self._run_all()
        except BaseException as error:
            self._hooks.around("on_exception", error)
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
        if self._prepares:
            module.prepare_data()
        self._hooks.around("setup", stage="fit")
        module.setup(stage="fit")
        module.configure_model()
        self._precision.convert_module(module)
        parameters = list(parameters_of(module).values())
        if {parameter.device for parameter in parameters} - {self._device}:
            module.to(self._device)
        self._transfers = transfer_hooks(module, self._data)
        self._in_place = self._plain and not self._transfers
        self._optimizer.begin()
        self._hooks.call("on_fit_start")
        if self._zeroes or any(parameter.grad is not None for parameter in parameters):
            module.zero_grad()
        loader = self._data.train_dataloader()
        if isinstance(loader, DataLoader):
            seed_workers(loader, 0)  # only after seed_everything(workers=True)
        run.note(train_dataloader=loader, num_training_batches=self._count_batches())
        if run.num_training_batches:
            torch.set_grad_enabled(True)
            self._hooks.call("on_train_start")
            while not self._stops() and run.current_epoch < run.last_epoch:
                self._epoch(loader)
            self._hooks.call("on_train_end")
        self._hooks.call("on_fit_end")
        self._hooks.around("teardown", stage="fit")
        module.teardown(stage="fit")

    def _count_batches(self) -> int:
        return self._local.batches(length_of(self._data.train_dataloader(), "fabric"), self._place.fast_dev_run)

    def _stops(self) -> bool:
        return bool(self.run.should_stop) or self.run.global_step >= self.run.last_step

    def _epoch(self, loader: Any) -> None:
        run, recorder, last = self.run, self.recorder, self.run.num_training_batches
        set_sampler_epoch(loader, run.current_epoch)
        self._hooks.call("on_train_epoch_start")
        complete = False
        for batch_idx, raw in enumerate(loader):
            complete = batch_idx + 1 >= last
            run.note(is_last_batch=complete)
            batch = raw if self._in_place else transferred(self._precision.convert_input(raw), self._transfers, self._device)
            recorder.batch = batch
            skips = batch is not None and self._hooks.call("on_train_batch_start", batch, batch_idx) == -1
            complete = complete or skips  # the rest of the epoch
            steps = complete or (batch_idx + 1) % self._local.accumulate_grad_batches == 0
            outputs = None if skips or batch is None else self._batch(batch, batch_idx, steps)
            if steps:
                self._optimizer.schedule("step", batch_idx, False)
            if complete:
                self._optimizer.schedule("epoch", run.current_epoch, False)
            if skips:
                break
            self._hooks.call("on_train_batch_end", outputs, batch, batch_idx)
            recorder.batch = None
            if steps:
                self._optimizer.schedule("step", batch_idx, True)
            if complete or self._stops():
                break
        recorder.batch = None
        recorder.compute()
        self._hooks.call("on_train_epoch_end")
        recorder.compute()
        if complete:
            self._optimizer.schedule("epoch", run.current_epoch, True)
        recorder.reset()
        run.note(_epoch=run.current_epoch + 1)

    def _batch(self, batch: Any, batch_idx: int, steps: bool) -> dict[str, Any]:
        """Train on a batch, and return the outputs for ``on_train_batch_end``."""
        result: dict[str, Any] = {}

        def closure() -> Tensor | None:
            loss = self._training_step(batch, batch_idx, result)
            if batch_idx % self._local.accumulate_grad_batches == 0:
                self._optimizer.zero_grad(batch_idx)
            if loss is not None:
                self._optimizer.backward(loss)
            return loss

        if steps:
            self._optimizer.step(batch_idx, closure)
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
