"""A simulated clock: how long each client's training takes, in ticks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from fl_lightning.core.capabilities import Capability, Removal
from fl_lightning.core.hooks import USUAL_TICKS, ServerContext, ServerHooks
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator
from fl_lightning.messages import ClientTask
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    from fl_lightning.server.federation import Federation
    from fl_lightning.server.round_result import RoundResult

Distribution = Literal["constant", "uniform", "exponential", "half_normal", "lognormal"]
_DISTRIBUTIONS = ("constant", "uniform", "exponential", "half_normal", "lognormal")
_NAME = "federation.clock."


@checks_types
@dataclass(frozen=True)
class Clock(OptionSettings):
    """Simulate how long clients train. It changes no result of synchronous rounds, and orders the events of asynchronous ones.

    Client k's training from the model of round t takes ``ticks * a_k * b_kt`` ticks, rounded, and at least one. The factors are
    drawn from distributions of mean 1: ``constant`` is always 1; ``uniform`` lies between 0.5 and 1.5; ``exponential`` is
    Exp(1); ``half_normal`` is ``|x| * sqrt(pi / 2)`` and ``lognormal`` is ``exp(x - 1/2)`` with x from N(0, 1). All draws
    depend only on the federation's seed, the client and the round.

    Args:
        between_clients: the distribution of a_k, which is drawn once for each client.
        between_jobs: the distribution of b_kt, which is drawn anew each time. FedBuff's authors simulate with ``half_normal``.
        ticks: the mean duration in ticks, a whole number >= 1.
        by_examples: whether a duration is also proportional to the client's number of examples; the mean client has factor 1.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    between_clients: Distribution = "constant"
    between_jobs: Distribution = "constant"
    ticks: int = USUAL_TICKS
    by_examples: bool = False

    setting = "clock"
    simulated_only = True

    def __post_init__(self) -> None:
        for name in ("between_clients", "between_jobs"):
            known = getattr(self, name)
            require(known in _DISTRIBUTIONS, _NAME + name, f"one of {', '.join(_DISTRIBUTIONS)}", known)
        whole = isinstance(self.ticks, int) and self.ticks >= 1
        require(whole, _NAME + "ticks", "a whole number of 1 or above", self.ticks)

    def removes(self) -> Iterator[Removal]:
        """Return what the clock does not simulate."""
        yield Removal(Capability.WAITING_CLIENTS, "'federation.clock' does not simulate that", "remove 'federation.clock'")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        return ClockAtServer(self, context)

    def duration(self, client: int, round_idx: int, sizes: Sequence[int], seed: int, factor: float = 1.0) -> int:
        """Return the duration of a client's training in ticks, >= 1.

        Args:
            client: the client.
            round_idx: the round from whose model it starts.
            sizes: the numbers of examples of all clients.
            seed: the seed of the federation.
            factor: a further factor, such as the slowness of a slow client.
        """
        speed = _draw(self.between_clients, seed, client, "clock of the client")
        work = _draw(self.between_jobs, seed, client, round_idx, "clock of the job")
        share = sizes[client] * len(sizes) / sum(sizes) if self.by_examples else 1.0
        return max(1, round(self.ticks * speed * work * share * factor))


class ClockAtServer(ServerHooks):
    """Say how long clients train, and follow the time of rounds that wait for the slowest client.

    Args:
        clock: the settings.
        context: the fit.
    """

    def __init__(self, clock: Clock, context: ServerContext) -> None:
        self._clock, self._seed, self._sizes = clock, context.seed, context.data.indices.sizes.tolist()
        self._epochs, self._follows = context.settings.local.max_epochs, context.synchronous
        self._tick = self._longest = 0

    def begin_round(self, round_idx: int) -> None:
        """Start the time with the first round."""
        self._tick, self._longest = self._tick if round_idx else 0, 0

    def task(self, task: ClientTask) -> ClientTask:
        """Note how long the task takes."""
        if self._follows:
            share = 1.0 if task.epochs is None else task.epochs / self._epochs
            taken = self._clock.duration(task.client, task.round_idx, self._sizes, self._seed, share)
            self._longest = max(self._longest, taken)
        return task

    def duration(self, client: int, round_idx: int, ticks: float) -> float:
        """Return the duration of a client's training."""
        return self._clock.duration(client, round_idx, self._sizes, self._seed, ticks / USUAL_TICKS)

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the time at the end of the round, which ends when the last of its clients has delivered."""
        self._tick += self._longest
        return {"ticks": float(self._tick)} if self._follows else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the time."""
        return {"tick": self._tick}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the time."""
        self._tick = state["tick"]


def _draw(distribution: Distribution, *key: int | str) -> float:
    """Return a number > 0 from a distribution of mean 1."""
    if distribution == "constant":
        return 1.0
    draw = generator(*key)
    if distribution == "uniform":
        return 0.5 + float(torch.rand((), generator=draw, dtype=torch.float64))
    if distribution == "exponential":
        return -math.log1p(-float(torch.rand((), generator=draw, dtype=torch.float64)))
    normal = float(torch.randn((), generator=draw, dtype=torch.float64))
    return abs(normal) * math.sqrt(math.pi / 2) if distribution == "half_normal" else math.exp(normal - 0.5)
