"""Create the pathological split: each client holds a few pieces of the data sorted by class."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fl_lightning.errors import DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.skew import label_shards
from fl_lightning.partitioners.base import Partitioner, require_labels


class ShardPartitioner(Partitioner):
    """Sort by class, cut into K * s equal shards, and deal each client s at random (McMahan et al. 2017, section 3).

    With 2 ``shards_per_client``, most clients hold two classes. Shard sizes differ by at most one example.

    Args:
        num_clients: the number of clients K, at least 1.
        shards_per_client: the number of shards per client s, at least 1.
        seed: the seed of the deal.
    """

    def __init__(self, num_clients: int = 10, shards_per_client: int = 2, seed: int = 0) -> None:
        require(num_clients >= 1, "data.partitioner.num_clients", "at least 1", num_clients)
        require(shards_per_client >= 1, "data.partitioner.shards_per_client", "at least 1", shards_per_client)
        self.num_clients, self.shards_per_client, self.seed = num_clients, shards_per_client, seed

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`.

        Raises:
            DataError: if the data have fewer examples than shards.
        """
        classes = require_labels(labels, self)
        shards = self.num_clients * self.shards_per_client
        if num_examples < shards:
            raise DataError(
                f"{num_examples} examples cannot be cut into {shards} shards ({self.num_clients} clients with "
                f"{self.shards_per_client} each). Lower 'data.partitioner.num_clients' or 'shards_per_client'."
            )
        rng = np.random.default_rng(derive_seed(self.seed, "ShardPartitioner"))
        return label_shards(classes, self.num_clients, self.shards_per_client, rng)
