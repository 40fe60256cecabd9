"""Collect the updates of a round that arrive on this rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fl_lightning.clients.failures import refuse_moved
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.returned import as_number
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.server.federation import Federation
from fl_lightning.server.moved_tensors import MovedTensors, prefixed
from fl_lightning.server.sampling import RoundPlan
from fl_lightning.server.update_store import UpdateStore
from fl_lightning.strategies.base import JointStrategy, RunningStrategy
from fl_lightning.types import ClientUpdate


def averages_targets(strategy: JointStrategy) -> bool:
    """Return whether a strategy's weights also hold for frozen tensors that clients change.

    They do if it averages models, unless it measures models of its own making, which would not contain these tensors.
    """
    return strategy.averages and strategy.worth_metric is None


def _accumulate(strategy: RunningStrategy, update: ClientUpdate, sums: Sums) -> float:
    source = f"{type(strategy).__name__}.accumulate returned"
    return as_number(strategy.accumulate(update, sums), source, "Return the update's weight, for the log.")


class UpdateBuffer:
    """Collect the updates of a round, as sums (which may be masked), or with models for a strategy that needs all of them.

    Args:
        federation: the parts of the federation.
        draw: the plan of the round.
        round_idx: the communication round, from 0.
    """

    def __init__(self, federation: Federation, draw: RoundPlan, round_idx: int) -> None:
        trainer, self._comm = federation.trainer, federation.comm
        self._strategy = federation.strategy
        self._server, self._moved = federation.server, MovedTensors(federation.server)
        self._kept: list[ClientUpdate] = []
        self._store: UpdateStore | None = None
        needed = len(draw.clients) * federation.server.nbytes(upward=True)
        if isinstance(self._strategy, JointStrategy) and needed > federation.memory_limit:
            self._store = UpdateStore(Path(trainer.default_root_dir) / "updates", trainer.global_rank)
        secure = federation.secure_aggregation
        everyone = sorted({*draw.clients, *draw.lost, *draw.epochs})  # including stragglers, which may be dropped
        self._masked = None if secure is None else secure.begin_round(everyone, federation.seed, round_idx)
        self._sums = Sums(trainer.strategy.root_device, for_masks=self._masked is not None)
        self._delivered: list[int] = []  # on this rank, masked

    def begin(self, examples: Sequence[int]) -> None:
        """Choose the resolution of the sums, equally on every rank, after the strategy has begun the round.

        Args:
            examples: the number of examples of each expected update, on any rank.
        """
        if not isinstance(self._strategy, RunningStrategy) or self._masked is not None:  # masks need sums of the same kind
            return
        grids = self._strategy.grids(examples, self._server.grid)
        if "weight" in grids:
            pieces = {name: ((tensor.numel(), None),) for name, tensor in self._server.tensors().items()}
            grids = {prefixed(name): Grid(piece, grids["weight"].largest) for name, piece in pieces.items()} | grids
        self._sums = Sums(self._sums.device, grids)

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Add an update, and return it with its weight if the strategy sets one immediately."""
        moved = update.snapshot.moved
        if moved and isinstance(self._strategy, JointStrategy) and not averages_targets(self._strategy):
            refuse_moved(moved, type(self._strategy).__name__)
        if moved and self._masked is not None:
            refuse_moved(moved, "'federation.secure_aggregation'")
        if isinstance(self._strategy, RunningStrategy):
            if self._masked is not None:
                return self._masked_in(update)
            weight = _accumulate(self._strategy, update, self._sums)
            self._moved.add(moved, weight, self._sums)
            return replace(update, weight=weight)
        if self._store is None:
            self._kept.append(update)
            return update
        self._store.keep(update)
        return update.without_state()

    def _masked_in(self, update: ClientUpdate) -> ClientUpdate:
        """Compute the strategy's summands for the client itself, and add them masked."""
        assert self._masked is not None
        assert isinstance(self._strategy, RunningStrategy)
        own = Sums(self._sums.device, for_masks=True)
        weight = _accumulate(self._strategy, update, own)
        if not own.sizes():  # excluded by the strategy: it sends nothing, as if it had dropped out
            return replace(update, weight=weight)
        self._masked.mask(update.client, own)
        self._sums.merge(own)
        self._delivered.append(update.client)
        bytes_up, bytes_down = self._masked.bytes_up(own), update.bytes_down + self._masked.bytes_down
        return replace(update, weight=weight, bytes_up=bytes_up, bytes_down=bytes_down)

    def total(self) -> Sums:
        """Return the sums over all ranks, without masks.

        Raises:
            ClientError: if too few clients delivered to remove the masks.
            ConfigurationError: if ranks have different sums, so that masks would not cancel.
        """
        if self._masked is not None:
            ranks = self._comm.gather((self._delivered, self._sums.sizes()))
            if len({tuple(sorted(sizes)) for theirs, sizes in ranks if theirs}) > 1:
                raise ConfigurationError(
                    "'federation.secure_aggregation' needs the same sums from every client, but the strategy gives some "
                    "clients no weight. Use FedAvg, or remove 'federation.secure_aggregation'."
                )
            delivered = [client for theirs, _ in ranks for client in theirs]
            self._masked.unmask(self._sums, delivered, self._delivered)
        self._comm.add_sums(self._sums)
        self._sums.reveal()
        return self._sums

    def moved(self, updates: Sequence[ClientUpdate]) -> dict[str, Tensor]:
        """Return the tensors without gradients that clients changed, after :meth:`total`; see :class:`MovedTensors`."""
        return self._moved.result(updates, self._sums, self._comm)

    def moved_together(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> dict[str, Tensor]:
        """Return the same for a strategy that saw all updates at once."""
        return self._moved.of_all(updates, weights)

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

    def wait_until_read(self) -> None:
        """Wait until all ranks have finished reading, so that files can be deleted."""
        if self._store is not None:
            self._comm.gather(None)

    def close(self) -> None:
        """Delete the files, however the round ended."""
        if self._store is not None:
            self._store.close()
