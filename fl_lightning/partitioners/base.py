"""Define partitioners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from torch import Tensor

from fl_lightning.errors import DataError
from fl_lightning.functional.partition import Partition
from fl_lightning.utilities.argument_types import ChecksTypes

_ATTEMPTS = 11
"""The first draw and at most ten more."""


class Partitioner(ChecksTypes, ABC):
    """Decide which training example belongs to which client.

    Attributes:
        needs_labels: whether :meth:`partition` reads labels. If not, none are loaded.
    """

    needs_labels: bool = True

    @abstractmethod
    def partition(self, num_examples: int, labels: Tensor | None) -> Partition | Sequence[Tensor]:
        """Split the indices 0 .. num_examples - 1.

        Args:
            num_examples: the size n of the training set.
            labels: the class of each example, int64, shape (n,); None if ``needs_labels`` is false.

        Returns:
            A :class:`~fl_lightning.Partition`, or one int64 tensor of indices per client. No index occurs twice. The same
            seed gives the same result on every rank.

        Raises:
            DataError: if the data cannot be split as requested.
        """

    def for_stand_in(self, labels: Tensor) -> Partitioner:
        """Return the partitioner to use when a smaller stand-in replaces the requested data set; itself by default."""
        return self


def require_labels(labels: Tensor | None, partitioner: Partitioner) -> Tensor:
    """Return the labels, which a partition by classes requires.

    Raises:
        DataError: if labels are missing or negative.
    """
    if labels is None:
        raise DataError(
            f"{type(partitioner).__name__} splits by class, but the training data have no labels. Add labels, or set "
            "'data.partitioner' to another, such as IIDPartitioner."
        )
    if labels.numel() and int(labels.min()) < 0:
        raise DataError(
            f"{type(partitioner).__name__} needs labels of 0 and above, but the lowest is {int(labels.min())}. Number the "
            "classes from 0, or set 'data.partitioner' to another, such as IIDPartitioner."
        )
    return labels


def require_examples(num_examples: int) -> None:
    """Reject an empty training set.

    Raises:
        DataError: if the training set is empty.
    """
    if not num_examples:
        raise DataError("The training set is empty, so there are no examples to divide. Check 'data.datamodule'.")


def draw_until(draw: Callable[[], Partition], min_examples: int, remedy: str) -> Partition:
    """Draw a partition, and redraw it at most ten times, until every client has at least ``min_examples``.

    Raises:
        DataError: if the last draw still has a smaller client; the message names the settings to change.
    """
    smallest = 0
    for _ in range(_ATTEMPTS):
        partition = draw()
        smallest = max(smallest, int(partition.sizes.min()))
        if int(partition.sizes.min()) >= min_examples:
            return partition
    raise DataError(
        f"All {_ATTEMPTS} draws left a client with fewer than {min_examples} examples; the best had {smallest}. {remedy}"
    )
