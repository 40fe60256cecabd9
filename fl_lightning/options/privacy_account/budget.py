"""Solve the noise for a target epsilon at the start of a run, and keep the run within it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.core.hooks import ServerContext
from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError
from fl_lightning.functional.noise_search import least_noise
from fl_lightning.functional.spending import Entry, Spending
from fl_lightning.options.privacy_account.settings import PrivateOption
from fl_lightning.server.outer_trainer import planned_rounds
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
        self._options = [option for option in private if option.target_epsilon is not None]
        self._rounds = planned_rounds(context.trainer)
        self._covered: dict[str, Spending] = {}
        self._loaded: Mapping[str, Any] = {}
        if self._options and self._rounds is None:
            raise ConfigurationError(
                f"'target_epsilon' of {self._options[0].title} needs the number of rounds, but 'trainer.max_epochs' is "
                f"{context.trainer.max_epochs}. Set it to the planned number (the run may end earlier), or set "
                "'noise_multiplier' instead."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the noise of each option, and the rounds that it was solved for; empty without a target."""
        if not self._covered:
            return dict(self._loaded)
        return {"rounds": self._rounds, "noise": {option.unit: option.multiplier for option in self._options}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Store the noise of a checkpoint for :meth:`solve`."""
        self._loaded = state

    def solve(self) -> None:
        """Give each option its noise: that of the checkpoint, or the least one for the planned rounds.

        Raises:
            CheckpointError: if the run was extended by more rounds.
            ConfigurationError: if there is no such noise.
        """
        if not self._options:
            return
        found, failure = None, None
        if self._context.trainer.is_global_zero:
            try:
                found = self._noise()
            except FederationError as error:
                failure = error
        noise, self._rounds = Collectives(self._context.trainer).gather_or_raise(found, failure)[0]
        for option in self._options:
            option.use_noise(noise[option.unit])
            whole = option.whole_run(self._context, max(1, self._rounds))
            spent = option.spent(whole, self._context.data.num_clients)
            assert option.target_epsilon is not None
            within = spent <= option.target_epsilon * (1 + 1e-6)  # otherwise a resumed run has longer turns
            self._covered[option.unit] = whole if within else Spending()
            rank_zero_info(
                f"{option.title}: noise multiplier {option.multiplier:.6g} for {self._rounds} rounds, which cost at most "
                f"epsilon {spent:.4g} of {option.unit} ('target_epsilon' {option.target_epsilon:g}, delta {option.delta:g})."
            )

    def _noise(self) -> tuple[dict[str, float], int]:
        """Return the noise by unit, and the rounds that it was solved for."""
        assert self._rounds is not None
        if not self._loaded:
            return {option.unit: solved_noise(option, self._context, self._rounds) for option in self._options}, self._rounds
        before = self._loaded["rounds"]
        if self._rounds > before:
            raise CheckpointError(
                f"The noise of this run was solved for {before} rounds, but 'trainer.max_epochs' is {self._rounds}: further "
                f"rounds would exceed 'target_epsilon'. Set 'trainer.max_epochs' to {before}, or start a new run for "
                f"{self._rounds} rounds without 'ckpt_path'."
            )
        return dict(self._loaded["noise"]), before

    def require(self, round_idx: int, spending: Spending, entry: Entry) -> None:
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

    def stop_if_spent(self, round_idx: int, spending: Spending) -> None:
        """End the run after a round if another one could exceed a target."""
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

    def _excess(self, spending: Spending, entry: Entry) -> str:
        """Return in words which epsilon an entry would raise above its target; empty if none."""
        after = copy.deepcopy(spending)
        after.add(entry)
        for option in self._options:
            target = option.target_epsilon
            if target is not None and not after.within(self._covered[option.unit]):
                spent = option.spent(after, self._context.data.num_clients)
                spent = Collectives(self._context.trainer).gather(spent)[0]  # ranks may round differently
                if spent > target:
                    return f"epsilon of {option.unit} to {spent:.4g}, above 'target_epsilon' {target:g}"
        return ""

    def figures(self) -> dict[str, float]:
        """Return the solved noise, for the log."""
        return {f"noise_of_{option.unit}": option.multiplier for option in self._options}


def solved_noise(option: PrivateOption, context: ServerContext, rounds: int) -> float:
    """Return the least noise that keeps a whole run within an option's target.

    Args:
        option: the option, with a target.
        context: the fit.
        rounds: the planned rounds.

    Raises:
        ConfigurationError: if there is none.
    """
    assert option.target_epsilon is not None
    cases = option.cases(option.whole_run(context, max(1, rounds)), context.data.num_clients)
    noise = least_noise(option.target_epsilon, cases, option.epsilon)
    if noise is None:
        raise ConfigurationError(
            f"No noise multiplier up to a million gives {option.title} an epsilon of {option.target_epsilon:g} at delta "
            f"{option.delta:g} over {rounds} rounds. Raise 'target_epsilon' or 'delta', or lower 'trainer.max_epochs' or the "
            "share of the data in each step ('clients_per_round', 'batch_size')."
        )
    return noise
