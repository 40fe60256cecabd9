"""Add up masked updates instead of plain ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from fl_lightning.core.federation import Federation
from fl_lightning.core.option import Aggregate, ServerHooks
from fl_lightning.core.plan import RoundPlan
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.sums import Sums
from fl_lightning.functional.words import add_words, from_words
from fl_lightning.messages import ClientTask, Note
from fl_lightning.options.secure_aggregation import messages
from fl_lightning.options.secure_aggregation.at_clients import EXAMPLES, LOSS
from fl_lightning.options.secure_aggregation.description import (
    BEFORE,
    RoundDescription,
    digest_of_model,
    digest_of_sums,
    digest_of_task,
)
from fl_lightning.options.secure_aggregation.record import OpenedSums
from fl_lightning.options.secure_aggregation.server import Ask, MaskedRound, SharesAhead
from fl_lightning.server.aggregate import RoundSums
from fl_lightning.strategies.base import ModelScorer
from fl_lightning.types import ClientUpdate, RoundResult

_MANY = 2**20
"""Stands for numbers of examples that the server does not know; sums of float32 models of 10 to 2**32 examples are precise."""


class MasksAtServer(ServerHooks):
    """Replace a round's sums by masked ones.

    Args:
        setting: the name of the option, to which clients answer.
        threshold: the share of the cohort that must deliver.
    """

    def __init__(self, setting: str, threshold: float) -> None:
        self._setting, self._threshold = setting, threshold
        self._sums: MaskedSums | None = None
        self._ahead: SharesAhead | None = None

    def add_up(self, federation: Federation, what: str, size: int) -> list[int]:
        """Return the totals of whole numbers over all clients, who exchange shares for round 0 as well."""
        federation.publish()  # sites know the session by it
        everyone = range(federation.data.num_clients)
        description = RoundDescription(
            **federation.pool.terms(),
            round_idx=BEFORE,
            cohort=tuple((client, federation.data.client_name(client)) for client in everyone),
            threshold=self._threshold,
            model=digest_of_sums({what: size}),
            work="",
            sizes={what: size},
            grids={},
        )
        masked = MaskedRound(description, asking(federation, self._setting), looks_ahead=True)
        total, self._ahead = masked.add_up(), masked.ahead
        return total

    def round_sums(self, federation: Federation, round_idx: int, plan: RoundPlan, examples: Sequence[int]) -> RoundSums:
        """Return the masked sums of a round, in which clients that drop out have exchanged keys, too."""
        ahead, left = (self._ahead, None) if self._sums is None else (self._sums.ahead, self._sums.left)
        self._sums = MaskedSums(federation, examples, self._setting, self._threshold, ahead, left)
        return self._sums

    def charge(self, federation: Federation, round_idx: int, plan: RoundPlan, tasks: Sequence[ClientTask]) -> None:
        """Have the clients exchange keys before they train."""
        assert self._sums is not None
        self._sums.agree(round_idx, plan, tasks)

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the mean of the clients' training losses as ``loss``."""
        assert self._sums is not None
        return self._sums.figures


class MaskedSums(RoundSums):
    """Add up the words that clients have masked; see :class:`RoundSums`.

    Args:
        federation: the parts of the federation.
        examples: the number of examples of each expected update; if one is unknown, a number stands for all.
        setting: the name of the option.
        threshold: the share of the cohort that must deliver.
        ahead: the keys and shares that clients have exchanged in the round before.
        left: the sites of the last sum, since sites sign no list that grows; None if this process has opened none.
    """

    def __init__(
        self,
        federation: Federation,
        examples: Sequence[int],
        setting: str,
        threshold: float,
        ahead: SharesAhead | None,
        left: Sequence[int] | None,
    ) -> None:
        pool = federation.pool
        unknown = not pool.simulated and any(info.streams for info in pool.clients())  # a simulation may have a million
        self._examples = [_MANY] if unknown else examples
        super().__init__(federation, self._examples)
        self._federation, self._setting, self._threshold, self._ahead = federation, setting, threshold, ahead
        self._ask, self._left = asking(federation, setting), left
        self._delivered: list[int] = []  # on this rank
        self._round: MaskedRound | None = None
        self._accepted: tuple[int, ...] = ()
        self.figures: dict[str, float] = {}

    def agree(self, round_idx: int, plan: RoundPlan, tasks: Sequence[ClientTask]) -> None:
        """Have the clients exchange keys and shares, and announce what they need to mask their updates."""
        pool = self._federation.pool
        everyone = len(plan.cohort) == self._federation.data.num_clients  # then the next cohort is the same
        self._round = MaskedRound(self._described(round_idx, plan, tasks), self._ask, self._ahead, everyone)
        self._round.begin()
        self._words = self._round.description.layout.zeros()
        if self._left is None and (kept := self._kept_sums()) is not None:  # of an earlier process of the server
            self._left = kept.clients()
        pool.tell([Note(self._setting, client, note) for client, note in self._round.notes().items()])

    @property
    def ahead(self) -> SharesAhead | None:
        """Return the keys and shares that clients have exchanged for the next round."""
        return None if self._round is None else self._round.ahead

    @property
    def left(self) -> Sequence[int] | None:
        """Return the sites of this sum; None in a simulation, whose clients sign whatever they are asked for."""
        return None if self._federation.pool.simulated else self._accepted or self._left

    def _described(self, round_idx: int, plan: RoundPlan, tasks: Sequence[ClientTask]) -> RoundDescription:
        federation, strategy = self._federation, self._strategy
        sizes = strategy.sum_sizes(self._server.size, self._server.num_parameters)
        if sizes is None:
            name = type(strategy).__name__
            raise ConfigurationError(
                f"{name} does not say which sums it adds up, so clients cannot mask them. Use FedAvg, FedAvgM, FedNova, "
                f"Scaffold, QFedAvg or FedLoss, or let {name} return the length of each sum from 'sum_sizes'."
            )
        found = strategy.grids(self._examples, self._server.grid)
        work = {digest_of_task(task) for task in tasks}
        return RoundDescription(
            **federation.pool.terms(),
            round_idx=round_idx,
            cohort=tuple((client, federation.data.client_name(client)) for client in plan.cohort),
            threshold=self._threshold,
            model=digest_of_model(federation.pool.published),
            work=work.pop() if len(work) == 1 else "",
            sizes={**sizes, LOSS: 1, EXAMPLES: 1},
            grids={name: grid for name, grid in found.items() if name in sizes},
        )

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Add the words of an update."""
        assert self._round is not None
        if self._left is not None and update.client not in self._left:
            rank_zero_warn(
                f"Client {update.client} was lost in an earlier round. Sites sign no sum over more of them than the last one, "
                "so its update is left out. To have it take part again, begin a new fit, to which the other sites' staff agree."
            )
            return update
        words, layout = update.extras.get(messages.WORDS), self._round.description.layout
        if words is None or words.dtype != torch.int64 or words.shape != self._words.shape:
            came = "no masked words" if words is None else f"masked words of {words.dtype} and shape {tuple(words.shape)}"
            raise ClientError(
                f"Client {update.client} sent {came} in round {update.round_idx}, but {tuple(self._words.shape)} of int64 are "
                "needed."
            )
        add_words(self._words, words.to(self._words.device), layout)
        self._delivered.append(update.client)
        return update

    def total(self) -> Sums:
        """Return the sums over all ranks, without masks.

        Raises:
            ClientError: if too few clients delivered or help to remove the masks.
        """
        assert self._round is not None
        description = self._round.description
        kept = self._kept_sums()
        known = None if kept is None else kept.load(description.model)
        words, self._accepted = self._opened(self._round) if known is None else known
        if known is not None:
            rank_zero_info(
                f"Round {description.round_idx} takes the sum that was opened before the run was interrupted, of "
                f"{len(self._accepted)} clients."
            )
        elif kept is not None:
            kept.save(description.model, self._accepted, words)
        sums = from_words(words, description.layout, self._sums.device)
        examples = sums.scalar(EXAMPLES)
        self.figures = {"loss": sums.scalar(LOSS) / examples} if examples else {}
        return sums

    def _kept_sums(self) -> OpenedSums | None:
        """Return the last sum on the disk. Simulated clients sign whatever they are asked for, so they need none."""
        assert self._round is not None
        folder = Path(self._federation.trainer.default_root_dir)
        return None if self._federation.pool.simulated else OpenedSums(folder, self._round.description.federation)

    def _opened(self, masked: MaskedRound) -> tuple[Tensor, tuple[int, ...]]:
        """Return the sum of all ranks' words without masks, and the clients in it."""
        delivered = tuple(client for theirs in self._comm.gather(self._delivered) for client in theirs)
        masked.open(self._words, delivered, self._delivered)
        words, *others = self._comm.gather(self._words)
        for theirs in others:
            add_words(words, theirs, masked.description.layout)
        return words, delivered

    def aggregate(self, updates: list[ClientUpdate], chains: Sequence[Sequence[int]], scorer: ModelScorer) -> Aggregate:
        """Return the strategy's aggregate, with the updates that are in the sum and the bytes of all steps of the round."""
        assert self._round is not None
        state, updates, moved = super().aggregate(updates, chains, scorer)
        up, down = self._round.bytes_up, self._round.bytes_down
        counted = [
            replace(one, bytes_up=one.bytes_up + up[one.client], bytes_down=one.bytes_down + down[one.client])
            for one in updates
            if one.client in self._accepted
        ]
        return state, counted, moved


def asking(federation: Federation, setting: str) -> Ask:
    """Return a function that sends each client a request for the option of this name, and returns the answers."""

    def ask(requests: Mapping[int, Mapping[str, Any]]) -> Mapping[int, Mapping[str, Any]]:
        answers = federation.pool.ask([Note(setting, client, content) for client, content in requests.items()])
        return {client: note.content for client, note in answers.items()}

    return ask
