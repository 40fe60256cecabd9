"""Split by an explicit table of client x class counts, as papers print it (AdaFed, Table 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError, DataError, require
from fl_lightning.functional.partition import Partition, scale_table, table_partition
from fl_lightning.functional.seeding import generator
from fl_lightning.partitioners.base import Partitioner, require_examples, require_labels


class TablePartitioner(Partitioner):
    """Give client k exactly ``counts[k][c]`` random examples of class c; examples beyond the table stay unused.

    Args:
        counts: K rows of C counts >= 0, every row with at least one example.
        seed: the seed of the draw.
        scale_to_fit: whether to shrink columns that ask for more examples of a class than available, instead of stopping.
    """

    def __init__(self, counts: list[list[int]], seed: int = 0, scale_to_fit: bool = False) -> None:
        setting = "data.partitioner.counts"
        require(bool(counts) and bool(counts[0]), setting, "one row of counts for each client", counts)
        lengths = {len(row) for row in counts}
        require(len(lengths) == 1, setting, "rows of equal length, a count for each class", sorted(lengths))
        require(min(min(row) for row in counts) >= 0, setting, "counts of 0 or above", counts)
        empty = [k for k, row in enumerate(counts) if not sum(row)]
        if empty:
            raise ConfigurationError(
                f"Client {empty[0]} has no data: row {empty[0]} of '{setting}' is all zeros. Add examples or remove the row."
            )
        self.counts, self.seed, self.scale_to_fit = counts, seed, scale_to_fit

    def for_stand_in(self, labels: Tensor) -> TablePartitioner:
        """Return the same table, with large columns scaled down to what a stand-in for the data set holds."""
        return TablePartitioner(self.counts, self.seed, scale_to_fit=True)

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`.

        Raises:
            DataError: if the table asks for more examples of a class than available, or labels lie outside its columns.
        """
        labels = require_labels(labels, self)
        require_examples(len(labels))
        classes = len(self.counts[0])
        if int(labels.max()) >= classes:
            raise DataError(
                f"The training data have labels from {int(labels.min())} to {int(labels.max())}, but the partition table has "
                f"columns for the classes 0 to {classes - 1}. Add a column for every class to 'data.partitioner.counts'."
            )
        counts = self.counts
        if self.scale_to_fit:
            counts = scale_table(counts, torch.bincount(labels, minlength=classes).tolist())
        return table_partition(labels, counts, generator(self.seed, "TablePartitioner"))
