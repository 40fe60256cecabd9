"""Plan a client's turn: its epochs and steps, their place in the whole training, and the schedules at its beginning."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.attribute_values import equal, is_kept
from fl_lightning.compat.torch import count_as_stepped, update_last_rates
from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ClientTask, Progress
from fl_lightning.settings.local_training import LocalTraining


@dataclass(frozen=True)
class TurnPlan:
    """Hold the work of one turn, and its place in the whole training.

    Attributes:
        epochs: the local epochs of this turn; -1 for no limit.
        whole_epochs: the local epochs of a whole turn, of which a straggler does fewer; -1 for no limit.
        max_steps: the largest number of optimizer steps; -1 for no limit.
        accumulate: the batches per optimizer step.
        progress: the place of the turn; None for a training of its own.
    """

    epochs: int = 1
    whole_epochs: int = 1
    max_steps: int = -1
    accumulate: int = 1
    progress: Progress | None = None

    @classmethod
    def of(cls, task: ClientTask, local: LocalTraining, fast_dev_run: bool = False) -> TurnPlan:
        """Return the plan of a client's turn."""
        whole = 1 if fast_dev_run else local.max_epochs
        epochs = whole if task.epochs is None else task.epochs if whole == -1 else min(task.epochs, whole)
        return cls(epochs, whole, local.max_steps, local.accumulate_grad_batches, task.progress)

    @property
    def limits(self) -> tuple[int, int]:
        """Return the module's ``trainer.max_epochs`` and ``trainer.max_steps``, those of the whole training; -1 for no limit.

        Turns of an extended run lie beyond them.
        """
        if self.progress is None:
            return self.epochs, self.max_steps
        turns = -1 if self.progress.turns is None else self.progress.turns
        epochs, steps = (-1 if -1 in (turns, each) else each * turns for each in (self.whole_epochs, self.max_steps))
        return epochs, steps

    def steps(self, batches: float, whole: bool = True) -> float:
        """Return the number of planned optimizer steps.

        Args:
            batches: the number of batches in an epoch.
            whole: whether to count those of a whole turn, also for a straggler.
        """
        epochs = self.whole_epochs if whole else self.epochs
        limit = math.inf if self.max_steps == -1 else self.max_steps
        return min(self.steps_per_epoch(batches) * (math.inf if epochs == -1 else epochs), limit)

    def first(self, batches: float) -> tuple[int, int]:
        """Return the epoch and the step at which the turn begins, given the number of batches in an epoch."""
        turn = 0 if self.progress is None else self.progress.turn
        if not turn or batches in (0, math.inf):
            return turn * max(1, self.whole_epochs), 0
        return turn * self._epochs(batches), turn * int(self.steps(batches))

    def _epochs(self, batches: float) -> int:
        """Return the number of epochs of a whole turn, which its steps give if there is no other limit."""
        return self.whole_epochs if self.whole_epochs != -1 else math.ceil(self.max_steps / self.steps_per_epoch(batches))

    def steps_per_epoch(self, batches: float) -> float:
        """Return the number of optimizer steps in a whole epoch, given its number of batches."""
        return math.ceil(batches / self.accumulate) if batches != math.inf else math.inf

    def events(self, batches: int) -> Iterator[tuple[str, int]]:
        """Yield the moments of a whole turn at which schedulers step, in order: ``step`` or ``epoch``, and its number.

        A step's number is that of its batch in the epoch; an epoch's is counted from the start of the turn.
        """
        left = self.steps(batches)
        for epoch in range(self._epochs(batches)):
            for batch in range(batches):
                complete = batch + 1 == batches
                if complete or (batch + 1) % self.accumulate == 0:
                    yield "step", batch
                    left -= 1
                if complete:
                    yield "epoch", epoch
                if left <= 0:
                    return


def refuse_unlimited() -> NoReturn:
    """Refuse to estimate the steps of a training without an end.

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        "The module reads 'trainer.estimated_stepping_batches', but the federation's 'trainer.max_epochs' is -1, so the "
        "training has no end. Set it to the number of rounds, or set 'federation.local.progress' to 'round'."
    )


# ---------------------------------------------------------------- schedules


State = tuple[list[Any], list[list[dict[str, Any]]]]
"""The states of the schedulers, and the settings of the optimizers' groups."""
Step = Callable[[Any, int, int], None]
"""Step a scheduler, given its Lightning configuration, the epoch and the number of optimizer steps so far."""
RATES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
"""The learning rates in the groups of optimizers."""


def state_of(optimizers: Sequence[Optimizer], configs: Sequence[Any], stored: bool = False) -> State:
    """Return a copy of the schedulers' states and of the settings that they change.

    Args:
        optimizers: the optimizers.
        configs: Lightning's configurations of the schedulers.
        stored: whether a client stores it, and so only tensors, plain values, and lists and dictionaries of them.

    Raises:
        ConfigurationError: if a scheduler saves anything else that is to be stored.
    """
    states = [config.scheduler.state_dict() for config in configs]  # with the method that Decay puts into the scheduler
    states = [{k: v for k, v in state.items() if k != "step" or not callable(v)} for state in states]
    for state, config in zip(states, configs, strict=True):
        if stored:
            require_kept(config.scheduler, state.items(), "Leave it out of its 'state_dict', or use another scheduler")
    groups = [
        [{k: v for k, v in group.items() if k != "params" and (not stored or is_kept(v))} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]
    return copy.deepcopy((states, groups))


def require_kept(owner: Any, values: Iterable[tuple[Any, Any]], remedy: str) -> None:
    """Refuse values of an optimizer or a schedule, with their names, that a client cannot store.

    Raises:
        ConfigurationError: naming the first; it ends with the remedy.
    """
    for name, value in values:
        if not is_kept(value):
            raise ConfigurationError(
                f"{type(owner).__name__} keeps '{name}' (a {type(value).__name__}) from turn to turn, but clients store only "
                f"tensors, numbers, texts, and lists and dictionaries of them. {remedy}."
            )


def restore(state: State, optimizers: Sequence[Optimizer], configs: Sequence[Any]) -> None:
    """Give schedulers and optimizers a state that :func:`state_of` returned."""
    schedulers, groups = copy.deepcopy(state)
    for config, own in zip(configs, schedulers, strict=True):
        config.scheduler.load_state_dict(own)
    for optimizer, settings in zip(optimizers, groups, strict=True):
        for group, own in zip(optimizer.param_groups, settings, strict=True):
            group.update(own)


class ScheduleMover:
    """Move schedulers, which are rebuilt for each turn, to its beginning, and remember the result, where the next continues.

    A scheduler's state depends on the module's settings and on the numbers of batches and steps of a client's turn, not on
    the client. So each such pair of numbers is followed once, one turn after another.
    """

    def __init__(self) -> None:
        self._reached: dict[tuple[Any, ...], tuple[State, int, State]] = {}

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
        beginning = state_of(optimizers, configs)
        known, begun, reached = self._reached.get(key, (None, 0, beginning))
        if known is not None and begun <= turn and equal(known, beginning):
            restore(reached, optimizers, configs)
        else:
            begun = 0
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
            self._reached[key] = beginning, turn, state_of(optimizers, configs)


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
        for group, name in self._rates():
            rate, lowered = self._known.get((id(group), name), (0.0, math.nan))
            now = float(group[name])  # another value if training set it
            _set(group, name, rate if now == lowered else now / self._factor)
        self._lifted = True
        try:
            yield
        finally:
            self._lower()

    def _lower(self) -> None:
        for group, name in self._rates():
            rate = float(group[name])
            _set(group, name, rate * self._factor)
            self._known[id(group), name] = rate, float(group[name])
        for scheduler in self._schedulers:
            update_last_rates(scheduler)
        self._lifted = False

    def _rates(self) -> list[tuple[dict[str, Any], str]]:
        return [(group, name) for group in self._groups for name in RATES if name in group]

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
