"""Put the clients of a round to work: chains of clients, of which each trains from the model of the one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fl_lightning.clients.failures import describe, is_clients_fault
from fl_lightning.clients.pool import Chain, ChainReport, ClientPool
from fl_lightning.errors import ClientError
from fl_lightning.messages import ClientTask
from fl_lightning.types import ClientFailure, ClientUpdate


@dataclass
class _Progress:
    """Follow a chain, of which one client trains at a time."""

    chain: Chain
    task: ClientTask | None = None
    delivered: ClientTask | None = None
    updates: list[ClientUpdate] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)

    def next(self) -> ClientTask | None:
        """Return the next task, which starts from the last model of the chain; None at its end."""
        done = len(self.updates) + len(self.failures)
        if done == len(self.chain.jobs):
            return None
        start = self.updates[-1].snapshot if self.updates else self.chain.start
        last = done + 1 == len(self.chain.jobs)
        self.task = ClientTask(self.chain.version, self.chain.jobs[done], start, self.chain.delivers and last)
        return self.task

    def take(self, result: ClientUpdate | ClientFailure) -> None:
        """Add a result; only the last update keeps its model."""
        if isinstance(result, ClientFailure):
            self.failures.append(result)
            return
        self.updates = [*(earlier.without_state() for earlier in self.updates), result]
        self.delivered = self.task


class Loop:
    """Run chains on a pool, and report each one as soon as it is done.

    Args:
        pool: trains single clients.
        skips: whether a round continues without a client that failed.
        passes_on: called with the update of a client whose model goes to the next client of its chain.
    """

    def __init__(self, pool: ClientPool, skips: bool, passes_on: Callable[[ClientUpdate], None]) -> None:
        self._pool, self._skips, self._passes_on = pool, skips, passes_on
        self._waiting: list[_Progress] = []

    def run(self, chains: Sequence[Chain]) -> Iterator[ChainReport]:
        """Train chains, and yield on each rank the reports of its own, in any order.

        Every rank reads all its reports, even after an error, before the ranks exchange anything. Only the call itself may be
        an exchange.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``.
        """
        running: dict[int, _Progress] = {}
        for chain in self._pool.mine(chains):
            self._submit(_Progress(chain), running)
        return self._reports(running)

    def _reports(self, running: dict[int, _Progress]) -> Iterator[ChainReport]:
        for result in self._pool.results():
            progress = running.pop(result.client)
            progress.take(result)
            del result  # it holds a model, which must not stay in memory while the next client trains
            if not self._submit(progress, running):
                yield from self._ended(progress)
            del progress

    def _submit(self, progress: _Progress, running: dict[int, _Progress]) -> bool:
        """Submit the next task of a chain; return False at its end."""
        passed = progress.task is not None and progress.task is progress.delivered
        task = progress.next()
        if task is None:
            return False
        if passed:
            self._passes_on(progress.updates[-1])
        running[task.job.client] = progress
        self._pool.submit(task)
        return True

    def _ended(self, progress: _Progress) -> Iterator[ChainReport]:
        """Yield the report of a chain, unless its update waits."""
        updates = progress.updates
        if progress.delivered is not None and progress.chain.delivers:
            try:
                last = self._pool.deliver(progress.delivered, updates[-1])
            except ClientError as error:
                if not self._skips or not is_clients_fault(error):
                    raise
                lost = [ClientFailure(update.client, update.round_idx, describe(error)) for update in updates]
                yield ChainReport((), (*progress.failures, *lost))
                return
            if last is None:
                self._waiting.append(progress)
                return
            updates = [*updates[:-1], last]
        yield ChainReport(tuple(updates), tuple(progress.failures))

    def answer(self) -> Iterator[ChainReport]:
        """Yield the reports of chains whose update waited for those of all others; ranks exchange data before the first."""
        waiting, self._waiting = self._waiting, []
        if self._pool.drained(len(waiting)):
            for progress in waiting:
                yield from self._ended(progress)
