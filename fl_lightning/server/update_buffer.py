"""Collect the updates of a round that arrive on this rank, for a strategy that needs all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fl_lightning.functional.sums import Sums
from fl_lightning.server.federation import Federation
from fl_lightning.server.moved_tensors import MovedTensors
from fl_lightning.server.round_result import Aggregate, state_and_weights
from fl_lightning.server.update_store import UpdateStore
from fl_lightning.strategies.base import JointStrategy, ModelScorer
from fl_lightning.types import ClientUpdate


class UpdateBuffer:
    """Keep updates with their models, in memory or in files.

    Args:
        federation: the parts of the federation.
        strategy: the strategy.
        clients: the number of clients in the round.
    """

    def __init__(self, federation: Federation, strategy: JointStrategy, clients: int) -> None:
        trainer, self._comm, self._strategy = federation.trainer, federation.comm, strategy
        self._moved, self._device = MovedTensors(federation.server), trainer.strategy.root_device
        self._kept: list[ClientUpdate] = []
        self._store: UpdateStore | None = None
        if clients * federation.server.nbytes(upward=True) > federation.memory_limit:
            self._store = UpdateStore(Path(trainer.default_root_dir) / "updates", trainer.global_rank)

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Add an update."""
        if self._store is None:
            self._kept.append(update)
            return update
        self._store.keep(update)
        return update.without_state()

    def begin(self, examples: Sequence[int]) -> None:
        """Do nothing: the number of updates is known."""

    def aggregate(self, updates: list[ClientUpdate], chains: Sequence[Sequence[int]], scorer: ModelScorer) -> Aggregate:
        """Return the strategy's aggregate; ranks exchange data.

        Args:
            updates: the updates of all ranks, without states.
            chains: the clients of each chain that delivered, of which the last one has sent the model.
            scorer: scores models of the strategy's making.
        """
        everyone, strategy = self.everyone(), self._strategy
        state, weights = state_and_weights(strategy, everyone, strategy.combine(everyone, scorer))
        counting, sums = weights if any(weights) else [1.0] * len(weights), Sums(self._device)
        for update, weight in zip(everyone, counting, strict=True):
            if weight:
                self._moved.add(update.snapshot.moved, weight, sums)
        moved = self._moved.result(counting, sums, self._comm)
        if self._store is not None:
            self._comm.gather(None)  # until all ranks have finished reading, no file may be deleted
        handed = {update.client: weight / update.num_examples for update, weight in zip(everyone, weights, strict=True)}
        per_example = {client: handed[chain[-1]] for chain in chains if chain for client in chain}
        return Aggregate(state, [replace(u, weight=per_example[u.client] * u.num_examples) for u in updates], moved)

    def everyone(self) -> list[ClientUpdate]:
        """Return all updates with their states, in memory or mapped from files."""
        if self._store is None:
            return self._comm.gather_updates(self._kept, None)
        stored = [kept for theirs in self._comm.gather(self._store.kept) for kept in theirs]
        stored.sort(key=lambda kept: kept.update.client)
        updates: list[ClientUpdate] = []
        failure: Exception | None = None
        try:
            updates = [kept.load() for kept in stored]
        except Exception as error:
            failure = error
        self._comm.gather_or_raise(None, failure)
        return updates

    def close(self) -> None:
        """Delete the files, however the round ended."""
        if self._store is not None:
            self._store.close()
