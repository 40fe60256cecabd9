"""What a transform is: a change of what a client sends, whatever the strategy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.functional.keyed_noise import KeyedStream


@dataclass(frozen=True)
class Message:
    """The change of a client's parameters as the server will read it, and what it takes to send it.

    Attributes:
        change: ``w_k - w_t``, float64, shape (p,).
        bits: of each number that is sent.
        positions: of the numbers that are sent, int64, ascending, shape (s,); the others are 0. None for all.
        overhead: bytes beside the numbers, such as positions and scales.
    """

    change: Tensor
    bits: int
    positions: Tensor | None = None
    overhead: int = 0

    @property
    def count(self) -> int:
        """How many numbers are sent."""
        return self.change.numel() if self.positions is None else self.positions.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message."""
        return math.ceil(self.count * self.bits / 8) + self.overhead


@dataclass(frozen=True)
class Sender:
    """Who sends.

    Attributes:
        client: its id.
        round_idx: from 0.
        draw: random numbers of this client, round and transform, on the CPU. They follow from the federation's seed.
        kept: what the client keeps over rounds for this transform, by name; what is put there outlives checkpoints.
        secret: random numbers as ``draw`` gives them, from a key that is in no file: for noise that must hide something.
    """

    client: int
    round_idx: int
    draw: torch.Generator
    kept: MutableMapping[str, Tensor]
    secret: KeyedStream


class Transform(ABC):
    """Changes what a client sends. Several are applied one after another, in the order of the configuration.

    Buffers such as BatchNorm's statistics, and SCAFFOLD's control variates, are sent as they are.
    """

    @abstractmethod
    def apply(self, message: Message, sender: Sender) -> Message:
        """The message as it goes on.

        Args:
            message: of the client, or of the transform before.
            sender: who sends it.
        """

    def receive(self, change: Tensor, received: int, expected: int, draw: torch.Generator, secret: KeyedStream) -> Tensor:
        """What the server makes of the round's average, the same on every rank; it leaves it as it is by default.

        Args:
            change: ``average - w_t`` of the parameters, float64, shape (p,).
            received: how many updates it is of.
            expected: of how many clients, those included that failed.
            draw: random numbers of this round and transform, on the CPU. They follow from the federation's seed.
            secret: random numbers of the same, from a key that is in no file: for noise that must hide something.
        """
        return change

    def figures(self, rounds: int, drawn: int, kept: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
        """What is worth a line in the log, as ``federation/<name>``.

        Args:
            rounds: done so far.
            drawn: clients of this round, those included that did not deliver.
            kept: what each client of the federation keeps for this transform.
        """
        return {}
