"""Take a client's fit to its place in the whole training, and keep what its next turn cannot compute."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.attribute_values import equal, holds, is_kept
from fl_lightning.clients.turn import RATES, Decay, ScheduleMover, TurnPlan, require_kept, restore, state_of
from fl_lightning.compat.torch import chained_schedules
from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ClientTask
from fl_lightning.rules.sgd import plain
from fl_lightning.settings.local_training import LocalTraining


class TurnProgress:
    """Set optimizers, schedules, epochs and steps to where a client's turn begins, and keep what its next turn cannot compute.

    Args:
        local: the settings of the local training.

    Attributes:
        first_epoch: the epoch at which the turn begins.
        first_step: the step at which the turn begins.
        last_epoch: the epoch before which the turn ends; infinite for no limit.
        last_step: the step before which the turn ends; infinite for no limit.
        begun: what trains, as from :func:`what_trains`, after everything that each turn does at its start.
    """

    last_epoch: float
    last_step: float

    def __init__(self, local: LocalTraining) -> None:
        self._lr_decay, self._keeps_optimizer = local.lr_decay, local.optimizer_state == "kept"
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
        self.begun: list[Any] = []

    def enter(self, trainer: Any, module: LightningModule) -> None:
        """Move optimizers, schedules and the counts of epochs and steps to the beginning of the turn, and set its end."""
        optimizers, configs, batches = trainer.optimizers, trainer.lr_scheduler_configs, trainer.num_training_batches
        plan, before = self._plan, self._before
        if self._keeps_optimizer:
            restore_optimizers(before.get("optimizers"), optimizers)
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            if scaler is not None and before.get("scaler"):
                scaler.load_state_dict(before["scaler"])
        # Steps or schedules that cannot be computed are counted in each client's turns.
        unknown = not module.automatic_optimization or batches == math.inf
        self._counted = plan.progress is not None and (unknown or any(config.reduce_on_plateau for config in configs))
        if plan.progress is not None:
            self.first_epoch, self.first_step = plan.first(batches)
            if unknown:
                self.first_step = before.get("steps", 0)
            if self._counted and "schedules" in before:
                restore(before["schedules"], optimizers, configs)
            elif configs and not self._counted:
                self._advance_schedules(trainer, module)
            trainer.begin_at(self.first_epoch, self.first_step)
        factor = self._lr_decay**self._task.round_idx
        if configs or factor != 1:
            self._decay = Decay(optimizers, configs, factor)
        if self._keeps_optimizer:
            self._settings = ChangedSettings(optimizers, configs, factor, before.get("settings"))
        most = math.inf if plan.max_steps == -1 else plan.max_steps
        if self._task.slowness > 1:
            most = min(most, max(1, int(plan.steps(batches, whole=False) / self._task.slowness)))
        self.last_epoch = math.inf if plan.epochs == -1 else self.first_epoch + plan.epochs
        self.last_step = self.first_step + most
        trainer.end_before(self.last_epoch, self.last_step)

    def _advance_schedules(self, trainer: Any, module: LightningModule) -> None:
        """Step the new schedulers up to the beginning of the turn, by the module's own method if it has one."""
        own = is_overridden("lr_scheduler_step", module)

        def advance(config: Any, epoch: int, step: int) -> None:
            trainer.begin_at(epoch, step)  # for what the schedule may read
            if own:
                module.lr_scheduler_step(config.scheduler, None)
            else:
                config.scheduler.step()

        batches = int(trainer.num_training_batches)
        self._mover.move(trainer.optimizers, trainer.lr_scheduler_configs, self._plan, batches, advance)

    def note_step(self, trainer: Trainer) -> None:
        """Remember how many steps the batches of the turn have taken."""
        self._steps = self._steps[1], trainer.global_step

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
            ConfigurationError: if training has changed what the optimizers train, which the next turn would not know, or has
                left gradients that no state of an optimizer holds.
        """
        name, configs = type(module).__name__, trainer.lr_scheduler_configs
        begun, self.begun = self.begun, []  # optimizers would hold their state until the next turn
        if self._plan.progress is not None and [*map(id, begun)] != [*map(id, what_trains(trainer))]:
            raise ConfigurationError(
                f"{name} or a callback of its clients has changed 'trainer.optimizers' or their schedules in "
                "training (other optimizers, groups or parameters), but a client's next turn begins with those of "
                "'configure_optimizers'. Give the optimizers all parameters there, of which frozen ones stay as they are, or "
                "set 'federation.local.progress' to 'round'."
            )
        state: dict[str, Any] = {}
        if self._keeps_optimizer:
            manual, idle = not module.automatic_optimization, self._steps[0] == self._steps[1]
            if manual and idle and any(p.grad is not None and float(p.grad.norm()) > 0 for p in module.parameters()):
                raise ConfigurationError(
                    f"{name} has gradients at the end of a client's turn that no step has used, but "
                    "'federation.local.optimizer_state' is 'kept', and they would be lost. Step on the last batch of an "
                    "epoch, as 'trainer.is_last_batch' says, or set it to 'fresh'."
                )
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            state["optimizers"] = optimizer_states(trainer.optimizers)
            state["scaler"] = None if scaler is None else scaler.state_dict()
            state["settings"] = self._settings.end()
        if self._counted:
            state["steps"] = trainer.global_step
            if configs:
                with self._decay.lifted():
                    state["schedules"] = state_of(trainer.optimizers, configs, stored=True)
        return state


def what_trains(trainer: Trainer) -> list[Any]:
    """Return the optimizers of a fit, the parameters in their groups, and their schedulers."""
    found: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
    for optimizer in trainer.optimizers:
        found += [optimizer, *(parameter for group in optimizer.param_groups for parameter in group["params"])]
    return found


# ---------------------------------------------------------------- what a client's optimizers keep


NAME = "training"
"""The name of the packed state among the tensors that a client stores."""
OWN = "own training"
"""The name of that of the training of the client's own model."""
_FRESH = "Set 'federation.local.optimizer_state' to 'fresh'"
_CYCLED = ("momentum", "betas", "max_momentum", "base_momentum")
_LEFT_OUT = ("params", "defaults", "state", "param_groups", "_opt_called")
"""Keys of groups, and attributes of optimizers, that are kept otherwise or belong to torch."""
Groups = list[dict[str, Any]]


def pack(state: dict[str, Any]) -> Tensor:
    """Return tensors and plain values as bytes, uint8, shape (n,)."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(content: Tensor) -> dict[str, Any]:
    """Return what :func:`pack` packed, as new tensors on the CPU, since this process may lack the GPU that trained."""
    stored = io.BytesIO(content.numpy().tobytes())
    found: dict[str, Any] = torch.load(stored, map_location="cpu", weights_only=True)
    return found


def optimizer_states(optimizers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return of each optimizer what it saves apart from its groups, its class, and the numbers of its parameters.

    Raises:
        ConfigurationError: if an optimizer saves anything but tensors, plain values, and lists and dictionaries of them.
    """
    found = []
    for optimizer in map(plain, optimizers):  # Lightning's stand-in for no optimizer saves nothing
        saved = {name: value for name, value in optimizer.state_dict().items() if name != "param_groups"}
        values = [value for own in saved.get("state", {}).values() for value in own.items()]
        require_kept(optimizer, [*values, *((name, value) for name, value in saved.items() if name != "state")], _FRESH)
        found.append({"class": type(optimizer).__name__, "sizes": _sizes(optimizer), "saved": saved})
    return found


def restore_optimizers(kept: Sequence[dict[str, Any]] | None, optimizers: Sequence[Any]) -> None:
    """Give optimizers the state that :func:`optimizer_states` returned, if they have one that can be kept.

    Raises:
        ConfigurationError: if an optimizer steps with another one within it, as SAM does, whose state its own leaves out; or if
            the module's optimizers are others now, or have other parameters.
    """
    for optimizer in map(plain, optimizers):
        inner = next((value for value in vars(optimizer).values() if isinstance(value, Optimizer)), None)
        if inner is not None:
            raise ConfigurationError(
                f"{type(optimizer).__name__} steps with the {type(inner).__name__} within it, whose state would be lost, but "
                f"'federation.local.optimizer_state' is 'kept'. {_FRESH}."
            )
    if kept is None:
        return
    now = [(type(optimizer).__name__, _sizes(optimizer)) for optimizer in optimizers]
    before = [(own["class"], own["sizes"]) for own in kept]
    if now != before:
        one, other = (", ".join(f"{kind} of {sum(sizes)} parameters" for kind, sizes in found) for found in (now, before))
        raise ConfigurationError(
            f"The module's optimizers are other ones ({one}) than in the client's last turn ({other}), but "
            f"'federation.local.optimizer_state' is 'kept'. Use the same in all rounds, or set it to 'fresh'."
        )
    for own, optimizer in zip(kept, optimizers, strict=True):
        groups, state = optimizer.param_groups, optimizer.state
        optimizer.load_state_dict({**optimizer.state_dict(), **own["saved"]})
        # Lightning's wrapper of an optimizer holds the lists and dictionaries that loading has replaced.
        for group, new in zip(groups, optimizer.param_groups, strict=True):
            group.update(new)
        if optimizer.state is not state:
            state.clear()
            state.update(optimizer.state)
        optimizer.param_groups, optimizer.state = groups, state


def _sizes(optimizer: Any) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


class ChangedSettings:
    """Follow what training changes in optimizers' groups and attributes, so that it holds in the client's next turns.

    A module may lower rates by hand, and some optimizers count in their groups or attributes. What schedulers set is left to
    them, and computed anew in each turn.

    Args:
        optimizers: the optimizers at the beginning of a turn.
        configs: Lightning's configurations of their schedulers.
        factor: the factor of the round on the learning rates.
        kept: what :meth:`end` returned after the client's last turn, which is set again; None in the first one.
    """

    def __init__(
        self, optimizers: Sequence[Any], configs: Sequence[Any], factor: float, kept: dict[str, Any] | None = None
    ) -> None:
        unique = {id(group): group for optimizer in optimizers for group in optimizer.param_groups}
        self._groups: Groups = [*unique.values(), *(vars(plain(optimizer)) for optimizer in optimizers)]
        self._trained = {id(parameter) for group in unique.values() for parameter in group["params"]}
        cycled = any(_cycles_momentum(config.scheduler) for config in configs)
        self._left_out = (*_LEFT_OUT, *(RATES if configs else ()), *(_CYCLED if cycled else ()))
        self._factor = factor
        self._known: Groups = kept["groups"] if kept else [{} for _ in self._groups]
        for group, own in zip(self._groups, self._known, strict=False):
            for name, value in own.items():
                scale = factor / kept["factor"] if kept and name in RATES else 1
                group[name] = value * scale if scale != 1 else copy.deepcopy(value)
        self._begun = self._settings()

    def _settings(self) -> Groups:
        return [
            {
                name: copy.deepcopy(value)
                for name, value in group.items()
                if name not in self._left_out and is_kept(value) and not holds(value, self._trained)
            }
            for group in self._groups
        ]

    def end(self) -> dict[str, Any] | None:
        """Return the settings that this turn or an earlier one changed, or None if no turn changed any."""
        changed = [
            {k: v for k, v in now.items() if k in known or k not in then or not equal(v, then[k])}
            for known, then, now in zip(self._known, self._begun, self._settings(), strict=False)
        ]
        return {"groups": changed, "factor": self._factor} if any(changed) else None


def _cycles_momentum(scheduler: Any) -> bool:
    return getattr(scheduler, "cycle_momentum", False) is True or any(map(_cycles_momentum, chained_schedules(scheduler)))
