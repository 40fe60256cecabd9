"""Forge the updates of attackers; those that act together wait for the honest updates of the round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fl_lightning.attacks.models import Crowd, ModelAttack
from fl_lightning.clients.judging import UpdateEditor
from fl_lightning.core.hooks import ClientContext, ClientHooks
from fl_lightning.functional.returned import require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.sums import Sums
from fl_lightning.types import ClientUpdate
from fl_lightning.utilities.collectives import Collectives

if TYPE_CHECKING:
    from fl_lightning.options.attackers.settings import Attackers

_REMEDY = "Return one number for each trained parameter, as in the change that the method gets."
_ORDINARY = 2.0**14
"""The largest change that attackers learn from; the squares of many such changes still add up exactly."""


class AttackersAtClients(ClientHooks):
    """Replace the updates of attackers by forged ones.

    Args:
        attackers: the settings of the attackers.
        context: the place where the clients train.
    """

    def __init__(self, attackers: Attackers, context: ClientContext) -> None:
        self._attackers, self._seed, self._device = attackers, context.seed, context.device
        self._hostile = attackers.members(context.num_clients, context.seed)
        self._attack: ModelAttack | None = None

    def begin(self, round_idx: int, editor: UpdateEditor) -> None:
        """Prepare for the updates of a new global model."""
        self._round_idx, self._editor = round_idx, editor
        self._attack = self._attackers.model if self._attackers.active_in(round_idx) else None
        self._known, self._drained = Sums(self._device), False
        self._crowd: Crowd | None = None

    @property
    def waits(self) -> bool:
        """Return whether attackers act together, and so send last."""
        return self._attack is not None and self._attack.needs_crowd

    def send(self, update: ClientUpdate) -> ClientUpdate | None:
        """Return an honest update as it is, and an attacker's forged one as soon as the attacker knows enough.

        Raises:
            ClientError: if the forged update cannot be aggregated.
        """
        if self._attack is None:
            return update
        if update.client not in self._hostile:
            self._learn(update)
            return update
        return None if self.waits and not self._drained else self._forged(self._attack, update)

    def _learn(self, update: ClientUpdate) -> None:
        """Add an honest change to what attackers that act together know."""
        if not self.waits:
            return
        change = self._editor.change(update)
        if float(change.abs().max()) < _ORDINARY:  # false for NaN: attackers learn nothing from a broken model
            self._known.add("count", 1.0)
            self._known.add("change", change)
            self._known.add("square", change * change)

    def _forged(self, attack: ModelAttack, update: ClientUpdate) -> ClientUpdate:
        draw = generator(self._seed, self._round_idx, update.client, "attack")
        change = attack.forge(self._editor.change(update), self._crowd, draw)
        require_vector(change, self._editor.size, f"{type(attack).__name__}.forge returned", _REMEDY)
        return self._editor.replaced(update, change)

    def drained(self, comm: Collectives, waiting: int) -> None:
        """Gather what attackers know about the honest updates of all ranks."""
        if not self.waits:
            return
        self._drained = True
        comm.add_sums(self._known)
        attackers, honest = sum(comm.gather(waiting)), round(self._known.scalar("count"))
        if honest:
            mean = self._known.value("change") / honest
            spread = (self._known.value("square") - honest * mean * mean).clamp(min=0) / max(1, honest - 1)
            self._crowd = Crowd(mean, spread.sqrt() if honest > 1 else torch.zeros_like(mean), honest, attackers)
