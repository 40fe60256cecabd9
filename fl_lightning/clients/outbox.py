"""Transform the clients' updates on their way to the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from fl_lightning.clients.memory import ClientMemory, transform_owner
from fl_lightning.clients.update_editor import UpdateEditor
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.blocks import blocks
from fl_lightning.functional.compression import compress
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.returned import described, require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.transforms.base import Message, Sender, Transform
from fl_lightning.types import ClientUpdate

_REMEDY = "Return one number for each trained parameter, as in the change that the method gets."


class Outbox:
    """Transform the updates of the clients of this process.

    Args:
        transforms: the transforms of updates, in order.
        memory: the state that clients keep between rounds.
        seed: the seed of the federation.
        secret: the key of random numbers that must hide something.
        compresses: whether updates carry the form in which a site sends them.
    """

    def __init__(
        self,
        *,
        transforms: Sequence[Transform],
        memory: ClientMemory,
        seed: int,
        secret: SecretKey,
        compresses: bool = False,
    ) -> None:
        self._transforms, self._memory, self._seed, self._secret = transforms, memory, seed, secret
        self._compresses = compresses
        self._sent: Counter[int] = Counter()

    def begin(self, round_idx: int, editor: UpdateEditor) -> None:
        """Prepare for orders that refer to a new global model.

        Args:
            round_idx: the communication round, from 0.
            editor: reads and replaces the changes in updates.
        """
        self._round_idx, self._editor = round_idx, editor

    def take_sent(self) -> dict[int, int]:
        """Return how many messages of each client passed through the transforms since the last call."""
        sent = dict(self._sent) if self._transforms else {}
        self._sent.clear()
        return sent

    def send(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update that the server receives.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        if not self._transforms:
            return update
        size = self._editor.size
        width = update.snapshot.vector.element_size()
        message = Message(self._editor.change(update), 8 * width)
        attempt = self._sent[update.client]
        self._sent[update.client] += 1
        for number, transform in enumerate(self._transforms):
            draw = generator(self._seed, self._round_idx, update.client, "transform", number)
            secret = self._secret.stream(f"transform {number}", self._round_idx, update.client, attempt=attempt)
            kept = self._memory.drawer(update.client, transform_owner(number))
            message = transform.apply(message, Sender(update.client, self._round_idx, draw, kept, secret))
            _require_message(transform, message, size)
            message = _with_its_type(message, 8 * width)
        bytes_up = update.bytes_up - size * width + message.nbytes
        changed = self._editor.replaced(replace(update, bytes_up=bytes_up), message.change)
        if not self._compresses:
            return changed
        form = compress(changed.snapshot, self._editor.start, message.positions, message.levels, message.numbers())
        return replace(changed, compressed=form)


def _with_its_type(message: Message, bits: int) -> Message:
    """Return a message without its type if the type lacks a number of it, because a later transform has changed it.

    Args:
        message: the message.
        bits: the bits of the model's own type.
    """
    kind, change = message.dtype, message.change
    if kind is None or all(torch.equal(part.to(kind).to(part), part) for part in blocks(change)):
        return message
    return replace(message, dtype=None, bits=bits)


def _require_message(transform: Transform, message: object, size: int) -> None:
    """Reject what is not a message, and a change that would be broadcast over the parameters."""
    source = f"{type(transform).__name__}.apply returned"
    if not isinstance(message, Message):
        raise ConfigurationError(
            f"{source} {described(message)}, but a Message is needed. Return 'dataclasses.replace(message, change=...)'."
        )
    require_vector(message.change, size, f"{source} a Message whose 'change' is", _REMEDY)
