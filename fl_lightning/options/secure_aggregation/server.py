"""Add up masked updates instead of plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fl_lightning.core.hooks import ServerHooks
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.sums import Sums
from fl_lightning.options.secure_aggregation.protocol import MaskedRound
from fl_lightning.server.federation import Federation
from fl_lightning.server.round_sums import RoundSums
from fl_lightning.server.sampling import RoundPlan
from fl_lightning.types import ClientUpdate


class MasksAtServer(ServerHooks):
    """Replace a round's sums by masked ones.

    Args:
        least: returns the number of clients of a cohort that must deliver.
    """

    def __init__(self, least: Callable[[int], int]) -> None:
        self._least = least

    def round_sums(self, federation: Federation, round_idx: int, plan: RoundPlan) -> RoundSums:
        """Return the masked sums of a round, in which clients that drop out have exchanged keys, too."""
        return MaskedSums(federation, MaskedRound(plan.cohort, self._least(plan.drawn), federation.seed, round_idx))


class MaskedSums(RoundSums):
    """Add up the messages that clients have masked; see :class:`RoundSums`.

    Args:
        federation: the parts of the federation.
        masks: the protocol of the round, the same on every rank.
    """

    def __init__(self, federation: Federation, masks: MaskedRound) -> None:
        super().__init__(federation)
        self._masks = masks
        self._sums = Sums(self._sums.device, for_masks=True)
        self._delivered: list[int] = []  # on this rank

    def begin(self, examples: Sequence[int]) -> None:
        """Keep the same resolution for all sums: masks need sums of the same kind."""

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Compute the strategy's summands for the client itself, and add them masked."""
        own = Sums(self._sums.device, for_masks=True)
        weight = self.accumulated(update, own)
        if not own.sizes():  # excluded by the strategy: it sends nothing, as if it had dropped out
            return replace(update, weight=weight)
        self._masks.mask(update.client, own)
        self._sums.merge(own)
        self._delivered.append(update.client)
        bytes_up, bytes_down = self._masks.bytes_up(own), update.bytes_down + self._masks.bytes_down
        return replace(update, weight=weight, bytes_up=bytes_up, bytes_down=bytes_down)

    def total(self) -> Sums:
        """Return the sums over all ranks, without masks.

        Raises:
            ClientError: if too few clients delivered to remove the masks.
            ConfigurationError: if ranks have different sums, so that masks would not cancel.
        """
        ranks = self._comm.gather((self._delivered, self._sums.sizes()))
        if len({tuple(sorted(sizes)) for theirs, sizes in ranks if theirs}) > 1:
            raise ConfigurationError(
                "'federation.secure_aggregation' needs the same sums from every client, but the strategy gives some clients no "
                "weight. Use FedAvg, or remove 'federation.secure_aggregation'."
            )
        delivered = [client for theirs, _ in ranks for client in theirs]
        self._masks.unmask(self._sums, delivered, self._delivered)
        return super().total()
