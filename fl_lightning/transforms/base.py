"""Define transforms: changes of a client's update, independent of the strategy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.core.capabilities import Capability, Need, Unassuming
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.compression import Levels
from fl_lightning.functional.keyed_noise import KeyedStream
from fl_lightning.functional.returned import described, require_vector
from fl_lightning.utilities.argument_types import ChecksTypes


@dataclass(frozen=True)
class Message:
    """Hold the change of a client's parameters as the server will read it, and the cost of sending it.

    Attributes:
        change: ``w_k - w_t``, float64, shape (p,).
        bits: the bits of each number that is sent.
        positions: the positions of the numbers that are sent, int64, ascending, shape (s,); the others are 0. None for all.
        overhead: the bytes besides the numbers, such as positions and scales.
        levels: the numbers that are sent as levels, if they were quantised; sites send these.
        dtype: the type in which the numbers are sent, which has all of them exactly; None for the model's own.
    """

    change: Tensor
    bits: int
    positions: Tensor | None = None
    overhead: int = 0
    levels: Levels | None = None
    dtype: torch.dtype | None = None

    @property
    def count(self) -> int:
        """Return how many numbers are sent."""
        return self.change.numel() if self.positions is None else self.positions.numel()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the whole message."""
        return math.ceil(self.count * self.bits / 8) + self.overhead

    def numbers(self) -> Tensor | None:
        """Return the changes that are sent in ``dtype``, shape (s,); None for the model's own type."""
        if self.dtype is None:
            return None
        return (self.change if self.positions is None else self.change[self.positions]).to(self.dtype)


@dataclass(frozen=True)
class Sender:
    """Describe the client that sends a message.

    Attributes:
        client: the client's id.
        round_idx: the round, from 0.
        draw: random numbers of this client, round and transform, on the CPU. They derive from the federation's seed.
        kept: the client's state for this transform, by name; it persists across rounds and in checkpoints.
        secret: random numbers of the same purpose from a key that is in no file, for noise that must hide something. It is a
            :class:`~fl_lightning.functional.keyed_noise.KeyedStream`, not a generator: call ``normals`` or ``uniforms``.
    """

    client: int
    round_idx: int
    draw: torch.Generator
    kept: MutableMapping[str, Tensor]
    secret: KeyedStream


class Transform(Unassuming, ChecksTypes, ABC):
    """Change a client's update before the server reads it. Several transforms apply in the order of the configuration.

    Buffers such as BatchNorm's statistics, and SCAFFOLD's control variates, are sent unchanged.

    Attributes:
        kept_like_parameters: the names of tensors in ``Sender.kept`` of shape (p,), where p is the number of trained
            parameters. They become invalid when other parameters are trained.
    """

    kept_like_parameters: tuple[str, ...] = ()

    def needs(self) -> Iterator[Need]:
        """Return what the transform needs of the other parts of a federation."""
        why = f"{type(self).__name__} changes the updates that clients send to the server"
        yield Need(Capability.DELIVERED_UPDATES, why, "Remove it from 'federation.transforms'")
        name = type(self).__name__
        yield Need(Capability.FIXED_TENSORS, f"{name} does not cover such tensors", f"Remove {name}")

    @abstractmethod
    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the transformed message.

        Args:
            message: the message from the client, or from the previous transform.
            sender: the client that sends it.
        """

    def receive(self, change: Tensor, received: int, expected: int, draw: torch.Generator, secret: KeyedStream) -> Tensor:
        """Transform the round's average at the server, in the same way on every rank; unchanged by default.

        Args:
            change: ``average - w_t`` of the parameters, float64, shape (p,).
            received: the number of updates in the average.
            expected: the number of clients in the cohort, including those that failed.
            draw: random numbers of this round and transform, on the CPU. They derive from the federation's seed.
            secret: random numbers of the same purpose from a secret key, as in :class:`~fl_lightning.transforms.Sender`.
        """
        return change

    @property
    def receives(self) -> bool:
        """Return whether :meth:`receive` changes the average, so that the log does not show what single clients have sent."""
        return type(self).receive is not Transform.receive

    def figures(self, rounds: int, drawn: int) -> dict[str, float]:
        """Return figures to log as ``federation/<name>``.

        Args:
            rounds: the number of rounds done so far.
            drawn: the number of clients of this round, including those that did not deliver.
        """
        return {}


def require_message(transform: Transform, message: object, size: int) -> None:
    """Reject what is not a message, and a change that would be broadcast over the parameters.

    Raises:
        ConfigurationError: naming the transform.
    """
    source = f"{type(transform).__name__}.apply returned"
    if not isinstance(message, Message):
        raise ConfigurationError(
            f"{source} {described(message)}, but a Message is needed. Return 'dataclasses.replace(message, change=...)'."
        )
    remedy = "Return one number for each trained parameter, as in the change that the method gets."
    require_vector(message.change, size, f"{source} a Message whose 'change' is", remedy)
