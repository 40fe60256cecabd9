"""What a partitioner is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor


class Partitioner(ABC):
    """Decides which training example belongs to which client.

    Attributes:
        needs_labels: whether :meth:`partition` looks at labels; where not, none are read.
    """

    needs_labels: bool = True

    @abstractmethod
    def partition(self, num_examples: int, labels: Tensor | None) -> list[Tensor]:
        """Split the indices 0 .. num_examples - 1.

        Args:
            num_examples: size n of the training set.
            labels: class of each example, int64, shape (n,); None where ``needs_labels`` is false.

        Returns:
            One int64 tensor of indices per client. No index twice; the same for the same seed, on every rank.

        Raises:
            DataError: if the data cannot be split as asked.
        """

    def for_stand_in(self, labels: Tensor) -> Partitioner:
        """The partitioner to use when a smaller stand-in replaces the data set that was asked for; itself by default."""
        return self
