"""Define changes of the examples that a client believes in, such as an attacker's labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from fl_lightning.messages import Part


class ExampleChange(ABC):
    """Change one client's examples in its training and validation parts, in the same way whenever they are read.

    Attributes:
        setting: the setting that asks for the change, for messages.
    """

    setting: str

    @abstractmethod
    def check(self, num_classes: int) -> None:
        """Reject settings that do not fit the classes.

        Raises:
            ConfigurationError: naming the setting.
        """

    @abstractmethod
    def labels(self, labels: Tensor, part: Part, num_classes: int) -> Tensor:
        """Return the labels on which the client trains, int64, shape (n,).

        Args:
            labels: the true labels, int64, shape (n,); not modified.
            part: the part of the client's examples.
            num_classes: the number of classes.
        """

    @abstractmethod
    def chosen(self, count: int, part: Part) -> Tensor | None:
        """Choose which of ``count`` examples get other inputs, bool, shape (count,); None for no example."""

    @abstractmethod
    def inputs(self, inputs: Any) -> Tensor:
        """Return the inputs that replace those of one or many chosen examples.

        Raises:
            DataError: if they cannot be changed.
        """
