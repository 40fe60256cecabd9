"""Move a client's schedulers, which are rebuilt for each turn, to the place of the turn in the whole training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from fl_lightning.clients.turn import TurnPlan
from fl_lightning.compat.torch import chained_schedules, count_as_stepped

State = tuple[list[Any], list[list[dict[str, Any]]]]
"""The states of the schedulers, and the settings of the optimizers' groups."""
Step = Callable[[Any, int, int], None]
"""Step a scheduler, given its Lightning configuration, the epoch and the number of optimizer steps so far."""


def state_of(optimizers: Sequence[Optimizer], configs: Sequence[Any]) -> State:
    """Return a copy of the schedulers' states and of the settings that they change."""
    groups = [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]
    return copy.deepcopy(([config.scheduler.state_dict() for config in configs], groups))


def restore(state: State, optimizers: Sequence[Optimizer], configs: Sequence[Any]) -> None:
    """Give schedulers and optimizers a state that :func:`state_of` returned."""
    schedulers, groups = copy.deepcopy(state)
    for config, own in zip(configs, schedulers, strict=True):
        config.scheduler.load_state_dict(own)
    for optimizer, settings in zip(optimizers, groups, strict=True):
        for group, own in zip(optimizer.param_groups, settings, strict=True):
            group.update(own)


@dataclass(frozen=True)
class _Reached:
    beginning: State
    turn: int
    state: State


class ScheduleMover:
    """Move schedulers to the beginning of a turn, and remember the result: the next turn continues from there.

    A scheduler's state depends on the module's settings and on the numbers of batches and steps of a client's turn, not on
    the client. So each such pair of numbers is followed once, one turn after another.
    """

    def __init__(self) -> None:
        self._reached: dict[tuple[Any, ...], _Reached] = {}

    def move(self, optimizers: Sequence[Optimizer], configs: Sequence[Any], plan: TurnPlan, batches: int, step: Step) -> None:
        """Move schedulers to the beginning of a turn.

        Args:
            optimizers: the module's new optimizers.
            configs: Lightning's configurations of its new schedulers, none of which monitors a metric.
            plan: the turn.
            batches: the number of batches in an epoch.
            step: a function that steps a scheduler.
        """
        turn = 0 if plan.progress is None else plan.progress.turn
        if not configs or not turn or not batches:
            return
        key = batches, plan.whole_epochs, plan.max_steps, plan.accumulate
        beginning, begun = state_of(optimizers, configs), 0
        known = self._reached.get(key)
        if known is not None and known.turn <= turn and _equal(known.beginning, beginning):
            restore(known.state, optimizers, configs)
            begun = known.turn
        for optimizer in optimizers:
            count_as_stepped(optimizer)  # otherwise its scheduler would warn
        epochs, steps = (number // turn for number in plan.first(batches))
        for earlier in range(begun, turn):
            epoch, stepped = earlier * epochs, earlier * steps
            for interval, number in plan.events(batches):
                stepped += interval == "step"
                index = epoch if interval == "epoch" else number
                for config in configs:
                    if config.interval == interval and (index + 1) % config.frequency == 0:
                        step(config, epoch, stepped)
                epoch += interval == "epoch"
        if begun < turn:
            self._reached[key] = _Reached(beginning, turn, state_of(optimizers, configs))


def _equal(one: State, other: State) -> bool:
    """Return whether two states are certainly equal; states with tensors may not be comparable."""
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):
        return False


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
