"""A rank's share of a round's training: chains of clients, one after another or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning.callbacks.exchange import gather_or_raise
from fl_lightning.callbacks.federation import Federation
from fl_lightning.callbacks.hooks import announce
from fl_lightning.clients.engines.choice import choose
from fl_lightning.clients.local_trainer import Turn, refuse_non_finite
from fl_lightning.functional.scheduling import balanced_shares
from fl_lightning.routes.base import Chains
from fl_lightning.types import ClientUpdate, Snapshot


class CohortTraining:
    """Trains the clients of one round that fall to this rank.

    Args:
        federation: what stays from round to round.
        round_idx: from 0.
        epochs: of the clients that do fewer local epochs than the others.

    Attributes:
        turns: of this rank: client, round, period, and epochs or -1 for all.
    """

    def __init__(self, federation: Federation, round_idx: int, epochs: Mapping[int, int]) -> None:
        self._federation, self._round_idx, self._epochs = federation, round_idx, epochs
        self.turns: list[tuple[int, int, int, int]] = []

    def train(
        self,
        chains: Chains,
        starts: Mapping[int, Snapshot] | None = None,
        period: int = 0,
        control: Tensor | None = None,
    ) -> Iterator[list[ClientUpdate]]:
        """The updates of each of this rank's chains as soon as it is done; its last model is in the clients' module.

        Args:
            chains: of all ranks.
            starts: for the first client of a chain the model it starts from, where that is not w_t.
            period: from 0.
            control: SCAFFOLD's c.
        """
        mine, given = self._mine(chains), starts or {}
        self._choose_engine(mine)
        if self._federation.local.stacks:
            yield from self._side_by_side(mine, given, period, control)
            return
        for chain in mine:
            updates: list[ClientUpdate] = []
            start = given.get(chain[0])
            for client in chain:
                if updates:
                    start = self._pass_on(updates)
                turn, before = self._begin(client, start, period)
                parts = self._federation
                trained = parts.local.train(turn, parts.data, parts.server, self._round_idx, control)
                updates.append(self._end(trained, before))
            yield updates

    def _choose_engine(self, mine: Sequence[Sequence[int]]) -> None:
        """Once, where that was left to us: the same on all ranks."""
        parts = self._federation
        if parts.local.engine != "auto":
            return
        trials, failure = {}, None
        try:
            trials = parts.local.trial([Turn(chain[0]) for chain in mine], parts.data, parts.server, self._round_idx)
        except Exception as error:
            failure = error
        everyone = gather_or_raise(parts.trainer, trials, failure)
        if any(everyone):  # a round may be without clients
            parts.local.engine, why = choose(everyone)
            rank_zero_info(why)

    def _mine(self, chains: Chains) -> list[Sequence[int]]:
        """This rank's chains, longest first and balanced: by their examples, and by the evaluation of each chain's model."""
        data, trainer = self._federation.data, self._federation.trainer
        epochs = max(1, self._federation.local.local.max_epochs)
        due = trainer.world_size > 1 and self._federation.measures.server_evaluation.due(self._round_idx)
        scored = self._federation.examples_to_score if due else 0
        # A step costs about three times what evaluating its examples does: forward, and backward twice that.
        cost = {
            number: sum(3 * self._epochs.get(client, epochs) * data.num_examples(client) for client in chain) + scored
            for number, chain in enumerate(chains)
        }
        return [chains[k] for k in balanced_shares(range(len(chains)), cost, trainer.world_size)[trainer.global_rank]]

    def _side_by_side(
        self, chains: Sequence[Sequence[int]], starts: Mapping[int, Snapshot], period: int, control: Tensor | None
    ) -> Iterator[list[ClientUpdate]]:
        """All first clients of the chains together, then all second ones, and so on."""
        parts = self._federation
        done: dict[int, list[ClientUpdate]] = {number: [] for number in range(len(chains))}
        for position in range(max((len(chain) for chain in chains), default=0)):
            number_of = {chain[position]: number for number, chain in enumerate(chains) if position < len(chain)}
            begun = {}
            for client, number in number_of.items():
                start = self._pass_on(done[number]) if position else starts.get(client)
                begun[client] = self._begin(client, start, period)
            turns = [turn for turn, _ in begun.values()]
            for trained in parts.local.train_together(turns, parts.data, parts.server, self._round_idx, control):
                number = number_of[trained.client]
                done[number].append(self._end(trained, begun[trained.client][1]))
                if position + 1 == len(chains[number]):
                    parts.local.load(parts.server, trained.snapshot)
                    yield done.pop(number)

    def _pass_on(self, updates: list[ClientUpdate]) -> Snapshot:
        """The model that the next client of a chain starts from."""
        announce(self._federation.trainer, "on_client_end", updates[-1])
        model = updates[-1].snapshot
        updates[-1] = updates[-1].without_state()
        return model

    def _begin(self, client: int, start: Snapshot | None, period: int) -> tuple[Turn, float | None]:
        """Announce a client, and score the global model on its examples where the strategy asks for it."""
        parts = self._federation
        announce(parts.trainer, "on_client_start", self._round_idx, client)
        before = None
        if parts.strategy.global_metric is not None:
            module = parts.local.load(parts.server)
            before = parts.measures.on_client(module, parts.strategy.global_metric, client, "training")
        fewer = self._epochs.get(client)
        self.turns.append((client, self._round_idx, period, -1 if fewer is None else fewer))
        return Turn(client, start, period, fewer), before

    def _end(self, update: ClientUpdate, before: float | None) -> ClientUpdate:
        if not self._federation.strategy.tolerates_broken:
            refuse_non_finite(update)
        return replace(update, global_score=before)
