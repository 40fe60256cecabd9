"""Reproduce the split of AdaFed's first simulation."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import DataError
from fl_lightning.functional.partition import Partition
from fl_lightning.partitioners.base import Partitioner, require_labels
from fl_lightning.partitioners.table import TablePartitioner

_MANY, _EACH = 5500, 500
_FEW = {0: 100, 5: 200}


class AdaFedSimulation1(Partitioner):
    """Split ten classes over six clients: five hold two classes each, all different, the sixth 500 of each (AdaFed, 4.0.1).

    Client k = 0 .. 4 holds the classes 2k and 2k + 1, with 5,500 examples of each, except 100 of class 0 and 200 of class 5.
    Once client 5 has its examples, MNIST has fewer than 5,500 left of classes 2, 4, 6, 8 and 9; their clients get the rest.

    Args:
        in_total: whether to read the paper's '5500 samples from two classes' as 2,750 of each class instead of 5,500.
        seed: the seed of the draw.
    """

    def __init__(self, in_total: bool = False, seed: int = 0) -> None:
        self.in_total, self.seed = in_total, seed

    def counts(self) -> list[list[int]]:
        """Return the paper's table: a row of ten counts for each of the six clients."""
        many = _MANY // 2 if self.in_total else _MANY
        pairs = [[_FEW.get(c, many) if c // 2 == client else 0 for c in range(10)] for client in range(5)]
        return [*pairs, [_EACH] * 10]

    def for_stand_in(self, labels: Tensor) -> Partitioner:
        """Return a partitioner with the same counts, scaled down to what a stand-in for the data set holds."""
        return TablePartitioner(self.counts(), self.seed, scale_to_fit=True)

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`.

        Raises:
            DataError: if the data do not have ten classes with more than 500 examples each.
        """
        classes = require_labels(labels, self)
        available = torch.bincount(classes, minlength=10)
        if available.numel() != 10 or int(available.min()) <= _EACH:
            raise DataError(
                f"AdaFed's first simulation needs classes 0 to 9 with more than {_EACH} examples each, but the training data "
                f"have {available.tolist()}. Use a TablePartitioner with counts of your own."
            )
        left = (available - _EACH).tolist()
        table = [[min(count, left[c]) for c, count in enumerate(row)] for row in self.counts()[:5]]
        return TablePartitioner([*table, [_EACH] * 10], self.seed).partition(num_examples, classes)
