"""Move a client's schedulers, which are rebuilt for each turn, to its place in the whole training, and decay their rates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.compat.torch import count_as_stepped, update_last_rates
from fl_lightning.errors import ConfigurationError

State = tuple[list[Any], list[list[dict[str, Any]]]]
"""The states of the schedulers, and the settings of the optimizers' groups."""
Step = Callable[[Any, int, int], None]
"""Step a scheduler, given its Lightning configuration, the epoch and the number of optimizer steps so far."""
RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The learning rates in the groups of optimizers."""


def state_of(optimizers: Sequence[Optimizer], configs: Sequence[Any]) -> State:
    """Return a copy of the schedulers' states and of the settings that they change."""
    return copy.deepcopy((states_of(configs), groups_of(optimizers)))


def states_of(configs: Sequence[Any]) -> list[Any]:
    """Return the states of the schedulers, which share their values."""
    states = [config.scheduler.state_dict() for config in configs]  # with the method that Decay puts into the scheduler
    return [{k: v for k, v in state.items() if k != "step" or not callable(v)} for state in states]


def groups_of(optimizers: Sequence[Optimizer]) -> list[list[dict[str, Any]]]:
    """Return the settings of each group of each optimizer."""
    return [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


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
                        with _failing_by_name(config.scheduler):
                            step(config, epoch, stepped)
                epoch += interval == "epoch"
        if begun < turn:
            self._reached[key] = _Reached(beginning, turn, state_of(optimizers, configs))


@contextmanager
def _failing_by_name(scheduler: Any) -> Iterator[None]:
    """Let the error of a schedule, such as OneCycleLR's after its last step, end the run: it is no client's fault."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"The schedule {type(scheduler).__name__} failed ({type(error).__name__}: {error}). If it ends before the training "
            "does, let 'configure_optimizers' give it as many steps ('self.trainer.estimated_stepping_batches'), or use one "
            "without an end, such as CosineAnnealingLR. Schedules stay planned for the rounds of the first start: for further "
            "rounds, start a new run, with the weights of this one if you like."
        ) from error


def _equal(one: State, other: State) -> bool:
    """Return whether two states are certainly equal; states with tensors may not be comparable."""
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):
        return False


class Decay:
    """Multiply the rates that schedules give by a factor, without changing the schedules, and name one that fails.

    A schedule with a lowest rate or with several terms is not in proportion to its first rate, and some compute a rate from the
    previous one. So schedulers step on rates without the factor, which is applied again afterwards.

    Args:
        optimizers: the optimizers, with rates as the schedules left them.
        configs: Lightning's configurations of the schedulers.
        factor: the factor on every rate.
    """

    def __init__(self, optimizers: Sequence[Optimizer], configs: Sequence[Any], factor: float) -> None:
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._schedulers, self._factor = [config.scheduler for config in configs], factor
        self._known: dict[tuple[int, str], tuple[float, float]] = {}
        self._lifted = True
        if factor != 1:
            self._lower()
        for scheduler in self._schedulers:
            step = getattr(scheduler.step, "undecayed", scheduler.step)  # of an earlier turn, if the module kept the scheduler
            scheduler.step = self._stepping(scheduler, step)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Give optimizers the rates without the factor for a block."""
        if self._lifted:
            yield
            return
        self._raise()
        try:
            yield
        finally:
            self._lower()

    def _lower(self) -> None:
        for group in self._groups:
            for name in RATES:
                if name in group:
                    rate = float(group[name])
                    _set(group, name, rate * self._factor)
                    self._known[id(group), name] = rate, float(group[name])
        for scheduler in self._schedulers:
            update_last_rates(scheduler)
        self._lifted = False

    def _raise(self) -> None:
        for group in self._groups:
            for name in RATES:
                if name in group:
                    rate, lowered = self._known.get((id(group), name), (0.0, math.nan))
                    now = float(group[name])  # another value if training set it
                    _set(group, name, rate if now == lowered else now / self._factor)
        self._lifted = True

    def _stepping(self, scheduler: Any, step: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **more: Any) -> Any:
            with self.lifted(), _failing_by_name(scheduler):
                return step(*args, **more)

        stepped.undecayed = step  # type: ignore[attr-defined]
        return stepped


def _set(group: dict[str, Any], name: str, rate: float) -> None:
    """Set a rate, in place if it is a tensor, which graphs of the optimizer may refer to."""
    if isinstance(group[name], Tensor):
        group[name].fill_(rate)
    else:
        group[name] = rate
