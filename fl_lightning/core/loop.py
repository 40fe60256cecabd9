"""Put the clients of a round to work: chains of clients, of which each trains from the model of the one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from fl_lightning.clients.failures import describe, is_clients_fault
from fl_lightning.clients.pool import ClientPool
from fl_lightning.errors import ClientError
from fl_lightning.messages import ClientTask
from fl_lightning.types import ClientFailure, ClientUpdate


@dataclass
class ChainRun:
    """Follow a chain, of which one client trains at a time.

    Attributes:
        tasks: the tasks of its clients, in order, all with the start of the first one.
        updates: the updates of the clients that have trained, in order; the last one carries the model for the server.
        failures: the failures of the other clients, each with its own cause.
        trained: the task of the last update; None without one.
    """

    tasks: Sequence[ClientTask]
    updates: list[ClientUpdate] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)
    trained: ClientTask | None = None

    def next(self) -> ClientTask | None:
        """Return the next task, which starts from the last model of the chain; None at its end."""
        done = len(self.updates) + len(self.failures)
        if done == len(self.tasks):
            return None
        task = self.tasks[done]
        return replace(task, start=self.updates[-1].snapshot) if self.updates else task

    def take(self, task: ClientTask, result: ClientUpdate | ClientFailure) -> None:
        """Add the result of a task; only the last update keeps its model."""
        if isinstance(result, ClientFailure):
            self.failures.append(result)
            return
        self.updates = [*(earlier.without_state() for earlier in self.updates), result]
        self.trained = task


class Loop:
    """Run chains on a pool, and return each one as soon as it is done.

    Args:
        pool: trains single clients.
        skips: whether a round continues without a client that failed.
        passes_on: called with the update of a client whose model goes to the next client of its chain.
    """

    def __init__(self, pool: ClientPool, skips: bool, passes_on: Callable[[ClientUpdate], None]) -> None:
        self._pool, self._skips, self._passes_on = pool, skips, passes_on
        self._waiting: list[ChainRun] = []

    def run(self, chains: Sequence[Sequence[ClientTask]], scored: int = 0) -> Iterator[ChainRun]:
        """Train chains, and yield on each rank its own, in any order.

        Every rank reads all of its chains, even after an error, before the ranks exchange anything. Only the call itself may be
        an exchange.

        Args:
            chains: the tasks of each chain.
            scored: the number of examples on which the server will evaluate each chain's model.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``.
        """
        running: dict[int, tuple[ChainRun, ClientTask]] = {}
        for chain in self._pool.mine(chains, scored):
            self._submit(ChainRun(chain), running)
        return self._done(running)

    def keep_busy(
        self, running: dict[int, tuple[ChainRun, ClientTask]], more: Callable[[], Sequence[Sequence[ClientTask]]]
    ) -> Iterator[ChainRun]:
        """Yield chains as they end, and begin others at the start and whenever one has ended, on a pool that lasts.

        Chains that are under way when the reader stops continue, and end in a later call with the same ``running``.

        Args:
            running: the chains under way, with their tasks, by the client that trains; changed here.
            more: returns the tasks of each chain to begin now.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``.
        """
        for chain in more():
            self._submit(ChainRun(chain), running)
        for done in self._done(running):
            yield done
            for chain in more():
                self._submit(ChainRun(chain), running)

    def _done(self, running: dict[int, tuple[ChainRun, ClientTask]]) -> Iterator[ChainRun]:
        for result in self._pool.results():
            chain, task = running.pop(result.client)
            chain.take(task, result)
            trained = isinstance(result, ClientUpdate)
            del result, task  # they hold models, which must not stay in memory while the next client trains
            if not self._submit(chain, running, trained):
                yield from self._delivered(chain)
            del chain

    def _submit(self, chain: ChainRun, running: dict[int, tuple[ChainRun, ClientTask]], trained: bool = False) -> bool:
        """Submit the next task of a chain, whose last client may just have trained; return False at its end."""
        task = chain.next()
        if task is None:
            return False
        if trained:
            self._passes_on(chain.updates[-1])
        running[task.client] = chain, task
        self._pool.submit(task)
        return True

    def _delivered(self, chain: ChainRun) -> Iterator[ChainRun]:
        """Yield a chain with its last update as the server receives it, unless this update waits."""
        if chain.trained is not None and chain.tasks[-1].delivers:
            try:
                last = self._pool.deliver(chain.trained, chain.updates[-1])
            except ClientError as error:
                if not self._skips or not is_clients_fault(error):
                    raise
                chain.failures += [ClientFailure(update.client, update.round_idx, describe(error)) for update in chain.updates]
                chain.updates = []
            else:
                if last is None:
                    self._waiting.append(chain)
                    return
                chain.updates[-1] = last
        yield chain

    def answer(self) -> Iterator[ChainRun]:
        """Yield the chains whose update waited for those of all others; ranks exchange data before the first."""
        waiting, self._waiting = self._waiting, []
        if self._pool.drained(len(waiting)):
            for chain in waiting:
                yield from self._delivered(chain)
