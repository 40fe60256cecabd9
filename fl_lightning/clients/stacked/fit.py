"""Train one stack of clients, step by step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from fl_lightning.clients.fabric.client_run import ClientRun, varying
from fl_lightning.clients.fabric.log_recorder import LogRecorder
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import LocalResult, PreparedTask
from fl_lightning.clients.stacked.batches import ClientRandom, GatheredBatches, Groups, StackedBatches, can_gather
from fl_lightning.clients.stacked.effects import replay
from fl_lightning.clients.stacked.stack import ClientStack, StackedOptimizer, Tensors, clip
from fl_lightning.clients.stacked.step import StackedStep
from fl_lightning.clients.trainer import scalar_metrics, transfer_hooks
from fl_lightning.clients.turn import ScheduleMover, TurnPlan
from fl_lightning.compat.lightning import configured
from fl_lightning.compat.torch import parameters_of
from fl_lightning.errors import EngineError
from fl_lightning.functional.description import is_users
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.settings.local_training import Place
from fl_lightning.types import ClientUpdate


class SharedRun(ClientRun):
    """Answer the step that several clients share: only what is the same for all of them."""

    num_training_batches: int | float = varying("num_training_batches", "Return the number of batches in an epoch.")
    max_epochs: int = varying("max_epochs", "Return the number of epochs in the whole training; -1 for no limit.")
    max_steps: int = varying("max_steps", "Return the number of optimizer steps in the whole training; -1 for no limit.")
    optimizers: list[Optimizer] = varying("optimizers", "Return the optimizers, whose learning rates may change.")
    lr_scheduler_configs: list[Any] = varying("lr_scheduler_configs", "Return Lightning's configurations of the schedulers.")


class StackedFit:
    """Train one stack of clients that have the same number of batches.

    Args:
        resident: the clients' module, with the global model in it.
        step: the stacked training step.
        tasks: the clients' tasks.
        data: the clients' examples.
        place: where and how the clients train.
        precision: a Trainer's precision plugin.
    """

    def __init__(
        self,
        resident: ResidentModel,
        step: StackedStep,
        tasks: Sequence[PreparedTask],
        data: Sequence[LightningDataModule],
        place: Place,
        precision: Any,
    ) -> None:
        self._resident = resident
        self._module, self._step, self._place = resident.module, step, place
        self._local, self._device, self._server = place.local, place.device, resident.server
        self._tasks, self._data, self._size, self._precision = tasks, data, len(tasks), precision
        self._begun = time.perf_counter()
        self._runs: list[Any] = [ClientRun("stacked", place, own, (), precision) for own in data]
        self._shared: Any = SharedRun("stacked", place, data[0], (), precision)
        self._shared.forget("datamodule", "callback_metrics")  # the step answers only what is the same for all clients
        self._every: list[ClientRun] = [*self._runs, self._shared]
        for run in self._every:
            run.forget("callbacks", "is_last_batch", "should_stop")
        self._recorders = [LogRecorder(place.device, run.callback_metrics) for run in self._runs]
        self._random = [ClientRandom(task.seed, place.device) for task in tasks]
        self._metrics = [part for part in self._module.modules() if isinstance(part, Metric)]
        self._losses: list[Tensor] = []
        held = [dict(one.held) for one in tasks]
        self._stack = ClientStack(self._module, resident.view(), [one.task.start for one in tasks], held)

    # ---------------------------------------------------------------- the fit

    def run(self, loaders: Sequence[Any], num_batches: int, plan: TurnPlan, mover: ScheduleMover) -> list[LocalResult]:
        """Train the stack.

        Args:
            loaders: the clients' batches.
            num_batches: the number of batches in each client's local epoch.
            plan: the epochs and steps of the clients' turns.
            mover: moves schedulers to the beginning of a turn.

        Returns:
            The results of the clients, in the order of the tasks.
        """
        for own, run in zip(self._data, self._runs, strict=True):
            own.trainer = run
        self._module.trainer = self._runs[0]
        epochs, steps = plan.limits
        self._note(max_epochs=epochs, max_steps=steps, _count_batches=lambda: num_batches)
        with ExitStack() as ending:
            ending.callback(vars(self._module).pop, "log", None)
            for own in self._data:
                own.setup("fit")
                ending.callback(own.teardown, "fit")
            self._start(num_batches, plan, mover)
            with self._step.traces.unchanged("The training_step"):  # 'configure_optimizers' may keep an optimizer
                self._train(loaders, num_batches, plan)
        for run in self._every:
            run.end()
        return self._results()

    def _note(self, **state: Any) -> None:
        for run in self._every:
            run.note(**state)

    def _train(self, loaders: Sequence[Any], num_batches: int, plan: TurnPlan) -> None:
        epoch, self._first_step = plan.first(num_batches)
        self._note(num_training_batches=num_batches, _epoch=epoch, _steps=self._first_step)
        self._hook("on_train_start")
        last = math.inf if plan.epochs == -1 else epoch + plan.epochs
        while num_batches and epoch < last and not self._steps_done():
            self._epoch(loaders, num_batches, epoch)
            epoch += 1
        for hook in ("on_train_end", "on_fit_end"):
            self._hook(hook)

    def _start(self, num_batches: int, plan: TurnPlan, mover: ScheduleMover) -> None:
        self._hook("on_fit_start")
        answer: Any = self._module.configure_optimizers() or []
        optimizers, configs = configured(answer, self._module)
        if not any(config.reduce_on_plateau for config in configs):  # otherwise StackedOptimizer refuses
            mover.move(optimizers, configs, plan, num_batches, lambda config, epoch, step: config.scheduler.step())
        named = parameters_of(self._module)
        stacked = {id(named[name]): tensor for name, tensor in self._stack.parameters.items()}
        decay = self._local.lr_decay ** self._tasks[0].task.round_idx
        mu = sum(rule.strength(None) for rule in self._place.rules)
        self._optimizer = StackedOptimizer(optimizers, configs, stacked, decay, mu, by_reference=plan.progress is not None)
        steps_on = {id(tensor) for tensor in self._optimizer.tensors}
        self._stepped = {name for name, tensor in self._stack.parameters.items() if id(tensor) in steps_on}
        self._note(optimizers=optimizers, lr_scheduler_configs=configs)
        self._terms = [(rule, self._stack.by_name(terms)) for rule in self._place.rules if all(terms := self._begin(rule))]
        for rule, _ in self._terms:
            rule.check_optimizers([self._optimizer.own], self._optimizer.words)

    def _begin(self, rule: ClientRule) -> list[list[Tensor]]:
        """Return a rule's terms for each client."""
        sent = self._server.broadcast
        starts = [LocalStart(self._stack.trained_of(k), sent, one.kept) for k, one in enumerate(self._tasks)]
        terms = [rule.begin(start) for start in starts]
        if any(terms) and not all(terms):
            raise EngineError(
                f"{type(rule).__name__}.begin turns the rule off for some clients of a stack, which stacked clients do not "
                "support. Return terms for all clients or for none, or set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        return terms

    def _steps_done(self) -> bool:
        return 0 <= self._local.max_steps <= self._optimizer.num_steps

    def _hook(self, name: str) -> None:
        """Call a hook of the module for every client."""
        if not is_overridden(name, self._module):
            return
        with self._watched(name):
            for run, recorder in zip(self._runs, self._recorders, strict=True):
                self._take_part(run, recorder, name)
                getattr(self._module, name)()

    def _watched(self, hook: str) -> AbstractContextManager[None]:
        """Return a context that refuses traces of the user's own hook, also those that a later hook would undo."""
        users = is_users(getattr(type(self._module), hook))
        return self._step.traces.unchanged(f"The '{hook}'") if users else nullcontext()

    def _take_part(self, run: Any, recorder: LogRecorder, hook: str) -> None:
        self._module.trainer = run
        recorder.hook = hook
        vars(self._module)["log"] = recorder.log

    def _epoch(self, loaders: Sequence[Any], num_batches: int, epoch: int) -> None:
        self._note(_epoch=epoch)
        self._hook("on_train_epoch_start")
        convert = self._precision.convert_input
        batches: Iterator[Groups]
        if can_gather(loaders, [transfer_hooks(self._module, own) for own in self._data]):
            batches = GatheredBatches(loaders, convert, self._device)
        else:
            batches = StackedBatches(self._module, self._data, loaders, self._random, convert, self._device)
        sums: Tensors = {}
        notes: list[list[tuple[list[Any], int]]] = [[] for _ in self._tasks]
        accumulated = self._local.accumulate_grad_batches
        complete = False
        for batch_idx in range(num_batches):
            complete = batch_idx + 1 >= num_batches
            gradients = self._gradients(next(batches), batch_idx, notes)
            # As in a Trainer, the first batch of an epoch clears the gradients of the previous epoch.
            first = batch_idx % accumulated == 0
            sums = gradients if first else {name: sums[name] + gradients[name] for name in gradients}
            if complete or (batch_idx + 1) % accumulated == 0:
                self._step_all(sums)
                self._optimizer.schedule("step", batch_idx)
            if complete:
                self._optimizer.schedule("epoch", epoch)
            if self._steps_done():
                break
        with self._watched("on_train_epoch_end"):
            self._end_epoch(notes)

    def _gradients(self, groups: Groups, batch_idx: int, notes: list[list[Any]]) -> Tensors:
        """Return the gradients of all clients, whose batches come in groups of equal shape."""
        losses = torch.zeros(self._size, device=self._device, dtype=torch.float64)
        found: Tensors = {}
        self._module.trainer = self._shared
        for positions, batch in groups:
            whole = len(positions) == self._size
            chosen = None if whole else torch.tensor(positions, device=self._device)
            parameters, buffers = self._stack.part(chosen)
            trial = self._step.trial(parameters, buffers, batch, batch_idx)
            drawn = [[spec.draw(self._random[position].masks) for spec in trial.masks] for position in positions]
            masks = [torch.stack(column) for column in zip(*drawn, strict=True)]
            gradients, means, after, noted = self._step.gradients(parameters, buffers, batch, batch_idx, masks, trial)
            for row, position in enumerate(positions):
                notes[position].append(((noted, row), batch.size))
            if chosen is None:
                losses, self._stack.buffers, found = means.double(), after, gradients
                continue
            losses[chosen] = means.double()
            for name, tensor in after.items():
                self._stack.buffers[name][chosen] = tensor
            for name, gradient in gradients.items():
                found.setdefault(name, torch.zeros_like(self._stack.parameters[name]))[chosen] = gradient
        self._losses.append(losses)
        return found

    def _step_all(self, gradients: Tensors) -> None:
        trained = {name: t for name, t in self._stack.trained.items() if name in self._stepped}
        for name, parameter in trained.items():
            parameter.grad = gradients.get(name)
        self._optimizer.trace.note(self._optimizer.own)
        with torch.no_grad():
            for rule, terms in self._terms:
                shared = [name for name in trained if name in terms]  # rules do not change held parameters
                rule.correct_gradients([trained[name] for name in shared], [terms[name] for name in shared])
            if self._local.gradient_clip_val is not None:
                clip(list(trained.values()), self._local.gradient_clip_val, self._local.gradient_clip_algorithm)
        self._optimizer.step()
        self._note(_steps=self._first_step + self._optimizer.num_steps)

    def _end_epoch(self, notes: list[list[Any]]) -> None:
        """Replay each client's logs and metric updates, and let the module end the epoch."""
        hook = "on_train_epoch_end"
        own = is_overridden(hook, self._module)
        if not own and not any(noted[0][0] for mine in notes for (noted, _), _ in mine):
            return
        for mine, run, recorder in zip(notes, self._runs, self._recorders, strict=True):
            for metric in self._metrics:
                metric.reset()
            recorder.hook = "training_step"
            for (noted, row), size in mine:
                recorder.batch = torch.empty(size, 0)
                replay(noted, row, recorder)
            recorder.batch = None
            recorder.compute()
            if own:
                self._take_part(run, recorder, hook)
                self._module.on_train_epoch_end()
                recorder.compute()
            recorder.reset()

    def _results(self) -> list[LocalResult]:
        moved = self._resident.view().moved(self._server.tensors)
        if moved:
            raise EngineError(
                f"Training changes '{next(iter(moved))}', which has no gradient (requires_grad=False), and which stacked "
                "clients would share. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        seconds = (time.perf_counter() - self._begun) / self._size
        coefficients = self._optimizer.trace.coefficients()
        means = torch.stack(self._losses).mean(dim=0).tolist() if self._losses else [None] * self._size
        return [
            LocalResult(
                one,
                ClientUpdate(
                    client=one.task.client,
                    round_idx=one.task.round_idx,
                    num_examples=one.num_examples,
                    num_steps=self._optimizer.num_steps,
                    train_loss=mean,
                    metrics=scalar_metrics(recorder.metrics),
                    seconds=seconds,
                    normalizer=None if coefficients is None else coefficients.normalizer,
                    optimizer=self._optimizer.words,
                    model=snapshot,
                ),
                rates=0.0 if coefficients is None else coefficients.rates,
                held=held,
            )
            for one, snapshot, held, mean, recorder in zip(
                self._tasks, self._stack.snapshots(), self._stack.held(), means, self._recorders, strict=True
            )
        ]
