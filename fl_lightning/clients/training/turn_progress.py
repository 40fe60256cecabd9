"""Take a client's fit to its place in the whole training, and end it there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fl_lightning.clients.training.kept_training import (
    ChangedSettings,
    optimizer_states,
    refuse_nested,
    restore_optimizers,
    schedule_states,
)
from fl_lightning.clients.training.schedules import Decay, ScheduleMover, restore
from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ClientTask
from fl_lightning.rules.sgd import plain


class TurnProgress:
    """Set optimizers, schedules, epochs and steps to where a client's turn begins, and keep what its next turn cannot compute.

    Args:
        lr_decay: the factor on the learning rates per round.
        keeps_optimizer: whether the client keeps the state of its optimizers until its next turn.
        place: a function that sets the epoch and the step of a fit, given the Trainer or what stands in for it.
        limit: a function that sets the epoch and the step before which the fit ends.

    Attributes:
        first_step: the step at which the turn begins.
        first_epoch: the epoch at which the turn begins.
        last_epoch: the epoch before which the turn ends; infinite for no limit.
        last_step: the step before which the turn ends; infinite for no limit.
    """

    def __init__(
        self,
        *,
        lr_decay: float = 1.0,
        keeps_optimizer: bool = False,
        place: Callable[[Any, int, int], None] | None = None,
        limit: Callable[[Any, float, float], None] | None = None,
    ) -> None:
        self._lr_decay, self._keeps_optimizer = lr_decay, keeps_optimizer
        self._place, self._limit = place, limit
        self._mover = ScheduleMover()

    def begin(self, task: ClientTask, plan: TurnPlan, kept: Mapping[str, Any]) -> None:
        """Prepare for the next fit.

        Args:
            task: the turn.
            plan: its epochs and steps, and their place in the whole training.
            kept: what :meth:`leave` returned at the end of the client's last turn; empty before the first.
        """
        self._task, self._plan, self._before = task, plan, kept
        self.first_step, self.first_epoch = 0, 0
        self._steps = (-1, -1)  # at the ends of the last two batches
        self._begun: list[Any] | None = None
        self.last_epoch = self.last_step = math.inf

    def enter(self, trainer: Trainer, module: LightningModule) -> None:
        """Move optimizers, schedules and the counts of epochs and steps to the beginning of the turn, and set its end."""
        optimizers, configs = trainer.optimizers, trainer.lr_scheduler_configs
        if self._keeps_optimizer:
            refuse_nested([plain(optimizer) for optimizer in optimizers])
        if "optimizers" in self._before and self._keeps_optimizer:
            restore_optimizers(self._before["optimizers"], optimizers)
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            if scaler is not None and self._before["scaler"]:
                scaler.load_state_dict(self._before["scaler"])
        if self._plan.progress is not None:
            self._continue(trainer, module)
        factor = self._lr_decay**self._task.round_idx
        self._decay = Decay(optimizers, configs, factor)
        if self._keeps_optimizer:
            plain_ones = [plain(optimizer) for optimizer in optimizers]
            schedulers = [config.scheduler for config in configs]
            self._settings = ChangedSettings(plain_ones, schedulers, factor, self._before.get("settings"))
        self._limit_work(trainer)

    def _continue(self, trainer: Trainer, module: LightningModule) -> None:
        """Continue from the place in the whole training."""
        batches, kept = trainer.num_training_batches, self._before
        epoch, step = self._plan.first(batches)
        if self._is_counted(trainer, module):
            counted = not module.automatic_optimization or batches == math.inf
            step = kept.get("steps", 0) if counted else step
            if "schedules" in kept:
                restore(kept["schedules"], trainer.optimizers, trainer.lr_scheduler_configs)
        else:
            self._advance_schedules(trainer, module)
        self._move(trainer, epoch, step)
        self.first_step, self.first_epoch = step, epoch
        if self._plan.epochs != -1:
            self.last_epoch = epoch + self._plan.epochs

    @staticmethod
    def _is_counted(trainer: Trainer, module: LightningModule) -> bool:
        """Return whether steps or schedules cannot be computed, but are counted in each client's turns.

        They cannot for manual optimization, for a stream of unknown length, and for a schedule that follows a metric.
        """
        unknown = not module.automatic_optimization or trainer.num_training_batches == math.inf
        return unknown or any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)

    def _advance_schedules(self, trainer: Trainer, module: LightningModule) -> None:
        """Step the new schedulers up to the beginning of the turn, by the module's own method if it has one."""
        own, batches = is_overridden("lr_scheduler_step", module), trainer.num_training_batches

        def advance(config: Any, epoch: int, step: int) -> None:
            self._move(trainer, epoch, step)  # for what the schedule may read
            if own:
                module.lr_scheduler_step(config.scheduler, None)
            else:
                config.scheduler.step()

        known = int(batches) if batches != math.inf else 0
        self._mover.move(trainer.optimizers, trainer.lr_scheduler_configs, self._plan, known, advance)

    def _move(self, trainer: Trainer, epoch: int, step: int) -> None:
        assert self._place is not None
        self._place(trainer, epoch, step)

    def _limit_work(self, trainer: Trainer) -> None:
        """Set the step at which the turn ends."""
        slowness, batches = self._task.slowness, trainer.num_training_batches
        most = math.inf
        if slowness > 1:
            most = max(1, int(self._plan.steps(batches, whole=False) / slowness))
        if self._plan.progress is not None and self._plan.max_steps != -1:
            most = min(most, self._plan.max_steps)
        self.last_step = self.first_step + most
        if self._limit is not None:
            self._limit(trainer, self.last_epoch, self.last_step)

    def note_optimizers(self, trainer: Trainer) -> None:
        """Remember what trains, after everything that each turn does at its start."""
        if self._plan.progress is not None:
            self._begun = _what_trains(trainer)

    def check_steps(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuse an epoch with another number of steps than planned, if schedules or accumulation follow from the plan.

        Raises:
            ConfigurationError: naming both numbers.
        """
        steps = [config for config in trainer.lr_scheduler_configs if config.interval == "step"]
        if self._plan.progress is None or not (steps or trainer.accumulate_grad_batches != self._plan.accumulate):
            return
        batches = trainer.num_training_batches
        unplanned = not module.automatic_optimization or batches == math.inf
        if unplanned or trainer.should_stop or trainer.global_step >= self.last_step:
            return
        planned = (trainer.current_epoch + 1 - self.first_epoch) * self._plan.steps_per_epoch(batches)
        made = trainer.global_step - self.first_step
        if made != planned:
            raise ConfigurationError(
                f"{type(module).__name__} has made {made} steps by the end of epoch {trainer.current_epoch}, where {planned} "
                "of this turn were planned, so learning rates and 'global_step' of later turns would be wrong. Set "
                "'federation.local.progress' to 'round'. Or keep to the plan: set 'federation.local.accumulate_grad_batches' "
                "instead of the Trainer's, do not return -1 from 'on_train_batch_start', and give loaders their true length."
            )

    def leave(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        """Return what cannot be computed before the client's next turn.

        Raises:
            ConfigurationError: if training has changed what the optimizers train, which the next turn would not know.
        """
        begun, self._begun = self._begun, None  # optimizers would hold their state until the next turn
        if begun is not None and not _same(begun, _what_trains(trainer)):
            raise ConfigurationError(
                f"{type(module).__name__} or a callback of its clients has changed 'trainer.optimizers' or their schedules in "
                "training (other optimizers, groups or parameters), but a client's next turn begins with those of "
                "'configure_optimizers'. Give the optimizers all parameters there, of which frozen ones stay as they are, or "
                "set 'federation.local.progress' to 'round'."
            )
        state: dict[str, Any] = {}
        if self._keeps_optimizer:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            plain_ones = [plain(optimizer) for optimizer in trainer.optimizers]
            self._refuse_pending(trainer, module)
            state |= {"optimizers": optimizer_states(plain_ones), "scaler": None if scaler is None else scaler.state_dict()}
            state |= {"settings": self._settings.end()}
        configs = trainer.lr_scheduler_configs
        if self._plan.progress is not None and self._is_counted(trainer, module):
            state["steps"] = trainer.global_step
            if configs:
                with self._decay.lifted():
                    state["schedules"] = schedule_states(trainer.optimizers, configs)
        return state

    def note_step(self, trainer: Trainer) -> None:
        """Remember how many steps the batches of the turn have taken."""
        self._steps = self._steps[1], trainer.global_step

    def _refuse_pending(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuse gradients that manual optimization leaves to a later step, because no state of an optimizer holds them."""
        before, after = self._steps
        if not module.automatic_optimization and before == after and any(_has_gradient(p) for p in module.parameters()):
            raise ConfigurationError(
                f"{type(module).__name__} has gradients at the end of a client's turn that no step has used, but "
                "'federation.local.optimizer_state' is 'kept', and they would be lost. Step on the last batch of an epoch, as "
                "'trainer.is_last_batch' says, or set it to 'fresh'."
            )


def _what_trains(trainer: Trainer) -> list[Any]:
    """Return the optimizers of a fit, the parameters in their groups, and their schedulers."""
    found: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
    for optimizer in trainer.optimizers:
        found += [optimizer]
        for group in optimizer.param_groups:
            found += group["params"]
    return found


def _has_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and float(parameter.grad.norm()) > 0  # also of sparse ones


def _same(one: list[Any], other: list[Any]) -> bool:
    return [*map(id, one)] == [*map(id, other)]
