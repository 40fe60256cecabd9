"""Give every client a uniform random sample of the same size (IID)."""

from __future__ import annotations

from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.partition import Partition, iid_partition
from fl_lightning.functional.seeding import generator
from fl_lightning.partitioners.base import Partitioner


class IIDPartitioner(Partitioner):
    """Shuffle the training set and deal it out evenly; sizes differ by at most one example.

    Args:
        num_clients: the number of clients K, at least 1 and at most the number of examples.
        seed: the seed of the shuffle.
    """

    needs_labels = False

    def __init__(self, num_clients: int = 10, seed: int = 0) -> None:
        require(num_clients >= 1, "data.partitioner.num_clients", "at least 1", num_clients)
        self.num_clients, self.seed = num_clients, seed

    def partition(self, num_examples: int, labels: Tensor | None = None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`."""
        return iid_partition(num_examples, self.num_clients, generator(self.seed, "IIDPartitioner"))
