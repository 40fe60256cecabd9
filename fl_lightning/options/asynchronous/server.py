"""Replace the rounds that wait for their cohort by asynchronous ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fl_lightning.core.hooks import ServerContext, ServerHooks
from fl_lightning.errors import ConfigurationError
from fl_lightning.options.asynchronous.jobs import JobsInProgress
from fl_lightning.options.asynchronous.round import AsynchronousRound
from fl_lightning.options.asynchronous.sampler import AsynchronousSampler
from fl_lightning.reporting.rounds import staleness_figures
from fl_lightning.server.federation import Federation
from fl_lightning.server.round import FederationRound
from fl_lightning.server.round_result import RoundResult
from fl_lightning.server.sampling import ClientSampler

if TYPE_CHECKING:
    from fl_lightning.options.asynchronous.settings import Asynchronous


class AsynchronousAtServer(ServerHooks):
    """Plan and run rounds in which clients have started from different models.

    Args:
        settings: the settings.
        context: the fit.

    Raises:
        ConfigurationError: if the strategy is not defined for so many updates.
    """

    def __init__(self, settings: Asynchronous, context: ServerContext) -> None:
        self._settings, self._in_progress = settings, JobsInProgress()
        most, name = context.settings.strategy.largest_buffer, type(context.settings.strategy).__name__
        if most is not None and settings.buffer > most:
            raise ConfigurationError(
                f"{name} mixes every update into the model at once, but 'federation.asynchronous.buffer' is {settings.buffer}. "
                f"Set it to {most}, or use FedBuff."
            )
        ranks = context.trainer.world_size
        if settings.buffer == 1 and ranks > 1:
            warnings.warn(
                f"'federation.asynchronous.buffer' is 1, so one client trains at a time, and {ranks} ranks are no faster than "
                "one. Set 'trainer.devices' to 1.",
                stacklevel=2,
            )

    def begin_round(self, round_idx: int) -> None:
        """Start the clock with the first round."""
        if round_idx == 0:
            self._in_progress.forget()

    def sampler(self, sampler: ClientSampler) -> ClientSampler:
        """Return a sampler that follows the clock."""
        slots, buffer = self._settings.slots(sampler.num_clients), self._settings.buffer
        return AsynchronousSampler(**vars(sampler), in_progress=self._in_progress, slots=slots, buffer=buffer)

    def rounds(self, build: Callable[..., FederationRound]) -> Callable[..., FederationRound]:
        """Return what builds asynchronous rounds."""
        return partial(AsynchronousRound, in_progress=self._in_progress)

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the time, and how many models have been made since the clients' starts."""
        return {**staleness_figures(result.updates), "ticks": float(self._in_progress.queue.tick)}

    def state_dict(self) -> dict[str, Any]:
        """Return the jobs in progress, with the models from which they started."""
        return self._in_progress.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the jobs in progress."""
        self._in_progress.load_state_dict(state)
