"""Solve the noise for a target epsilon at the start of a run, and keep the run within it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.core.federation import ServerContext
from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError
from fl_lightning.functional.noise_search import least_noise
from fl_lightning.functional.spending import Entry, Noise, Spending, Spendings
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.utilities.collectives import Collectives


class Budget:
    """Hold the options that have a target epsilon, each with its noise.

    Args:
        private: the settings of privacy in use, of which some may have a target.
        context: the fit.

    Raises:
        ConfigurationError: if the number of rounds is not known.
    """

    def __init__(self, private: Sequence[PrivateOption], context: ServerContext) -> None:
        self._context = context
        self._private, self._options = private, [option for option in private if option.target_epsilon is not None]
        self._rounds, self._first, self._done = context.planned_rounds, 0, 0
        self._covered: dict[str, Spending] = {}
        self._loaded: Mapping[str, Any] = {}
        if self._options and self._rounds is None:
            raise ConfigurationError(
                f"'target_epsilon' of {self._options[0].title} needs the number of rounds, but 'trainer.max_epochs' is "
                f"{context.trainer.max_epochs}. Set it to the planned number (the run may end earlier), or set "
                "'noise_multiplier' instead."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the noise of each option, the rounds that it was solved for, and those done; empty without a target."""
        if not self._covered:
            return dict(self._loaded)
        noise = {option.unit: option.multiplier for option in self._options}
        return {"rounds": self._rounds, "first": self._first, "done": self._done, "noise": noise}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store the noise of a checkpoint for :meth:`solve`."""
        self._loaded, self._done = state, state.get("done", 0)

    def solve(self, spending: Spendings) -> None:
        """Give each option its noise: that of the checkpoint, or the least one for the planned rounds.

        Args:
            spending: everything that the run has released.

        Raises:
            CheckpointError: if the run has more rounds than planned, and an option does not allow that.
            ConfigurationError: if there is no such noise.
        """
        if not self._options:
            return
        solved = Collectives(self._context.trainer).spread(1, lambda _: self._noise(spending))  # on the first rank alone
        ((noise, self._rounds, self._first),) = solved
        for option in self._options:
            option.use_noise(noise[option.unit])
        for option in self._options:
            whole, after = option.whole_run(self._context, max(1, self._rounds), self._first), copy.deepcopy(spending)
            after.replaced(self.noise, whole)
            spent = option.spent(after, self._context.data)
            assert option.target_epsilon is not None
            within = spent <= option.target_epsilon * (1 + 1e-6)  # otherwise a resumed run has longer turns
            self._covered[option.unit] = whole if within else Spending()
            since = f"after round {self._first - 1} of " if self._first else "for "
            rank_zero_info(
                f"{option.title}: noise multiplier {option.multiplier:.6g} {since}{self._rounds} rounds, which cost at "
                f"most epsilon {spent:.4g} of {option.unit} ('target_epsilon' {option.target_epsilon:g}, delta "
                f"{option.delta:g})."
            )

    @property
    def noise(self) -> Noise:
        """Return the present noise of all options, also of those without a target."""
        return {option.unit: option.multiplier for option in self._private}

    def _noise(self, spending: Spendings) -> tuple[Noise, int, int]:
        """Return the noise by unit, and the rounds that it was solved for: their end, and the first one."""
        assert self._rounds is not None
        first, before = 0, self._loaded.get("rounds", 0)
        if self._loaded and self._rounds <= before:
            return dict(self._loaded["noise"]), before, self._loaded.get("first", 0)
        if self._loaded:
            fixed = [option.title for option in self._options if not option.extend]
            if fixed:
                raise CheckpointError(
                    f"The noise of this run was solved for {before} rounds, but 'trainer.max_epochs' is {self._rounds}: "
                    f"further rounds would exceed 'target_epsilon'. Set 'trainer.max_epochs' to {before}, start a new run for "
                    f"{self._rounds} rounds without 'ckpt_path', or set 'extend' of {' and '.join(fixed)} to true: the "
                    "noise of the rounds that remain is then solved again, and is larger."
                )
            first = self._done
        context, rounds = self._context, self._rounds
        noise: Noise = {option.unit: solved_noise(option, context, rounds, first, spending) for option in self._options}
        return noise, self._rounds, first

    def require(self, round_idx: int, spending: Spendings, entry: Entry) -> None:
        """Refuse releases that would exceed a target.

        Args:
            round_idx: the round that is about to begin.
            spending: everything that the run has released.
            entry: what would be released now.

        Raises:
            FederationError: naming the epsilon.
        """
        over = self._excess(spending, entry)
        if over:
            raise FederationError(
                f"Round {round_idx} would raise {over}, since rounds or turns were repeated. The run cannot train further "
                "within its target, and its last checkpoint is within it. For more rounds, start a new run with a larger "
                "'target_epsilon'."
            )

    def stop_if_spent(self, round_idx: int, spending: Spendings) -> None:
        """End the run after a round if another one could exceed a target."""
        self._done = round_idx + 1
        if not self._options or self._rounds is None or round_idx + 1 >= self._rounds:
            return
        for option in self._options:
            once = option.whole_run(self._context, 1)
            entry: Entry = {"sent": once.sent, "steps": once.steps, "rates": once.rates}
            entry |= {"drawn": once.drawn} if once.sums else {}
            over = self._excess(spending, entry)
            if over:
                self._context.trainer.should_stop = True
                rank_zero_warn(
                    f"The run ends after round {round_idx}, of {self._rounds} planned rounds: another one could raise {over}, "
                    "since rounds or turns were repeated."
                )
                return

    def _excess(self, spending: Spendings, entry: Entry) -> str:
        """Return in words which epsilon an entry would raise above its target; empty if none."""
        after = copy.deepcopy(spending)
        present = after.of(self.noise)
        present.add(entry)
        for option in self._options:
            target = option.target_epsilon
            if target is not None and not present.within(self._covered[option.unit]):
                spent = option.spent(after, self._context.data)
                spent = Collectives(self._context.trainer).gather(spent)[0]  # ranks may round differently
                if spent > target:
                    return f"epsilon of {option.unit} to {spent:.4g}, above 'target_epsilon' {target:g}"
        return ""

    def figures(self) -> dict[str, float]:
        """Return the solved noise, for the log."""
        return {f"noise_of_{option.unit}": option.multiplier for option in self._options}


def solved_noise(option: PrivateOption, context: ServerContext, rounds: int, first: int, spending: Spendings) -> float:
    """Return the least noise that keeps a whole run within an option's target.

    Args:
        option: the option, with a target.
        context: the fit.
        rounds: the planned rounds.
        first: the first round with this noise.
        spending: everything that the run has released before.

    Raises:
        ConfigurationError: if no noise reaches the target.
    """
    assert option.target_epsilon is not None
    released = [each for _, each in spending.parts] + [option.whole_run(context, max(1, rounds), first)]
    cases, before = option.cases(released, context.data), option.noises(spending)
    noise = least_noise(option.target_epsilon, cases, lambda noise, case: option.epsilon([*before, noise], case))
    if noise is None and first:
        raise ConfigurationError(
            f"The run has spent epsilon {option.spent(spending, context.data):.4g} of {option.unit}, and no noise "
            f"multiplier up to a million keeps {rounds - first} further rounds within 'target_epsilon' "
            f"{option.target_epsilon:g}. Use the last checkpoint, or start a new run without 'ckpt_path'."
        )
    if noise is None:
        raise ConfigurationError(
            f"No noise multiplier up to a million gives {option.title} an epsilon of {option.target_epsilon:g} at delta "
            f"{option.delta:g} over {rounds} rounds. Raise 'target_epsilon' or 'delta', or lower 'trainer.max_epochs' or the "
            "share of the data in each step ('clients_per_round', 'batch_size')."
        )
    return noise
