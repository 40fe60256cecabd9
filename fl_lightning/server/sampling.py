"""Draw the clients that take part in a round, and the work of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fl_lightning.errors import ClientError
from fl_lightning.functional.event_queue import EventQueue
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.scheduling import draw_cohort
from fl_lightning.messages import ClientJob, Progress
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.clock import Clock
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.types import Pull


@dataclass(frozen=True)
class RoundPlan:
    """Hold the draw of a round, the same on every rank.

    Attributes:
        clients: the clients that train, ascending.
        drawn: the number of clients that were drawn.
        lost: the drawn clients that drop out.
        epochs: the local epochs of the clients that do fewer than the others, by client.
        slowness: the slowness of the clients that do fewer steps, by client.
        queue: the simulated clock at the end of the round; None without one.
    """

    clients: tuple[int, ...]
    drawn: int
    lost: tuple[int, ...] = ()
    epochs: Mapping[int, int] = field(default_factory=dict)
    slowness: Mapping[int, float] = field(default_factory=dict)
    queue: EventQueue | None = None

    def job(
        self,
        client: int,
        round_idx: int,
        period: int = 0,
        pull: Pull | None = None,
        own_model: bool = False,
        progress: Progress | None = None,
    ) -> ClientJob:
        """Return one client's turn."""
        fewer, slowness = self.epochs.get(client), self.slowness.get(client, 1.0)
        return ClientJob(client, round_idx, period, fewer, slowness, pull, own_model, progress)


class ClientSampler:
    """Draw the rounds of a federation.

    Args:
        num_clients: the number K of clients in the federation.
        clients_per_round: the clients per round, as a fraction or a number.
        local: the settings of the local training, with those of partial work.
        availability: the settings of absent, slow and lost clients.
        faults: the settings of failures, with the smallest number of updates.
        seed: the seed of the federation.
        secret: the key from which to draw cohorts and partial work if they must stay secret; None to use the seed.
        clock: the simulated clock, or None.
        sizes: the numbers of examples of all clients, for the clock.
    """

    def __init__(
        self,
        num_clients: int,
        clients_per_round: int | float,
        local: LocalTraining,
        availability: Availability,
        faults: Faults,
        seed: int,
        secret: SecretKey | None = None,
        clock: Clock | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        self._num_clients, self._per_round, self._local, self._seed = num_clients, clients_per_round, local, seed
        self._availability, self._faults, self._secret = availability, faults, secret
        self._clock, self._sizes = clock, sizes
        self._rounds, self._next_round = availability.present(num_clients, seed), 0
        slow = availability.slow_clients(num_clients, seed)
        self._slowness = dict.fromkeys(slow, availability.slowness)

    def _present(self, round_idx: int) -> list[int]:
        """Return the present clients: one step after the previous round, or all steps in a resumed run's first round."""
        if not self._availability.leave:
            return list(range(self._num_clients))
        if round_idx < self._next_round:
            self._rounds, self._next_round = self._availability.present(self._num_clients, self._seed), 0
        there = next(islice(self._rounds, round_idx - self._next_round, None))
        self._next_round = round_idx + 1
        return there

    def round(self, round_idx: int, queue: EventQueue = EventQueue()) -> RoundPlan:  # noqa: B008 (frozen)
        """Return the draw of a round.

        Args:
            round_idx: the communication round, from 0.
            queue: the simulated clock before the round.

        Raises:
            ClientError: if fewer clients remain than the round needs.
        """
        there = self._present(round_idx)
        order, seed = None, self._seed
        if self._secret is not None:
            order = self._secret.stream("cohort", round_idx).permutation(self._num_clients)
            seed = self._secret.stream("cohort's seed", round_idx).integer()
        cohort = draw_cohort(self._num_clients, self._per_round, seed, round_idx, there, order)
        lost = self._availability.dropped_out(cohort, seed, round_idx)
        work, epochs = self._local.partial_work, {}
        if work.share:
            epochs = work.epochs(cohort, self._local.max_epochs, seed, round_idx)
        gone = {*lost, *(epochs if work.drops else ())}
        left = tuple(client for client in cohort if client not in gone)
        if len(left) < self._faults.needed(len(cohort)) or not left:
            needed = max(1, self._faults.needed(len(cohort)))
            raise ClientError(
                f"Round {round_idx}: {len(left)} of {self._num_clients} clients are available, but the round needs "
                f"{needed}. Lower 'federation.faults.min_updates', 'drop_out' and 'leave' of 'federation.availability', or "
                "'federation.local.partial_work.share' if stragglers are dropped."
            )
        after = None if self._clock is None else EventQueue(queue.tick + self._ticks(self._clock, left, epochs, round_idx))
        return RoundPlan(left, len(cohort), tuple(sorted(lost)), epochs, self._slowness, after)

    def _ticks(self, clock: Clock, clients: Sequence[int], epochs: Mapping[int, int], round_idx: int) -> int:
        """Return the duration of a round, which ends when the last of its clients has delivered."""
        whole = self._local.max_epochs
        shares = {client: fewer / whole for client, fewer in epochs.items()}
        return max(clock.duration(k, round_idx, self._sizes, self._seed, shares.get(k, 1.0)) for k in clients)
