"""What happens to an update on its way from a client to the strategy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.attacks.models import Crowd
from fl_lightning.collectives import add_sums, gather
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.sums import Sums
from fl_lightning.server.federation import Federation
from fl_lightning.transforms.base import Message, Sender, Transform
from fl_lightning.types import ClientUpdate

_ORDINARY = 2.0**14
"""A change beyond it is no honest one to learn from; the squares of many such still add up exactly."""


def _kept_by(number: int) -> str:
    return f"transform {number} "


class Uplink:
    """One round's; on each rank for the clients that it trains. First attackers forge, then everybody's is transformed.

    Args:
        federation: what stays.
        round_idx: from 0.

    Attributes:
        sent: messages of each of this rank's clients that went through transforms.
    """

    def __init__(self, federation: Federation, round_idx: int) -> None:
        self._federation, self._round_idx = federation, round_idx
        self.sent: Counter[int] = Counter()
        attackers = federation.attackers
        self._attack = attackers.model if attackers.active(round_idx) else None
        self._hostile = attackers.members(federation.data.num_clients, federation.seed)
        self._size = federation.server.num_parameters
        changes = self._attack is not None or bool(federation.transforms)
        self._start = to_float64(federation.server.vector()[: self._size]) if changes else torch.zeros(0)
        self._known = Sums(federation.trainer.strategy.root_device)
        self._held: list[ClientUpdate] = []
        self._crowd: Crowd | None = None

    def send(self, update: ClientUpdate) -> ClientUpdate | None:
        """Return what the server receives of a client, its model in the clients' module; None while it waits for others.

        Raises:
            ClientError: if it is not fit to be aggregated.
        """
        hostile = self._attack is not None and update.client in self._hostile
        if self.acts_together:
            if hostile:
                self._held.append(update)
                return None
            change = self._change(update)
            if float(change.abs().max()) < _ORDINARY:  # not with NaN: a model that broke tells attackers nothing
                self._known.add("count", 1.0)
                self._known.add("change", change)
                self._known.add("square", change * change)
        return self.answer(update) if hostile else self._transformed(update)

    @property
    def acts_together(self) -> bool:
        """Whether attackers answer last."""
        return self._attack is not None and self._attack.needs_crowd

    def held_back(self) -> list[ClientUpdate]:
        """Return the updates that this rank's attackers have held back for :meth:`answer`. Call it on every rank."""
        trainer = self._federation.trainer
        add_sums(trainer, self._known)
        attackers, honest = sum(gather(trainer, len(self._held))), round(self._known.scalar("count"))
        if honest:
            mean = self._known.value("change") / honest
            spread = (self._known.value("square") - honest * mean * mean).clamp(min=0) / max(1, honest - 1)
            self._crowd = Crowd(mean, spread.sqrt() if honest > 1 else torch.zeros_like(mean), honest, attackers)
        held, self._held = self._held, []
        return held

    def answer(self, update: ClientUpdate) -> ClientUpdate:
        """Return the message of an attacker; see :meth:`send`."""
        assert self._attack is not None
        draw = generator(self._federation.seed, self._round_idx, update.client, "attack")
        change = self._attack.forge(self._change(update), self._crowd, draw)
        if change.shape != self._start.shape:
            raise ConfigurationError(
                f"{type(self._attack).__name__} forges a change of shape {tuple(change.shape)} for client {update.client}; the "
                f"model has {self._start.numel()} parameters. Let 'forge' return a vector as long as the one it gets."
            )
        forged = self._with_change(update, change)
        return self._transformed(forged)

    def receive(self, aggregate: Tensor, received: int, expected: int) -> Tensor:
        """Return the aggregate of a round after the transforms, float64, shape (d,), on every rank."""
        parts, start = self._federation, self._start
        for number, transform in enumerate(parts.transforms):
            if type(transform).receive is Transform.receive:  # nothing to do, and no last bit to lose
                continue
            draw = generator(parts.seed, self._round_idx, "server", "transform", number)
            secret = parts.privacy.secret.stream(f"transform {number}", self._round_idx)
            changed = transform.receive(aggregate[: self._size] - start.to(aggregate), received, expected, draw, secret)
            aggregate = torch.cat([start.to(changed) + changed, aggregate[self._size :]])
        return aggregate

    def figures(self, drawn: int) -> dict[str, float]:
        """Return the transforms' figures, once the ranks have shared the clients' state."""
        parts = self._federation
        figures: dict[str, float] = {}
        for number, transform in enumerate(parts.transforms):
            kept = [parts.local.memory.drawer(client, _kept_by(number)) for client in range(parts.data.num_clients)]
            figures |= transform.figures(self._round_idx + 1, drawn, kept)
        return figures

    def _transformed(self, update: ClientUpdate) -> ClientUpdate:
        parts = self._federation
        if not parts.transforms:
            return update
        assert update.state is not None
        width = update.state.element_size()
        message = Message(self._change(update), 8 * width)
        attempt = self.sent[update.client]
        self.sent[update.client] += 1
        for number, transform in enumerate(parts.transforms):
            draw = generator(parts.seed, self._round_idx, update.client, "transform", number)
            secret = parts.privacy.secret.stream(f"transform {number}", self._round_idx, update.client, attempt=attempt)
            kept = parts.local.memory.drawer(update.client, _kept_by(number))
            message = transform.apply(message, Sender(update.client, self._round_idx, draw, kept, secret))
        bytes_up = update.bytes_up - self._size * width + message.nbytes
        return self._with_change(replace(update, bytes_up=bytes_up), message.change)

    def _change(self, update: ClientUpdate) -> Tensor:
        assert update.state is not None
        return to_float64(update.state[: self._size]) - self._start

    def _with_change(self, update: ClientUpdate, change: Tensor) -> ClientUpdate:
        """The update with another change of the parameters, which is loaded into the clients' module."""
        assert update.state is not None
        parts = self._federation
        moved = (self._start + change.to(self._start)).to(update.state)
        sent = parts.checked(replace(update, state=torch.cat([moved, update.state[self._size :]])))
        parts.local.load(parts.server, sent.snapshot)
        return sent
