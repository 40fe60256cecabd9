"""Plan one client's turn: its epochs and steps, and their place in the whole training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

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

    # ---------------------------------------------------------------- the whole training, as the module sees it

    @property
    def max_epochs(self) -> int:
        """Return the module's ``trainer.max_epochs``; -1 for no limit. Turns of an extended run lie beyond it."""
        return self.epochs if self.progress is None else self._over_all_turns(self.whole_epochs)

    @property
    def all_steps(self) -> int:
        """Return the module's ``trainer.max_steps``; -1 for no limit."""
        return self.max_steps if self.progress is None else self._over_all_turns(self.max_steps)

    def _over_all_turns(self, each: int) -> int:
        assert self.progress is not None
        turns = self.progress.turns
        return -1 if turns is None or each == -1 else each * turns

    # ---------------------------------------------------------------- this turn

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
        steps = int(self.steps(batches))
        return turn * self._epochs(batches), turn * steps

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
