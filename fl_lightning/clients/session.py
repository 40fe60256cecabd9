"""What happens to a client's module inside its own fit."""

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

from fl_lightning.clients.private_steps import PrivateSteps
from fl_lightning.clients.sgd_rules import describe, follow, plain, require_plain_sgd, sgd_settings
from fl_lightning.compat.torch import chained_schedules, overflowed, unscales_in_step
from fl_lightning.errors import ClientError
from fl_lightning.functional.local_steps import StepCoefficients
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.proximal import add_proximal_gradient, add_to_gradients
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.types import Pull, Snapshot


class ClientSession(Callback):
    """Loads a model into a client, applies proximal term, control variates and decay, and follows the steps.

    Args:
        proximal_mu: FedProx's mu, >= 0.
        lr_decay: factor on the learning rates per round.
        deadline: seconds that a fit may take, looked at between steps; None for any.
        private: makes steps private; None without.

    Attributes:
        optimizer: the client's optimizer in words.
        skipped: steps that gradient scaling has left out, since gradients were not finite.
    """

    def __init__(
        self, proximal_mu: float, lr_decay: float, deadline: float | None = None, private: PrivateSteps | None = None
    ) -> None:
        self.proximal_mu = proximal_mu
        self.lr_decay = lr_decay
        self.deadline = deadline
        self.private = private
        self.server: ModelState | None = None
        self.round_idx = 0
        self.optimizer = ""
        self.skipped = 0
        self._client: ModelState | None = None
        self._losses: list[Tensor] = []
        self._warned = False

    def begin(
        self,
        server: ModelState,
        client: ModelState | None,
        round_idx: int,
        start: Snapshot | None = None,
        correction: Tensor | None = None,
        slowness: float = 1.0,
        pull: Pull | None = None,
    ) -> None:
        """Prepare for the next fit.

        Args:
            server: the global model w_t, not changed.
            client: the view of the client's module, or None where its networks are built by the fit itself.
            round_idx: from 0.
            start: the model to start from, where that is not w_t.
            correction: SCAFFOLD's c - c_k, shape (p,), added to each step's gradients; None without.
            slowness: do only 1 / slowness of the steps, rounded down, at least one.
            pull: what draws the parameters somewhere, in place of the proximal term.
        """
        self.server, self._client, self.round_idx = server, client, round_idx
        self._start, self._correction, self._pull = start, correction, pull
        self._proximal = self.proximal_mu if pull is None else pull.strength
        self._slowness, self._most = slowness, math.inf
        self._begun = time.perf_counter()
        self._losses = []
        self.skipped = 0
        self._steps: StepCoefficients | None = StepCoefficients()
        self._anchors: list[Tensor] = []
        self._corrections: list[Tensor] = []

    def end(self) -> None:
        """Free what only the fit needed: gradients, anchors and corrections."""
        self._start = self._correction = self._pull = None
        self._anchors, self._corrections = [], []
        for parameter in self.client.parameters():
            parameter.grad = None

    @property
    def callbacks(self) -> list[Callback]:
        """Return the callbacks of a fit in their order: gradients are made private before anything is added to them."""
        return [self] if self.private is None else [self.private, self]

    @property
    def normalizer(self) -> float | None:
        """FedNova's ||a_k|| of the steps since :meth:`begin`; None where the optimizer has no rule."""
        return self._steps.normalizer if self._steps is not None else None

    @property
    def rates(self) -> float:
        """The sum of the steps' learning rates; 0 where the optimizer has no rule."""
        return self._steps.rates if self._steps is not None else 0.0

    @property
    def client(self) -> ModelState:
        """The view of the module being trained."""
        assert self._client is not None
        return self._client

    @property
    def mean_loss(self) -> float | None:
        """Mean of the training losses since :meth:`begin`; None where ``training_step`` returned none."""
        return float(torch.stack(self._losses).double().mean()) if self._losses else None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the model and clear the metrics, after the module's own ``setup`` and ``configure_model`` had their say."""
        assert self.server is not None
        if self._client is None:
            self._client = ModelState(pl_module)
            self._client.follow(self.server)
        self._client.copy_from(self.server)
        if self._start is not None:
            self._client.load(self._start)
        if self._correction is not None:  # once a fit: in the shapes and the dtype of the parameters
            self._corrections = self._split(self._correction)
        if self._pull is not None:
            self._anchors = self._split(self._pull.anchor)
        elif self.proximal_mu:
            self._anchors = [parameter.detach().clone() for parameter in self._client.parameters()]
        keep_metrics_to_this_process(pl_module)

    def _split(self, vector: Tensor) -> list[Tensor]:
        """A vector of shape (p,) in the shapes of the parameters, where they are."""
        parameters = self.client.parameters()
        pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
        return [piece.view_as(p).to(p) for piece, p in zip(pieces, parameters, strict=True)]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decay the learning rates, and let go of schedulers that wait for a validation clients don't have.

        Raises:
            ConfigurationError: if control variates meet another optimizer than plain SGD.
        """
        self.optimizer = " and ".join(describe(optimizer) for optimizer in trainer.optimizers)
        if self._correction is not None:
            require_plain_sgd(trainer.optimizers, self.optimizer)
        terms = sum(part.mu for part in pl_module.modules() if isinstance(part, ProximalLoss))
        self._mu = self._proximal + terms
        scale_rates(trainer.optimizers, trainer.lr_scheduler_configs, self.lr_decay**self.round_idx)
        if self._slowness > 1:
            self._most = max(1, int(planned_steps(trainer) / self._slowness))
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.strict:
                config.strict = False
                if not self._warned:
                    rank_zero_warn(
                        f"The module's ReduceLROnPlateau watches {config.monitor!r}. Clients have no validation set: they "
                        "step it only if they log that metric in training. Use 'federation.local.lr_decay' to lower the "
                        "rate over rounds."
                    )
                    self._warned = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss without waiting for the device, and look at the time.

        Raises:
            ClientError: beyond the deadline.
        """
        if trainer.global_step >= self._most:
            trainer.should_stop = True
        elif self.deadline is not None and time.perf_counter() - self._begun > self.deadline:
            raise ClientError(
                f"Its training was not done after {time.perf_counter() - self._begun:.1f} s, and 'federation.faults.deadline' "
                f"is {self.deadline}. Raise it, or let clients do fewer steps."
            )
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            accumulated = trainer.accumulate_grad_batches  # Lightning has divided by it
            self._losses.append(loss.detach() * accumulated if accumulated > 1 else loss.detach())

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Add what belongs to the gradients: they are unscaled here and not yet clipped."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and overflowed(scaler, plain(optimizer)):
            self.skipped += 1
            return
        if self._steps is not None:
            settings = sgd_settings(optimizer) if len(trainer.optimizers) == 1 else None
            self._steps = follow(self._steps, settings, self._mu)
        if not self._proximal and self._correction is None:
            return
        # A fused optimizer divides by the scale inside its step: there the gradients are still scaled.
        scaled = scaler is not None and unscales_in_step(optimizer)
        scale = scaler.get_scale() if scaled else 1.0  # type: ignore[union-attr]
        mine = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        chosen = [k for k, parameter in enumerate(self.client.parameters()) if id(parameter) in mine]
        parameters = self.client.parameters()
        if self._proximal:
            anchors = [self._anchors[k] for k in chosen]
            add_proximal_gradient([parameters[k] for k in chosen], anchors, self._proximal * scale)
        if self._correction is not None:
            corrections = [self._corrections[k] for k in chosen]
            add_to_gradients([parameters[k] for k in chosen], corrections, scale)


def planned_steps(trainer: Trainer) -> float:
    """The optimizer steps of a whole fit."""
    batches = trainer.num_training_batches
    epochs = math.inf if trainer.max_epochs in (None, -1) else float(trainer.max_epochs or 0)
    steps = math.ceil(batches / trainer.accumulate_grad_batches) * epochs
    return min(steps, math.inf if trainer.max_steps == -1 else trainer.max_steps)


def scale_rates(optimizers: Sequence[Optimizer], schedules: Sequence[Any], factor: float) -> None:
    """Scale every learning rate, and those that schedules compute from."""
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
    """Scale the rates that a schedule computes from; those of its parts, where it chains several."""
    for name in ("base_lrs", "max_lrs", "min_lrs"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
    for part in chained_schedules(scheduler):
        _scale_schedule(part, factor)


def keep_metrics_to_this_process(module: LightningModule) -> None:
    """Empty the module's metrics and keep them from synchronising over the outer process group, which would mix or hang."""
    for part in module.modules():
        if isinstance(part, Metric):
            part.reset()
            part.distributed_available_fn = _alone


def _alone() -> bool:
    return False


def scalar_metrics(logged: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the metrics that the module logged, as numbers; one transfer for all of them."""
    names = [name for name in logged if not name.endswith("_step")]
    if not names:
        return {}
    values = torch.stack([logged[name].double().mean() for name in names]).tolist()
    return dict(zip(names, values, strict=True))
