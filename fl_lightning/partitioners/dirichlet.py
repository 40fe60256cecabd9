"""Label skew: each class spread over the clients by a Dirichlet distribution."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.partition import Partition, require_enough
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.skew import dirichlet_labels
from fl_lightning.partitioners.base import Partitioner, draw_until, require_labels


class DirichletPartitioner(Partitioner):
    """Label skew: the shares of a class that the clients get are drawn from Dir(beta) (Li et al. 2022; FedLoss thesis, 3.2).

    Args:
        num_clients: K, at least 1 and at most the number of examples.
        beta: concentration, > 0: 0.1 leaves most clients few classes, 100 is nearly IID; the papers take 0.5.
        capped: a client that holds n / K examples already gets none of the classes that follow, as in NIID-Bench and the
            FedNova thesis: sizes then differ less, and the last classes are spread over fewer clients.
        min_examples: draw again, at most ten times, while a client has fewer; at least 1.
        seed: of the draw.
    """

    def __init__(
        self, num_clients: int = 10, beta: float = 0.5, capped: bool = True, min_examples: int = 10, seed: int = 0
    ) -> None:
        require(num_clients >= 1, "data.partitioner.num_clients", "at least 1", num_clients)
        require(0 < beta <= 1e6, "data.partitioner.beta", "above 0 and at most 1e6", beta)
        require(min_examples >= 1, "data.partitioner.min_examples", "at least 1", min_examples)
        self.num_clients = num_clients
        self.beta = beta
        self.capped = capped
        self.min_examples = min_examples
        self.seed = seed

    def partition(self, num_examples: int, labels: Tensor | None) -> Partition:
        """See :meth:`Partitioner.partition`.

        Raises:
            DataError: if a client has too few examples after ten more draws.
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
