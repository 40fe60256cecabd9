"""Let a rule read a client's batches: the outputs of its module's parts, and further passes with other tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fl_lightning.types import Snapshot


@dataclass(frozen=True)
class Pass:
    """Hold what ``training_step`` computed for a batch.

    Attributes:
        loss: the loss, a scalar; None if the module skips the batch.
        outputs: the outputs of the parts in ``ClientRule.listens``, by name, each of shape (N, ...); those of several calls
            follow one another.
    """

    loss: Tensor | None
    outputs: Mapping[str, Tensor]


class Batch(Protocol):
    """Give a rule the passes over one batch."""

    @property
    def own(self) -> Pass:
        """Return the module's own pass."""
        ...

    def again(self, tensors: dict[str, Tensor], training: bool = True) -> Pass:
        """Repeat ``training_step`` on the same batch with the same random numbers and other parameters and buffers.

        The pass logs nothing, and leaves metrics, attributes and random numbers of the module as they were.

        Args:
            tensors: all parameters and buffers by name, as from :meth:`LocalModel.tensors`. Buffers are updated, as in
                training.
            training: whether the module's parts stay in their modes; otherwise all are in evaluation mode.
        """
        ...


class LocalModel(Protocol):
    """Give a rule the client's complete model, as at the start of its turn.

    Attributes:
        parameters: the names of the trained parameters, in order.
    """

    parameters: Sequence[str]

    def part(self, name: str, setting: str) -> str:
        """Return the full name of a part of the module.

        Args:
            name: the full name or its end after a dot.
            setting: the setting that contains the name, for the message.

        Raises:
            ConfigurationError: unless exactly one part matches; it suggests names that are near.
        """
        ...

    def tensors(
        self, parameters: Tensor | None = None, buffers: Tensor | None = None, counters: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers by name, some of them with other values.

        Args:
            parameters: the trained parameters, shape (p,).
            buffers: the averaged buffers, shape (d - p,).
            counters: the integer buffers, shape (c,).
        """
        ...

    def snapshot(self, tensors: Mapping[str, Tensor]) -> Snapshot:
        """Return the trained parameters and the buffers among such tensors as a model."""
        ...
