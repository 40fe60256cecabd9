"""A rank's share of a round's training: chains of clients, one after another or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning.clients.engines.choice import choose
from fl_lightning.clients.failures import describe, is_clients_fault
from fl_lightning.clients.stored_state import Kept, StoredState
from fl_lightning.clients.turn import Turn
from fl_lightning.collectives import gather_or_raise
from fl_lightning.errors import ClientError
from fl_lightning.functional.scheduling import balanced_shares
from fl_lightning.routes.base import Chains
from fl_lightning.server.announcements import announce
from fl_lightning.server.federation import Federation
from fl_lightning.server.sampling import RoundPlan
from fl_lightning.types import ClientFailure, ClientUpdate, Pull, Snapshot


class CohortTraining:
    """Trains the clients of one round that fall to this rank.

    Args:
        federation: what stays from round to round.
        round_idx: from 0.
        draw: who does less than the others.

    Attributes:
        turns: of this rank: client, round, period, and epochs or -1 for all.
        failures: of this rank: who was left out.
    """

    def __init__(self, federation: Federation, round_idx: int, draw: RoundPlan) -> None:
        self._federation, self._round_idx, self._draw = federation, round_idx, draw
        self.turns: list[tuple[int, int, int, int]] = []
        self.failures: list[ClientFailure] = []
        self._pulled: Mapping[int, Pull] = {}
        self._before: dict[int, Kept | StoredState] = {}  # what clients kept before this round's update

    def train(
        self,
        chains: Chains,
        starts: Mapping[int, Snapshot] | None = None,
        period: int = 0,
        control: Tensor | None = None,
        pulled: Mapping[int, Pull] | None = None,
    ) -> Iterator[list[ClientUpdate]]:
        """The updates of each of this rank's chains as soon as it is done; its last model is in the clients' module.

        Args:
            chains: of all ranks.
            starts: for the first client of a chain the model it starts from, where that is not w_t.
            period: from 0.
            control: SCAFFOLD's c.
            pulled: by client, what draws it somewhere.
        """
        self._pulled = pulled or {}
        mine, given = self._mine(chains), starts or {}
        self._choose_engine(mine)
        if self._federation.local.stacks:
            yield from self._side_by_side(mine, given, period, control)
            return
        for chain in mine:
            updates = self._one_after_another(chain, given.get(chain[0]), period, control)
            if updates:
                yield updates

    def _one_after_another(
        self, chain: Sequence[int], start: Snapshot | None, period: int, control: Tensor | None
    ) -> list[ClientUpdate]:
        """The updates of a chain's clients but for those that failed; the last one's model is in the clients' module."""
        parts = self._federation
        updates: list[ClientUpdate] = []
        passed_on: ClientUpdate | None = None
        for client in chain:
            if updates and passed_on is not updates[-1]:
                passed_on = updates[-1]
                announce(parts.trainer, "on_client_end", passed_on)
            update = self._attempt(client, updates[-1].snapshot if updates else start, period, control)
            if update is not None:
                updates[-1:] = [earlier.without_state() for earlier in updates[-1:]]
                updates.append(update)
        if updates and updates[-1].client != chain[-1]:
            parts.local.load(parts.server, updates[-1].snapshot)
        return updates

    def _attempt(self, client: int, start: Snapshot | None, period: int, control: Tensor | None) -> ClientUpdate | None:
        """A client's update, by as many attempts as it has; None where the round goes on without it."""
        parts = self._federation
        begun: tuple[Turn, float | None] | None = None
        for attempt in range(1, parts.faults.retries + 2):
            try:
                begun = begun or self._begin(client, start, period)
                turn, before = begun
                return self._end(parts.local.train(turn, parts.data, parts.server, self._round_idx, control), before)
            except Exception as error:
                parts.local.recover()
                if attempt > parts.faults.retries or not is_clients_fault(error):
                    self.leave_out([client], error, attempt)
        return None

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
            number: sum(3 * self._draw.epochs.get(client, epochs) * data.num_examples(client) for client in chain) + scored
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
                start = self._pass_on(done[number]) if done[number] else starts.get(chains[number][0])
                begun[client] = self._begin(client, start, period)
            for update in self._together(begun, control):
                number = number_of[update.client]
                done[number].append(update)
                if position + 1 == len(chains[number]):  # at once: nobody holds the models of a whole round
                    parts.local.load(parts.server, update.snapshot)
                    yield done.pop(number)
            for number in number_of.values():  # chains whose last client failed
                if position + 1 == len(chains[number]) and done.get(number):
                    parts.local.load(parts.server, done[number][-1].snapshot)
                    yield done.pop(number)

    def _together(self, begun: Mapping[int, tuple[Turn, float | None]], control: Tensor | None) -> Iterator[ClientUpdate]:
        """The updates of clients that train side by side, but for those that failed."""
        parts, waiting = self._federation, dict(begun)
        for attempt in range(1, parts.faults.retries + 2):
            turns = [turn for turn, _ in waiting.values()]
            try:
                for trained in parts.local.train_together(turns, parts.data, parts.server, self._round_idx, control):
                    _, before = waiting.pop(trained.client)
                    try:
                        yield self._end(trained, before)
                    except ClientError as error:
                        self.leave_out([trained.client], error, attempt)
                return
            except Exception as error:
                parts.local.recover()
                if attempt > parts.faults.retries or not is_clients_fault(error):
                    self.leave_out(list(waiting), error, attempt)

    def leave_out(self, clients: Sequence[int], error: Exception, attempts: int) -> None:
        """Go on without clients, where the policy allows it; else raise the error."""
        if not (self._federation.faults.skips and is_clients_fault(error)):
            if hasattr(error, "add_note"):  # not in Python 3.10
                error.add_note(f"In round {self._round_idx}, client {', '.join(map(str, clients))}.")
            raise error
        for client in clients:
            if client in self._before:
                self._federation.local.memory.restore(client, self._before.pop(client))
        self.failures += [ClientFailure(client, self._round_idx, describe(error), attempts) for client in clients]

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
        fewer = self._draw.epochs.get(client)
        self.turns.append((client, self._round_idx, period, -1 if fewer is None else fewer))
        slowness = self._draw.slowness.get(client, 1.0)
        return Turn(client, start, period, fewer, slowness, self._pulled.get(client)), before

    def _end(self, update: ClientUpdate, before: float | None) -> ClientUpdate:
        parts = self._federation
        update = parts.checked(update)
        if parts.faults.skips:
            self._before[update.client] = parts.local.memory.entry(update.client)
        parts.local.accept(update, final=not parts.faults.skips)
        return replace(update, global_score=before)
