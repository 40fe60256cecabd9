"""Prepare a client's module for its fit, and follow its steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.engines.base import LocalResult, PreparedTask
from fl_lightning.clients.isolation.foreign_tensors import ForeignTensors
from fl_lightning.clients.isolation.switches import set_switches, switches_of
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.training import kept_training
from fl_lightning.clients.training.arrival import Arrival
from fl_lightning.clients.training.metrics import keep_metrics_to_this_process
from fl_lightning.clients.training.passes import ClientModel, ListeningStep
from fl_lightning.clients.training.stream_size import StreamSize
from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.clients.training.turn_progress import TurnProgress
from fl_lightning.compat.torch import overflowed, parts_of, unscales_in_step
from fl_lightning.core.option import ClientHooks
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.rules.sgd import StepTrace, describe, plain
from fl_lightning.types import ClientUpdate, Snapshot


class ClientSession(Callback):
    """Load a model into the clients' module, apply rules and learning-rate decay, and follow the steps of one fit.

    Args:
        resident: the module that clients train.
        rules: the rules that change the clients' gradients, in order.
        progress: takes a fit to its place in the whole training; by default, each fit is a training of its own.
        deadline: the time limit of a fit in seconds, checked between steps; None for no limit.
        hooks: the clients' hooks of the options in use, in order.
    """

    def __init__(
        self,
        resident: ResidentModel,
        *,
        rules: Sequence[ClientRule] = (),
        progress: TurnProgress | None = None,
        deadline: float | None = None,
        hooks: Sequence[ClientHooks] = (),
    ) -> None:
        self._resident, self._rules, self._hooks = resident, rules, hooks
        self._arrival = Arrival(resident)
        self._progress, self._deadline = progress or TurnProgress(), deadline
        self._step: ListeningStep | None = None
        self._foreign: ForeignTensors | None = None
        self._may_rest = any(type(rule).resting is not ClientRule.resting for rule in rules)
        self._warned = False

    @property
    def callbacks(self) -> list[Callback]:
        """Return the callbacks of a fit in order: options get gradients before rules change them."""
        return [*(callback for hook in self._hooks for callback in hook.callbacks), self]

    def begin(self, prepared: PreparedTask, plan: TurnPlan | None = None) -> None:
        """Prepare for the next fit, whose plan is one epoch by default."""
        self._prepared, self._plan = prepared, plan or TurnPlan()
        self._before = {} if prepared.training is None else kept_training.unpack(prepared.training)
        self._kept: dict[str, Any] = {}
        self._progress.begin(prepared.task, self._plan, self._before)
        self._resident.python.begin(prepared.seed, self._before.get("attributes", {}))
        self._pull = prepared.task.pull
        self._begun = time.perf_counter()
        self._losses: list[Tensor] = []
        self._skipped, self._words = 0, ""
        self._size = StreamSize()
        self._trace, self._foreign = StepTrace(), None
        self._terms: list[tuple[ClientRule, list[Tensor]]] = []
        self._resident.preload(prepared.task.start, prepared.held)

    def end(self, steps: int, metrics: Mapping[str, float], begun: float) -> LocalResult:
        """Release the resources of the fit, and return its result.

        Args:
            steps: the number of optimizer steps since the start of the training, with those that gradient scaling skipped.
            metrics: the metrics that the module logged.
            begun: the time at which the client began, from ``time.perf_counter``.

        Raises:
            ConfigurationError: if the optimizers have trained tensors that the module does not contain, or training has changed
                the module in a way that cannot be averaged.
        """
        if self._foreign is not None:
            self._foreign.refuse_trained()
        for parameter in (*self._client.parameters(), *self._client.held_parameters()):
            parameter.grad = None  # before the copy, so that both are never held
        prepared, model = self._prepared, self._resident.snapshot(self._client)
        sent, own = self._sent(model), self._own(model)
        figures = {name: value for rule, _ in self._terms for name, value in rule.figures().items()}
        self._terms = []
        coefficients = self._trace.coefficients()
        attributes = self._resident.python.end()
        if attributes:
            self._kept["attributes"] = attributes
        switches = switches_of(self._resident.module, self._resident.server.layout)
        if switches:
            self._kept["switches"] = switches
        update = ClientUpdate(
            client=prepared.task.client,
            round_idx=prepared.task.round_idx,
            num_examples=prepared.num_examples,
            num_steps=steps - self._progress.first_step - self._skipped,
            train_loss=float(torch.stack(self._losses).double().mean()) if self._losses else None,
            metrics={**metrics, **figures},
            seconds=time.perf_counter() - begun,
            normalizer=None if coefficients is None else coefficients.normalizer,
            optimizer=self._words,
            model=sent or model,
        )
        return LocalResult(
            prepared,
            update,
            rates=0.0 if coefficients is None else coefficients.rates,
            held={name: tensor.clone() for name, tensor in self._client.held_tensors().items()},
            training=kept_training.pack(self._kept) if self._kept else None,
            own_model=own if sent is None else model,
            streamed=self._size.found,
        )

    def _own(self, model: Snapshot) -> Snapshot | None:
        """Return the model that a rule keeps beside the trained one, if any."""
        kept = (rule.keeps_model(model, terms) for rule, terms in self._terms)
        return next((own for own in kept if own is not None), None)

    def stop_listening(self) -> None:
        """Give the module its own training step back, also after a fit that failed."""
        if self._step is not None:
            self._step.remove()
            self._step = None

    def _sent(self, model: Snapshot) -> Snapshot | None:
        """Return the model that a rule sends instead of the trained one, if any."""
        for rule, terms in self._terms:
            others = rule.sends(self._client.parameters(), terms)
            if others is not None:
                parameters = torch.cat([tensor.detach().reshape(-1).to(model.vector) for tensor in others])
                vector = torch.cat([parameters, model.vector[len(parameters) :]])
                return Snapshot(vector, model.counters, model.moved)
        return None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the model and clear the metrics, after the module's own ``setup`` and ``configure_model``."""
        self._client = self._resident.view()
        self._resident.complete(self._client, self._prepared.task.start, self._prepared.held)
        set_switches(self._resident.module, self._before.get("switches", {}))
        self._resident.python.load_buffers(self._before.get("attributes", {}))
        model = ClientModel(pl_module, self._client)
        start = LocalStart(self._client.parameters(), self._resident.server.broadcast, self._prepared.kept, self._pull, model)
        begun = [(rule, rule.begin(start)) for rule in self._rules if start.parameters]
        self._terms = [(rule, terms) for rule, terms in begun if terms]
        reading = [(rule, terms) for rule, terms in self._terms if rule.reads_batches]
        if reading:
            self._step = ListeningStep(pl_module, self._client.parameters(), reading)
        keep_metrics_to_this_process(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue from the client's place in the whole training, and decay the learning rates.

        Raises:
            ConfigurationError: if a rule is not defined for the module's optimizers.
        """
        self._arrival.hold("on_fit_start", trainer, pl_module, self._prepared, self._client)
        self._manual = not pl_module.automatic_optimization
        self._size = StreamSize(trainer)
        optimizers = [plain(optimizer) for optimizer in trainer.optimizers]
        self._foreign = ForeignTensors(pl_module, optimizers, self._resident.python)
        self._words = " and ".join(describe(optimizer) for optimizer in trainer.optimizers)
        for rule, terms in self._terms:
            rule.check_optimizers(trainer.optimizers, self._words)
            rule.join_optimizers(optimizers, self._client.parameters(), terms)
        losses = sum(part.mu for part in parts_of(pl_module).values() if isinstance(part, ProximalLoss))
        self._trace.mu = sum(rule.strength(self._pull) for rule in self._rules) + losses
        self._progress.enter(trainer, pl_module)
        if self._plan.progress is not None:
            self._trace.refer_to(trainer.optimizers)
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.strict:
                config.strict = False
                if not self._warned:
                    rank_zero_warn(
                        f"The module's ReduceLROnPlateau monitors {config.monitor!r}, but clients have no validation set, so "
                        "they step it only if they log this metric in training. Use 'federation.local.lr_decay' to lower the "
                        "learning rate over rounds."
                    )
                    self._warned = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the model again before the first epoch, if ``on_train_start`` of the module may have replaced it."""
        if trainer.current_epoch == self._progress.first_epoch:
            self._progress.note_optimizers(trainer)
            self._arrival.hold("on_train_start", trainer, pl_module, self._prepared, self._client)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the turn after its last epoch, which is not the last one of the whole training."""
        if trainer.current_epoch == self._progress.first_epoch:
            self._size.end_epoch(trainer)
        self._progress.check_steps(trainer, pl_module)
        if trainer.current_epoch + 1 >= self._progress.last_epoch:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what cannot be computed before the client's next turn."""
        self._kept |= self._progress.leave(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss without waiting for the device, and check the deadline.

        Raises:
            ClientError: if the deadline has passed.
        """
        if self._manual:
            self._progress.note_step(trainer)
        if trainer.global_step >= self._progress.last_step:
            trainer.should_stop = True
        elif self._deadline is not None and time.perf_counter() - self._begun > self._deadline:
            raise ClientError(
                f"Its training was not finished after {time.perf_counter() - self._begun:.1f} s, but "
                f"'federation.faults.deadline' (or 'policy.max_seconds' at a site) is {self._deadline:g}. Raise it, or let "
                "clients do fewer steps."
            )
        if trainer.current_epoch == self._progress.first_epoch:
            self._size.count(batch)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            accumulated = trainer.accumulate_grad_batches  # Lightning has divided the loss by it
            self._losses.append(loss.detach() * accumulated if accumulated > 1 else loss.detach())

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Apply the rules to the gradients, which are unscaled here and not yet clipped."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and overflowed(scaler, plain(optimizer)):
            self._skipped += 1
            return
        self._trace.note(plain(optimizer) if len(trainer.optimizers) == 1 else None)
        if self._terms:
            self._correct(optimizer, scaler)
        if self._may_rest:  # after the rules, which give a gradient to every parameter
            self._rest(trainer.current_epoch - self._progress.first_epoch)

    def _correct(self, optimizer: Optimizer, scaler: Any) -> None:
        # A fused optimizer divides by the scale inside its step, so its gradients are still scaled here.
        scaled = scaler is not None and unscales_in_step(optimizer)
        scale = scaler.get_scale() if scaled else 1.0
        mine = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        parameters = self._client.parameters()
        chosen = [k for k, parameter in enumerate(parameters) if id(parameter) in mine]
        _make_dense([parameters[k] for k in chosen], plain(optimizer), self._terms[0][0])
        for rule, terms in self._terms:
            rule.correct_gradients([parameters[k] for k in chosen], [terms[k] for k in chosen], scale, self._pull)

    def _rest(self, epoch: int) -> None:
        """Remove the gradients of the part that does not train in an epoch of the turn, so that optimizers skip it."""
        resting = {rule.resting(epoch) for rule in self._rules} - {None}
        if not resting:
            return
        for part, parameters in (("shared", self._client.parameters()), ("held", self._client.held_parameters())):
            if part in resting:
                for parameter in parameters:
                    parameter.grad = None


def _make_dense(parameters: Sequence[Tensor], optimizer: Optimizer, rule: ClientRule) -> None:
    """Make sparse gradients dense, because a rule adds a term to each number.

    Raises:
        ConfigurationError: if the optimizer needs sparse gradients.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            if isinstance(optimizer, torch.optim.SparseAdam):
                raise ConfigurationError(
                    f"{type(rule).__name__}, a part of the federation's settings, changes every number of a gradient, but "
                    "SparseAdam needs sparse gradients. Use Adam, or remove the proximal term or the strategy that adds it."
                )
            parameter.grad = parameter.grad.to_dense()
