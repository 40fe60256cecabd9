"""What happens to a client's module inside its own fit."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer
from torchmetrics import Metric

from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.proximal import add_proximal_gradient


class ClientSession(Callback):
    """Loads the global model into a client, applies the proximal term and the decay, and keeps the losses.

    Args:
        proximal_mu: FedProx's mu, >= 0.
        lr_decay: factor on the learning rates per round.
    """

    def __init__(self, proximal_mu: float, lr_decay: float) -> None:
        self.proximal_mu = proximal_mu
        self.lr_decay = lr_decay
        self.server: ModelState | None = None
        self.round_idx = 0
        self._client: ModelState | None = None
        self._losses: list[Tensor] = []
        self._warned = False

    def begin(self, server: ModelState, client: ModelState | None, round_idx: int) -> None:
        """Prepare for the next fit.

        Args:
            server: the global model w_t, not changed.
            client: the view of the client's module, or None where its networks are built by the fit itself.
            round_idx: from 0.
        """
        self.server, self._client, self.round_idx = server, client, round_idx
        self._losses = []

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
        """Load w_t and clear the metrics, after the module's own ``setup`` and ``configure_model`` had their say."""
        assert self.server is not None
        if self._client is None:
            self._client = ModelState(pl_module)
        self._client.copy_from(self.server)
        keep_metrics_to_this_process(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decay the learning rates, and let go of schedulers that wait for a validation clients don't have."""
        factor = self.lr_decay**self.round_idx
        if factor != 1:
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    for rate in ("lr", "initial_lr", "max_lr", "min_lr"):
                        if rate in group:
                            group[rate] *= factor
            for config in trainer.lr_scheduler_configs:
                _scale_schedule(config.scheduler, factor)
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
        """Keep the loss without waiting for the device."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if isinstance(loss, Tensor):
            accumulated = trainer.accumulate_grad_batches  # Lightning has divided by it
            self._losses.append(loss.detach() * accumulated if accumulated > 1 else loss.detach())

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Add the proximal gradient: gradients are unscaled here and not yet clipped."""
        if self.proximal_mu:
            assert self.server is not None
            mine = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
            pairs = [(p, a.detach()) for p, a in zip(self.client.parameters(), self.server.parameters(), strict=True)]
            chosen = [(p, a) for p, a in pairs if id(p) in mine]
            # A fused optimizer divides by the scale inside its step: there the gradients are still scaled.
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scaled = scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False)
            mu = self.proximal_mu * (scaler.get_scale() if scaled else 1.0)  # type: ignore[union-attr]
            add_proximal_gradient([p for p, _ in chosen], [a for _, a in chosen], mu)


def _scale_schedule(scheduler: Any, factor: float) -> None:
    """Scale the rates that a schedule computes from; those of its parts, where it chains several."""
    for name in ("base_lrs", "max_lrs", "min_lrs"):
        if hasattr(scheduler, name):
            setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
    for part in getattr(scheduler, "_schedulers", ()):
        _scale_schedule(part, factor)


def keep_metrics_to_this_process(module: LightningModule) -> None:
    """Empty the module's metrics and keep them from synchronising over the outer process group, which would mix or hang."""
    for part in module.modules():
        if isinstance(part, Metric):
            part.reset()
            part.distributed_available_fn = _alone


def _alone() -> bool:
    return False


def match_trainable(client: ModelState, server: ModelState) -> None:
    """Freeze and thaw the client's parameters as the server's are."""
    for mine, theirs in zip(client.parameters(), server.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)


def scalar_metrics(trainer: Trainer) -> dict[str, float]:
    """What the module logged, as numbers; one transfer for all of them."""
    names = [name for name in trainer.callback_metrics if not name.endswith("_step")]
    if not names:
        return {}
    values = torch.stack([trainer.callback_metrics[name].double().mean() for name in names]).tolist()
    return dict(zip(names, values, strict=True))
