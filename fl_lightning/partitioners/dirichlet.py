"""Create label skew: spread each class over the clients by a Dirichlet distribution."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.partition import Partition, require_enough
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.skew import dirichlet_labels
from fl_lightning.partitioners.base import Partitioner, draw_until, require_labels


class DirichletPartitioner(Partitioner):
    """Create label skew: draw the clients' shares of each class from Dir(beta) (Li et al. 2022; FedLoss thesis, 3.2).

    Args:
        num_clients: the number of clients K, at least 1 and at most the number of examples.
        beta: the concentration, > 0: 0.1 leaves most clients few classes, 100 is nearly IID; the papers use 0.5.
        capped: whether a client that already holds n / K examples gets no more classes, as in NIID-Bench and the FedNova
            thesis. Sizes then differ less, and the last classes are spread over fewer clients.
        min_examples: the smallest acceptable client, at least 1; the draw is repeated at most ten times.
        seed: the seed of the draw.
    """

    def __init__(
        self, num_clients: int = 10, beta: float = 0.5, capped: bool = True, min_examples: int = 10, seed: int = 0
    ) -> None:
        require(num_clients >= 1, "data.partitioner.num_clients", "at least 1", num_clients)
        require(0 < beta <= 1e6, "data.partitioner.beta", "above 0 and at most 1e6", beta)
        require(min_examples >= 1, "data.partitioner.min_examples", "at least 1", min_examples)
        self.num_clients, self.beta, self.capped, self.min_examples = num_clients, beta, capped, min_examples
        self.seed = seed

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """Split the training set; see :meth:`Partitioner.partition`.

        Raises:
            DataError: if a client still has too few examples after ten more draws.
        """
        classes = require_labels(labels, self)
        require_enough(num_examples, self.num_clients, self.min_examples)
        rng = np.random.default_rng(derive_seed(self.seed, "DirichletPartitioner"))
        return draw_until(
            lambda: dirichlet_labels(classes, self.num_clients, self.beta, self.capped, rng),
            self.min_examples,
            "Lower 'data.partitioner.min_examples' or 'num_clients', or raise 'beta'"
            + ("." if self.capped else ", or set 'capped' to true."),
        )
