"""Follow one client's fit by callbacks: load its model, apply rules, note losses, and end it in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from fl_lightning.clients.module_state import foreign_tensors, refuse_trained, set_switches, switches_of
from fl_lightning.clients.progress import TurnProgress, pack, unpack, what_trains
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.turn import TurnPlan
from fl_lightning.compat.torch import buffers_of, is_batch_norm, overflowed, parts_of, unscales_in_step
from fl_lightning.data.opened_clients import is_stream, known_size
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.description import is_users
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.messages import ClientTask
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.rules.passes import ListeningStep, LocalModel
from fl_lightning.rules.sgd import StepTrace, describe, plain
from fl_lightning.settings.local_training import Place
from fl_lightning.types import ClientUpdate, Snapshot

TRAINING_HOOKS = (
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_zero_grad", "on_before_backward"),
    *("on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end"),
)
"""The hooks of a module and of callbacks that follow its steps."""


@dataclass(frozen=True)
class PreparedTask:
    """Hold a task with everything that an engine needs for it.

    Attributes:
        task: the task, with the model that it starts from; None for the global one.
        seed: the seed of the client's random numbers.
        open_data: a function that returns the client's examples, called once, when training begins.
        num_examples: the number of these examples, as far as it is known before the training.
        kept: the tensors that the client has stored for its rules, and those of its own model, by name.
        held: the parameters and buffers that the client holds, by name; empty before its first training.
        training: the packed state of its training; None before its first turn, or if nothing is kept.
    """

    task: ClientTask
    seed: int
    open_data: Callable[[], LightningDataModule]
    num_examples: int = 1
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    held: Mapping[str, Tensor] = field(default_factory=dict)
    training: Tensor | None = None


@dataclass(frozen=True)
class LocalResult:
    """Hold the result of a local training: the update for the server, and what stays at the client.

    Attributes:
        prepared: the task.
        update: the update, with its model.
        rates: the sum of the learning rates over the steps; 0 if the optimizer has no rule.
        held: the parameters and buffers that the client holds, by name.
        kept: the tensors that the client stores for its rules until its next task, by name.
        training: the packed state of its training, if it keeps any.
        own_training: that of the training of the client's own model.
        own_model: the model that the client stores, if it is another one than it sends.
        streamed: the number of examples in the first epoch, if the data are a stream without a length; otherwise None.
    """

    prepared: PreparedTask
    update: ClientUpdate
    rates: float = 0.0
    held: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    training: Tensor | None = None
    own_training: Tensor | None = None
    own_model: Snapshot | None = None
    streamed: int | None = None


class ClientSession(Callback):
    """Load a model into the clients' module, apply rules and learning-rate decay, and follow the steps of one fit.

    Args:
        resident: the module that clients train.
        place: where and how they train.
    """

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        self._resident, self._place, self._rules = resident, place, place.rules
        self._progress = TurnProgress(place.local)
        self._step: ListeningStep | None = None
        self._may_rest = any(type(rule).resting is not ClientRule.resting for rule in place.rules)
        self._loads: dict[str, bool] = {}
        self._warned = False

    def callbacks(self) -> list[Callback]:
        """Return the callbacks of a fit in order: options get gradients before rules change them; the user's are copies."""
        own = (callback for hook in self._place.hooks for callback in hook.callbacks)
        return [*own, self, *deepcopy(self._place.local.callbacks or [])]

    def begin(self, prepared: PreparedTask) -> TurnPlan:
        """Prepare for the next fit, and return the plan of its turn."""
        self._begun = time.perf_counter()
        self._prepared = prepared
        self._plan = TurnPlan.of(prepared.task, self._place.local, self._place.fast_dev_run)
        self._before = {} if prepared.training is None else unpack(prepared.training)
        self._kept: dict[str, Any] = {}
        self._progress.begin(prepared.task, self._plan, self._before)
        self._resident.python.begin(prepared.seed, self._before.get("attributes", {}))
        self._losses: list[Tensor] = []
        self._skipped, self._words = 0, ""
        self._stream: _Stream | None = None
        self._foreign: list[tuple[Tensor, float]] = []
        self._trace = StepTrace()
        self._terms: list[tuple[ClientRule, list[Tensor]]] = []
        self._resident.preload(prepared.task.start, prepared.held)
        return self._plan

    def end(self, steps: int, metrics: Mapping[str, float]) -> LocalResult:
        """Release the resources of the fit, and return its result.

        Args:
            steps: the number of optimizer steps since the start of the training, with those that gradient scaling skipped.
            metrics: the metrics that the module logged.

        Raises:
            ConfigurationError: if the optimizers have trained tensors that the module does not contain, or training has changed
                the module in a way that cannot be averaged.
        """
        refuse_trained(self._resident.module, self._foreign)
        for parameter in (*self._client.parameters(), *self._client.held_parameters()):
            parameter.grad = None  # before the copy, so that both are never held
        prepared, model = self._prepared, self._resident.snapshot(self._client)
        sent: Snapshot | None = None
        own: Snapshot | None = None
        for rule, terms in self._terms:
            others = rule.sends(self._client.parameters(), terms) if sent is None else None
            if others is not None:
                vector = torch.cat([tensor.detach().reshape(-1).to(model.vector) for tensor in others])
                sent = Snapshot(torch.cat([vector, model.vector[len(vector) :]]), model.counters, model.moved)
            own = rule.keeps_model(model, terms) if own is None else own
        figures = {name: value for rule, _ in self._terms for name, value in rule.figures().items()}
        self._terms = []
        coefficients = self._trace.coefficients()
        switches = switches_of(self._resident.module, self._resident.server.layout)
        more = {"attributes": self._resident.python.end(), "switches": switches}
        self._kept |= {name: state for name, state in more.items() if state}
        update = ClientUpdate(
            client=prepared.task.client,
            round_idx=prepared.task.round_idx,
            num_examples=prepared.num_examples,
            num_steps=steps - self._progress.first_step - self._skipped,
            train_loss=float(torch.stack(self._losses).double().mean()) if self._losses else None,
            metrics={**metrics, **figures},
            seconds=time.perf_counter() - self._begun,
            normalizer=None if coefficients is None else coefficients.normalizer,
            optimizer=self._words,
            model=sent or model,
        )
        return LocalResult(
            prepared,
            update,
            rates=0.0 if coefficients is None else coefficients.rates,
            held={name: tensor.clone() for name, tensor in self._client.held_tensors().items()},
            training=pack(self._kept) if self._kept else None,
            own_model=own if sent is None else model,
            streamed=None if self._stream is None else self._stream.found,
        )

    def stop_listening(self) -> None:
        """Give the module its own training step back, also after a fit that failed."""
        if self._step is not None:
            self._step.remove()
            self._step = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the model and clear the metrics, after the module's own ``setup`` and ``configure_model``."""
        prepared, resident = self._prepared, self._resident
        self._client = resident.view()
        resident.complete(self._client, prepared.task.start, prepared.held)
        if self._before:
            set_switches(resident.module, self._before.get("switches", {}))
            resident.python.load_buffers(self._before.get("attributes", {}))
        parameters = self._client.parameters() if self._rules else []
        if parameters:
            model = LocalModel(pl_module, self._client)
            start = LocalStart(parameters, resident.server.broadcast, prepared.kept, prepared.task.pull, model)
            begun = [(rule, rule.begin(start)) for rule in self._rules]
            self._terms = [(rule, terms) for rule, terms in begun if terms]
        reading = [(rule, terms) for rule, terms in self._terms if rule.reads_batches]
        if reading:
            self._step = ListeningStep(pl_module, parameters, reading)
        keep_metrics_to_this_process(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue from the client's place in the whole training, and decay the learning rates.

        Raises:
            ConfigurationError: if a rule is not defined for the module's optimizers.
        """
        self._hold("on_fit_start", trainer, pl_module)
        self._manual = not pl_module.automatic_optimization
        loader: Any = trainer.train_dataloader
        self._stream = _Stream(loader) if is_stream(loader) else None
        optimizers = [plain(optimizer) for optimizer in trainer.optimizers]
        self._foreign = foreign_tensors(pl_module, optimizers, self._resident.python)
        self._words = " and ".join(describe(optimizer) for optimizer in optimizers)
        for rule, terms in self._terms:
            rule.check_optimizers(trainer.optimizers, self._words)
            rule.join_optimizers(optimizers, self._client.parameters(), terms)
        losses = sum(part.mu for part in parts_of(pl_module).values() if isinstance(part, ProximalLoss))
        self._trace.mu = sum(rule.strength(self._prepared.task.pull) for rule in self._rules) + losses
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
            self._progress.begun = what_trains(trainer)
            self._hold("on_train_start", trainer, pl_module)

    def _hold(self, hook: str, trainer: Trainer, module: LightningModule) -> None:
        """Load the model again, if the module or a callback overrides a hook that has just run, as for a pretrained network.

        In one long training, such a hook runs once. The server's module runs ``on_fit_start`` before the first round, and
        clients run ``on_train_start`` in it; what these load counts then, and never again. Buffers stay as the hook left them,
        except those of BatchNorm, which belong to the weights.

        Args:
            hook: ``on_fit_start`` or ``on_train_start``.
            trainer: the Trainer of the fit, or what stands in for it.
            module: the module.
        """
        if hook not in self._loads:
            kinds = map(type, trainer.callbacks)  # type: ignore[attr-defined]
            users = [kind for kind in kinds if is_users(kind)]
            by_module = is_overridden(hook, module) and hook not in getattr(module, "stacked_hooks", ())  # those read none
            self._loads[hook] = by_module or any(getattr(kind, hook) is not getattr(Callback, hook) for kind in users)
        task = self._prepared.task
        first = hook == "on_train_start" and task.start is None and not (task.round_idx or task.period)
        if first or not self._loads[hook]:
            return
        found = [buffers_of(part) for part in parts_of(module).values() if not is_batch_norm(part)]
        kept = [(buffer, buffer.detach().clone()) for buffers in found for buffer in buffers.values() if buffer is not None]
        self._resident.fill(self._client, task.start, self._prepared.held)
        for buffer, value in kept:
            buffer.copy_(value)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the turn after its last epoch, which is not the last one of the whole training."""
        if self._stream is not None and trainer.current_epoch == self._progress.first_epoch:
            self._stream.end_epoch(trainer)
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
        deadline = self._place.deadline
        if trainer.global_step >= self._progress.last_step:
            trainer.should_stop = True
        elif deadline is not None and time.perf_counter() - self._begun > deadline:
            raise ClientError(
                f"Its training was not finished after {time.perf_counter() - self._begun:.1f} s, but "
                f"'federation.faults.deadline' is {deadline:g} s (at a site, at most 'policy.machine.hours'). Raise it, or "
                "let clients do fewer steps."
            )
        if self._stream is not None and trainer.current_epoch == self._progress.first_epoch:
            self._stream.count(batch)
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
        # After the rules, which give a gradient to every parameter: optimizers skip the part that does not train now.
        epoch = trainer.current_epoch - self._progress.first_epoch
        resting = {rule.resting(epoch) for rule in self._rules} if self._may_rest else ()
        for part, parameters in (("shared", self._client.parameters), ("held", self._client.held_parameters)):
            for parameter in parameters() if part in resting else ():
                parameter.grad = None

    def _correct(self, optimizer: Optimizer, scaler: Any) -> None:
        # A fused optimizer divides by the scale inside its step, so its gradients are still scaled here.
        scaled = scaler is not None and unscales_in_step(optimizer)
        scale = scaler.get_scale() if scaled else 1.0
        mine = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        parameters = self._client.parameters()
        chosen = [k for k, parameter in enumerate(parameters) if id(parameter) in mine]
        _make_dense([parameters[k] for k in chosen], plain(optimizer), self._terms[0][0])
        pull = self._prepared.task.pull
        for rule, terms in self._terms:
            rule.correct_gradients([parameters[k] for k in chosen], [terms[k] for k in chosen], scale, pull)


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


class _Stream:
    """Count the examples that a stream yields in the first epoch of a turn, which its length, if it has one, may overstate.

    Args:
        loader: the client's loader.

    Attributes:
        found: the number of examples; None if the length of the dataset holds.
    """

    def __init__(self, loader: Any) -> None:
        self._nominal = known_size(loader)
        self._read = self._batches = 0
        self.found: int | None = 0 if self._nominal is None else None

    def count(self, batch: Any) -> None:
        """Count a batch of the first epoch."""
        self._read += extract_batch_size(batch)
        self._batches += 1
        if self._nominal is None:
            self.found = self._read

    def end_epoch(self, trainer: Any) -> None:
        """Take the number of examples that were read, if the stream has ended by itself."""
        planned = trainer.num_training_batches
        ended = self._batches < planned and not trainer.should_stop
        if self._nominal is not None and (ended or self._batches == planned >= len(trainer.train_dataloader)):
            self.found = self._read


def keep_metrics_to_this_process(module: LightningModule) -> None:
    """Reset the module's metrics, and stop them from synchronising over the outer process group, which would mix or hang."""
    for part in parts_of(module).values():
        if isinstance(part, Metric):
            part.reset()
            part.distributed_available_fn = lambda: False
