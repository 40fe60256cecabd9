"""What happens to an update on its way from a client to the strategy."""

from __future__ import annotations

from dataclasses import replace

import torch

from fl_lightning.attacks.models import Crowd
from fl_lightning.callbacks.exchange import add_sums, gather
from fl_lightning.callbacks.federation import Federation
from fl_lightning.clients.faults import check_update
from fl_lightning.functional.exact_sum import Sums, wide
from fl_lightning.functional.seeding import generator
from fl_lightning.types import ClientUpdate


class Uplink:
    """One round's; on each rank for the clients that it trains.

    Args:
        federation: what stays.
        round_idx: from 0.
    """

    def __init__(self, federation: Federation, round_idx: int) -> None:
        self._federation, self._round_idx = federation, round_idx
        attackers = federation.attackers
        self._attack = attackers.model if attackers.active(round_idx) else None
        self._hostile = (
            federation.attackers.members(federation.data.num_clients, federation.seed) if self._attack else frozenset()
        )
        self._size = federation.server.num_parameters
        self._start = federation.server.vector()[: self._size] if self._attack else torch.zeros(0)
        self._known = Sums(federation.trainer.strategy.root_device)
        self._held: list[ClientUpdate] = []

    def send(self, update: ClientUpdate) -> ClientUpdate | None:
        """What the server gets of a client, its model in the clients' module; None where the client waits for the others.

        Raises:
            ClientError: if it is not fit to be aggregated.
        """
        if self._attack is None:
            return update
        hostile = update.client in self._hostile
        if not self._attack.needs_crowd:
            return self._forged(update, None) if hostile else update
        if hostile:
            self._held.append(update)
            return None
        assert update.state is not None
        change = wide(update.state[: self._size]) - wide(self._start)
        self._known.add("count", 1.0)
        self._known.add("change", change)
        self._known.add("square", change * change)
        return update

    def look_around(self) -> Crowd | None:
        """What attackers learn when all honest clients have sent theirs; to be called on every rank where they act together."""
        trainer = self._federation.trainer
        add_sums(trainer, self._known)
        attackers = sum(gather(trainer, len(self._held)))
        honest = round(self._known.scalar("count"))
        if not honest:
            return None
        mean = self._known.value("change") / honest
        spread = (self._known.value("square") - honest * mean * mean).clamp(min=0) / max(1, honest - 1)
        return Crowd(mean, spread.sqrt() if honest > 1 else torch.zeros_like(mean), honest, attackers)

    @property
    def acts_together(self) -> bool:
        """Whether attackers answer last."""
        return self._attack is not None and self._attack.needs_crowd

    def held_back(self, crowd: Crowd | None) -> list[ClientUpdate]:
        """What this rank's attackers had waited with; not yet looked at by :meth:`answer`."""
        held, self._held, self._crowd = self._held, [], crowd
        return held

    def answer(self, update: ClientUpdate) -> ClientUpdate:
        """What such an attacker sends; see :meth:`send`."""
        return self._forged(update, self._crowd)

    def _forged(self, update: ClientUpdate, crowd: Crowd | None) -> ClientUpdate:
        assert self._attack is not None
        assert update.state is not None
        parts, start = self._federation, wide(self._start)
        draw = generator(parts.seed, self._round_idx, update.client, "attack")
        forged = start + self._attack.forge(wide(update.state[: self._size]) - start, crowd, draw).to(start)
        state = torch.cat([forged.to(update.state), update.state[self._size :]])
        sent = replace(update, state=state)
        check_update(sent, parts.server, parts.size, parts.strategy.tolerates_broken)
        parts.local.load(parts.server, sent.snapshot)
        return sent
