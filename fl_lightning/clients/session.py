"""Prepare a client's module for its fit, and follow its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from fl_lightning.clients.engines.base import EngineJob, Trained
from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.compat.torch import chained_schedules, overflowed, unscales_in_step
from fl_lightning.errors import ClientError
from fl_lightning.functional.local_steps import StepCoefficients
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.rules.sgd import describe, follow, plain, sgd_settings


class ClientSession(Callback):
    """Load a model into the clients' module, apply rules and learning-rate decay, and follow the steps of one fit.

    Args:
        resident: the module that clients train.
        rules: the rules that change the clients' gradients, in order.
        lr_decay: the factor on the learning rates per round.
        deadline: the time limit of a fit in seconds, checked between steps; None for no limit.
        private: the callback that makes steps private, or None.
    """

    def __init__(
        self,
        resident: ResidentModel,
        *,
        rules: Sequence[ClientRule] = (),
        lr_decay: float = 1.0,
        deadline: float | None = None,
        private: PrivateSteps | None = None,
    ) -> None:
        self._resident, self._rules, self._private = resident, rules, private
        self._lr_decay, self._deadline = lr_decay, deadline
        self._warned = False

    @property
    def callbacks(self) -> list[Callback]:
        """Return the callbacks of a fit in order: gradients are made private before rules change them."""
        return [self] if self._private is None else [self._private, self]

    def begin(self, job: EngineJob) -> None:
        """Prepare for the next fit."""
        self._job = job
        self._pull, self._most = job.job.pull, math.inf
        self._begun = time.perf_counter()
        self._losses: list[Tensor] = []
        self._skipped, self._words = 0, ""
        self._steps: StepCoefficients | None = StepCoefficients()
        self._terms: list[tuple[ClientRule, list[Tensor]]] = []

    def end(self, steps: int, metrics: Mapping[str, float], begun: float) -> Trained:
        """Release the resources of the fit, and return its result.

        Args:
            steps: the number of optimizer steps, including those that gradient scaling skipped.
            metrics: the metrics that the module logged.
            begun: the time at which the client began, from ``time.perf_counter``.
        """
        job, self._terms = self._job, []
        for parameter in self._client.parameters():
            parameter.grad = None
        coefficients = self._steps
        return Trained(
            job=job,
            model=self._resident.snapshot(self._client),
            num_steps=steps - self._skipped,
            train_loss=float(torch.stack(self._losses).double().mean()) if self._losses else None,
            metrics=metrics,
            normalizer=None if coefficients is None else coefficients.normalizer,
            rates=0.0 if coefficients is None else coefficients.rates,
            optimizer=self._words,
            seconds=time.perf_counter() - begun,
        )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the model and clear the metrics, after the module's own ``setup`` and ``configure_model``."""
        self._client = self._resident.view()
        self._resident.fill(self._client, self._job.start)
        start = LocalStart(self._client.parameters(), self._resident.server.broadcast, self._job.kept, self._pull)
        begun = [(rule, rule.begin(start)) for rule in self._rules]
        self._terms = [(rule, terms) for rule, terms in begun if terms]
        keep_metrics_to_this_process(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decay the learning rates, and remove schedulers that need a validation set, which clients do not have.

        Raises:
            ConfigurationError: if a rule is not defined for the module's optimizers.
        """
        self._words = " and ".join(describe(optimizer) for optimizer in trainer.optimizers)
        for rule, _ in self._terms:
            rule.check_optimizers(trainer.optimizers, self._words)
        losses = sum(part.mu for part in pl_module.modules() if isinstance(part, ProximalLoss))
        self._mu = sum(rule.strength(self._pull) for rule in self._rules) + losses
        scale_rates(trainer.optimizers, trainer.lr_scheduler_configs, self._lr_decay**self._job.job.round_idx)
        if self._job.job.slowness > 1:
            self._most = max(1, int(planned_steps(trainer) / self._job.job.slowness))
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

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the loss without waiting for the device, and check the deadline.

        Raises:
            ClientError: if the deadline has passed.
        """
        if trainer.global_step >= self._most:
            trainer.should_stop = True
        elif self._deadline is not None and time.perf_counter() - self._begun > self._deadline:
            raise ClientError(
                f"Its training was not finished after {time.perf_counter() - self._begun:.1f} s, but "
                f"'federation.faults.deadline' is {self._deadline}. Raise it, or let clients do fewer steps."
            )
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
        if self._steps is not None:
            settings = sgd_settings(optimizer) if len(trainer.optimizers) == 1 else None
            self._steps = follow(self._steps, settings, self._mu)
        if not self._terms:
            return
        # A fused optimizer divides by the scale inside its step, so its gradients are still scaled here.
        scaled = scaler is not None and unscales_in_step(optimizer)
        scale = scaler.get_scale() if scaled else 1.0  # type: ignore[union-attr]
        mine = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        parameters = self._client.parameters()
        chosen = [k for k, parameter in enumerate(parameters) if id(parameter) in mine]
        for rule, terms in self._terms:
            rule.correct_gradients([parameters[k] for k in chosen], [terms[k] for k in chosen], scale, self._pull)


def planned_steps(trainer: Trainer) -> float:
    """Return the number of optimizer steps in a whole fit."""
    batches = trainer.num_training_batches
    epochs = math.inf if trainer.max_epochs in (None, -1) else float(trainer.max_epochs or 0)
    steps = math.ceil(batches / trainer.accumulate_grad_batches) * epochs
    return min(steps, math.inf if trainer.max_steps == -1 else trainer.max_steps)


def scale_rates(optimizers: Sequence[Optimizer], schedules: Sequence[Any], factor: float) -> None:
    """Scale every learning rate, including the base rates of schedulers."""
    if factor == 1:
        return
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for rate in ("lr", "initial_lr", "max_lr", "min_lr"):
                if rate in group:
                    group[rate] *= factor
    for config in schedules:
        _scale_schedule(config.scheduler, factor)


def _scale_schedule(scheduler: Any, factor: float) -> None:
    """Scale the base rates of a scheduler, or of its parts if it chains several."""
    for name in ("base_lrs", "max_lrs", "min_lrs"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
    for part in chained_schedules(scheduler):
        _scale_schedule(part, factor)


def keep_metrics_to_this_process(module: LightningModule) -> None:
    """Reset the module's metrics, and stop them from synchronising over the outer process group, which would mix or hang."""
    for part in module.modules():
        if isinstance(part, Metric):
            part.reset()
            part.distributed_available_fn = _alone


def _alone() -> bool:
    return False


def scalar_metrics(logged: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics that the module logged, as numbers, with a single transfer from the device."""
    names = [name for name in logged if not name.endswith("_step")]
    if not names:
        return {}
    values = torch.stack([logged[name].double().mean() for name in names]).tolist()
    return dict(zip(names, values, strict=True))
