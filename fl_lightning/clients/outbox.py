"""Prepare the clients' messages: attackers forge their updates, then every update is transformed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.attacks.models import Crowd, ModelAttack
from fl_lightning.clients.failures import UpdateCheck, refuse_moved
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.compression import compress
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.returned import described, require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.sums import Sums
from fl_lightning.settings.attackers import Attackers
from fl_lightning.transforms.base import Message, Sender, Transform
from fl_lightning.types import ClientUpdate
from fl_lightning.utilities.collectives import Collectives

_REMEDY = "Return one number for each trained parameter, as in the change that the method gets."
_ORDINARY = 2.0**14
"""The largest change that attackers learn from; the squares of many such changes still add up exactly."""


def kept_by(number: int) -> str:
    """Return the prefix of a client's stored tensors for one of the transforms."""
    return f"transform {number} "


class Outbox:
    """Prepare the updates of the clients of this process for the server.

    Args:
        attackers: the clients that forge updates, and their attack.
        transforms: the transforms of updates, in order.
        num_clients: the number of clients in the federation.
        memory: the state that clients keep between rounds.
        seed: the seed of the federation.
        secret: the key of the noise that protects privacy.
        device: the device of the sums that attackers read.
        compresses: whether updates carry the form in which a site sends them.
    """

    def __init__(
        self,
        *,
        attackers: Attackers,
        transforms: Sequence[Transform],
        num_clients: int,
        memory: ClientMemory,
        seed: int,
        secret: SecretKey,
        device: torch.device,
        compresses: bool = False,
    ) -> None:
        self._attackers, self._transforms, self._memory = attackers, transforms, memory
        self._hostile = attackers.members(num_clients, seed)
        self._seed, self._secret, self._device = seed, secret, device
        self._compresses = compresses
        self._attack: ModelAttack | None = None
        self._sent: Counter[int] = Counter()

    def begin(self, round_idx: int, check: UpdateCheck) -> None:
        """Prepare for orders that refer to a new global model.

        Args:
            round_idx: the communication round, from 0.
            check: the check that refuses updates that cannot be aggregated.
        """
        self._round_idx, self._check = round_idx, check
        self._attack = self._attackers.model if self._attackers.active(round_idx) else None
        self._size = check.num_parameters
        changes = self._attack is not None or bool(self._transforms)
        self._start = to_float64(check.server_vector()[: self._size]) if changes else torch.zeros(0)
        self._known = Sums(self._device)

    @property
    def acts_together(self) -> bool:
        """Return whether attackers act together, and so answer last."""
        return self._attack is not None and self._attack.needs_crowd

    def waits(self, update: ClientUpdate) -> bool:
        """Return whether the update is from an attacker that waits for the other clients' updates."""
        return self.acts_together and update.client in self._hostile

    def take_sent(self) -> dict[int, int]:
        """Return how many messages of each client passed through the transforms since the last call."""
        sent = dict(self._sent) if self._transforms else {}
        self._sent.clear()
        return sent

    def send(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update that the server receives from a client that does not wait.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        if update.snapshot.moved and (self._transforms or self._attack is not None):
            refuse_moved(update.snapshot.moved, _names(self._transforms, self._attack))
        if self.acts_together:
            change = self._change(update)
            if float(change.abs().max()) < _ORDINARY:  # false for NaN: attackers learn nothing from a broken model
                self._known.add("count", 1.0)
                self._known.add("change", change)
                self._known.add("square", change * change)
        hostile = self._attack is not None and update.client in self._hostile
        return self.forged(update, None) if hostile else self._transformed(update)

    def crowd(self, comm: Collectives, waiting: int) -> Crowd | None:
        """Return what attackers know about the honest updates of all ranks; None without any. Call it on every rank.

        Args:
            comm: the ranks.
            waiting: the number of attackers that wait on this rank.
        """
        comm.add_sums(self._known)
        attackers, honest = sum(comm.gather(waiting)), round(self._known.scalar("count"))
        if not honest:
            return None
        mean = self._known.value("change") / honest
        spread = (self._known.value("square") - honest * mean * mean).clamp(min=0) / max(1, honest - 1)
        return Crowd(mean, spread.sqrt() if honest > 1 else torch.zeros_like(mean), honest, attackers)

    def forged(self, update: ClientUpdate, crowd: Crowd | None) -> ClientUpdate:
        """Return the message of an attacker; see :meth:`send`."""
        assert self._attack is not None
        draw = generator(self._seed, self._round_idx, update.client, "attack")
        change = self._attack.forge(self._change(update), crowd, draw)
        require_vector(change, self._size, f"{type(self._attack).__name__}.forge returned", _REMEDY)
        return self._transformed(self._with_change(update, change))

    def _transformed(self, update: ClientUpdate) -> ClientUpdate:
        if not self._transforms:
            return update
        width = update.snapshot.vector.element_size()
        message = Message(self._change(update), 8 * width)
        attempt = self._sent[update.client]
        self._sent[update.client] += 1
        for number, transform in enumerate(self._transforms):
            draw = generator(self._seed, self._round_idx, update.client, "transform", number)
            secret = self._secret.stream(f"transform {number}", self._round_idx, update.client, attempt=attempt)
            kept = self._memory.drawer(update.client, kept_by(number))
            message = transform.apply(message, Sender(update.client, self._round_idx, draw, kept, secret))
            _require_message(transform, message, self._size)
        bytes_up = update.bytes_up - self._size * width + message.nbytes
        changed = self._with_change(replace(update, bytes_up=bytes_up), message.change)
        if not self._compresses:
            return changed
        return replace(changed, compressed=compress(changed.snapshot, self._start, message.positions, message.levels))

    def _change(self, update: ClientUpdate) -> Tensor:
        return to_float64(update.snapshot.vector[: self._size]) - self._start

    def _with_change(self, update: ClientUpdate, change: Tensor) -> ClientUpdate:
        """Return the update with another change of the parameters."""
        state = update.snapshot.vector
        moved = (self._start + change.to(self._start)).to(state)
        return self._check(update.with_state(torch.cat([moved, state[self._size :]])))


def _require_message(transform: Transform, message: object, size: int) -> None:
    """Reject what is not a message, and a change that would be broadcast over the parameters."""
    source = f"{type(transform).__name__}.apply returned"
    if not isinstance(message, Message):
        raise ConfigurationError(
            f"{source} {described(message)}, but a Message is needed. Return 'dataclasses.replace(message, change=...)'."
        )
    require_vector(message.change, size, f"{source} a Message whose 'change' is", _REMEDY)


def _names(transforms: Sequence[Transform], attack: ModelAttack | None) -> str:
    return " and ".join(type(part).__name__ for part in (*transforms, *([] if attack is None else [attack])))
