"""Give each client a fixed number of classes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl_lightning.errors import DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.skew import classes_per_client
from fl_lightning.partitioners.base import Partitioner, require_labels


class ClassesPartitioner(Partitioner):
    """Give every client exactly c classes; the holders of a class share its examples evenly (NIID-Bench, '#C = c').

    The numbers of holders of any two classes differ by at most one. K * c must not be below the number of classes;
    otherwise some classes would not have a holder.

    Args:
        num_clients: the number of clients K, at least 1.
        classes_per_client: the number of classes per client c, from 1 to the number of classes.
        seed: the seed of the deal.
    """

    def __init__(self, num_clients: int = 10, classes_per_client: int = 2, seed: int = 0) -> None:
        require(num_clients >= 1, "data.partitioner.num_clients", "at least 1", num_clients)
        require(classes_per_client >= 1, "data.partitioner.classes_per_client", "at least 1", classes_per_client)
        self.num_clients, self.classes_per_client, self.seed = num_clients, classes_per_client, seed

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`.

        Raises:
            DataError: if the data have fewer classes than c or more than K * c, or a class has fewer examples than holders.
        """
        classes = require_labels(labels, self)
        counts = torch.bincount(classes)
        present, wanted = int((counts > 0).sum()), self.classes_per_client
        setting = "'data.partitioner.classes_per_client'"
        if not wanted <= present <= wanted * self.num_clients:
            raise DataError(
                f"{self.num_clients} clients with {wanted} classes each cannot hold the {present} classes of the data. "
                f"Set {setting} to a number from {-(-present // self.num_clients)} to {present}, or change 'num_clients'."
            )
        rng = np.random.default_rng(derive_seed(self.seed, "ClassesPartitioner"))
        partition = classes_per_client(classes, self.num_clients, wanted, rng)
        held = torch.unique(partition.owners() * counts.numel() + classes[partition.order]).numel()
        if held < wanted * self.num_clients:
            smallest = int(counts[counts > 0].min())
            raise DataError(
                f"A class has {smallest} examples, fewer than the number of clients that should hold it (about "
                f"{-(-self.num_clients * wanted // present)}). Lower {setting} or 'num_clients'."
            )
        return partition
