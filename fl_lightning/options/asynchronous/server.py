"""Replace the rounds that wait for their cohort by asynchronous ones."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import ServerHooks, options_of
from fl_lightning.core.plan import ClientSampler
from fl_lightning.errors import ConfigurationError
from fl_lightning.options.asynchronous.arrivals import ArrivalFile, Recording
from fl_lightning.options.asynchronous.jobs import JobsInProgress, deliver
from fl_lightning.options.asynchronous.live import LiveRound, LiveSampler
from fl_lightning.options.asynchronous.sampler import AsynchronousPlan, AsynchronousSampler, ReplaySampler
from fl_lightning.reporting.rounds import staleness_figures
from fl_lightning.routes.base import Chains
from fl_lightning.server.round import FederationRound
from fl_lightning.types import RoundResult


class AsynchronousAtServer(ServerHooks):
    """Plan and run rounds in which clients have started from different models.

    Args:
        slots: the number of clients that train at the same time.
        buffer: the number of updates in a new model.
        replay: the file of a run to repeat; None for no such run.
        context: the fit.

    Raises:
        ConfigurationError: if the strategy is not defined for so many updates, or other settings do not fit.
    """

    def __init__(self, slots: int, buffer: int, replay: str | None, context: ServerContext) -> None:
        self._slots, self._buffer, self._in_progress = slots, buffer, JobsInProgress()
        most, name = context.settings.strategy.largest_buffer, type(context.settings.strategy).__name__
        if most is not None and buffer > most:
            raise ConfigurationError(
                f"{name} mixes every update into the model at once, but 'federation.asynchronous.buffer' is {buffer}. "
                f"Set it to {most}, or use FedBuff."
            )
        ranks = context.trainer.world_size
        if buffer == 1 and ranks > 1:
            warnings.warn(
                f"'federation.asynchronous.buffer' is 1, so one client trains at a time, and {ranks} ranks are no faster than "
                "one. Set 'trainer.devices' to 1.",
                stacklevel=2,
            )
        self._file: ArrivalFile | None = None
        if context.settings.pool is not None:
            for option in options_of(context):
                if any(option.measures()):
                    raise ConfigurationError(
                        f"{option.title} evaluates models at the clients between rounds, but with 'federation.asynchronous' "
                        f"sites train at that time. Remove {option.title}."
                    )
            names = [context.data.client_name(client) for client in range(context.data.num_clients)]
            self._file = ArrivalFile(Path(context.trainer.default_root_dir), names, context.seed)
        self._recording = None if replay is None else recording_of(replay, buffer, context)
        self._first = True

    def begin_round(self, round_idx: int) -> None:
        """Start the clock with the first round, and the file of arrivals with the first one of a fit."""
        if round_idx == 0:
            self._in_progress.forget()
        self._in_progress.ends = []
        if self._file is not None and self._first:
            self._file.begin(round_idx)
        self._first = False

    def sampler(self, sampler: ClientSampler) -> ClientSampler:
        """Return a sampler that follows the clock, or the arrivals of the real clients, or those of an earlier run."""
        own = {"in_progress": self._in_progress, "slots": self._slots, "buffer": self._buffer, "deliver": self._deliver}
        given: dict[str, Any] = {**vars(sampler), **own}
        if self._file is not None:
            self._live = LiveSampler(**given)
            return self._live
        return AsynchronousSampler(**given) if self._recording is None else ReplaySampler(**given, recording=self._recording)

    def _deliver(self, current: FederationRound, chains: Chains) -> None:
        """Train clients from their own starts."""
        if self._file is not None:
            LiveRound(current, self._live).deliver()
        assert isinstance(current.plan, AsynchronousPlan)
        if self._file is None:
            deliver(current, chains, current.plan.starts, self._in_progress)
        self._after = partial(self._in_progress.follow, current.plan.queue, current.round_idx, current.federation)

    def before_step(self, result: RoundResult) -> None:
        """Continue with the tasks after the round, and note what asks once more for those at sites."""
        self._after()

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return how many models have been made since the clients' starts, and the time on a clock."""
        figures = staleness_figures(result.updates)
        if self._file is not None:
            self._file.add(round_idx, self._in_progress.ends)
            return figures
        return figures if self._recording is not None else {**figures, "ticks": float(self._in_progress.queue.tick)}

    def state_dict(self) -> dict[str, Any]:
        """Return the jobs in progress, with the models from which they started."""
        return self._in_progress.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the jobs in progress."""
        self._in_progress.load_state_dict(state)


def recording_of(replay: str, buffer: int, context: ServerContext) -> Recording:
    """Return the run to repeat.

    Raises:
        ConfigurationError: if this run could not give its bits.
    """
    what, given = "'federation.asynchronous.replay'", options_of(context)
    secret = [option.title for option in given if option.clients_noise(delivered=True) > 0]
    if secret:
        raise ConfigurationError(
            f"{what} repeats a run to the bit, but {secret[0]} adds noise that each site draws from a key of its own. Remove "
            f"{what}: such a run cannot be repeated."
        )
    here = [option.title for option in given if option.simulated_only]
    if here:
        raise ConfigurationError(f"{what} repeats a run with sites, which cannot have had {here[0]}. Remove {here[0]}.")
    path = Path(replay)
    recording = Recording.read(path, context.data.num_clients, context.seed, buffer)
    planned, known = context.trainer.max_epochs, recording.rounds
    if planned is None or not 0 <= planned <= known:
        raise ConfigurationError(
            f"{what} is '{path}', which has {known} rounds, but 'trainer.max_epochs' is {planned}. Set it to {known} at most."
        )
    return recording
