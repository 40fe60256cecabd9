"""Simulate clients with related linear tasks, to try out multi-task and clustered methods."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.data.in_memory import InMemoryDataModule, named_dataset
from fl_lightning.errors import require, require_counts
from fl_lightning.functional.related_tasks import Kind, related_examples, related_weights, with_outliers
from fl_lightning.functional.seeding import generator

_OUTLIER_NOISE = 10.0


class SimulatedTasksDataModule(InMemoryDataModule):
    """Simulate clients in groups, each with its own linear task, or its own blob, near that of its group.

    Client t is in group t mod G: ``w_t = centre + spread * own deviation``, centres and deviations from N(0, I). Its inputs
    are ``x ~ N(shift_t, I)`` with ``shift_t ~ N(0, shift**2 I)``. Its targets are ``<w_t, x> + noise * eps``, or for
    ``classification`` 1 if that is above 0 and 0 otherwise. For ``clusters`` it has a Gaussian blob,
    ``x ~ N(w_t + shift_t, noise**2 I)``, and its group as target.

    :class:`~fl_lightning.DomainPartitioner` creates one client for each task; :class:`~fl_lightning.IIDPartitioner` mixes
    them. The server's set has equally many new examples of each client's task (to within one).

    Args:
        num_clients: the number of clients K, at least 1.
        groups: the number of groups G, from 1 to K.
        features: the number of features d, at least 1.
        examples: the smallest and largest number of training examples of a client; each number is drawn uniformly between
            them, both included.
        kind: the kind of the targets: ``regression`` (float32), ``classification`` or ``clusters`` (int64).
        spread: the distance between clients of a group, at least 0.
        noise: the noise on the targets, or the width of the blobs, at least 0.
        shift: the distance between the clients' inputs, at least 0.
        outliers: the share of the training targets, from 0 to 1, that have a second noise of size 10; for ``regression`` only.
        server_outliers: the same share for the server's set.
        test_examples: the number of examples in the server's set, at least 1.
        batch_size: the examples per training batch, B.
        seed: the seed of all random numbers.
    """

    def __init__(
        self,
        num_clients: int = 10,
        groups: int = 2,
        features: int = 10,
        examples: tuple[int, int] = (20, 60),
        kind: Kind = "regression",
        spread: float = 0.1,
        noise: float = 0.1,
        shift: float = 0.0,
        outliers: float = 0.0,
        server_outliers: float = 0.0,
        test_examples: int = 500,
        batch_size: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, 1000)
        name = "data.datamodule."
        require_counts(name, num_clients=num_clients, features=features, test_examples=test_examples)
        require(1 <= groups <= num_clients, name + "groups", f"from 1 to 'num_clients', {num_clients}", groups)
        rising = len(examples) == 2 and 1 <= examples[0] <= examples[1]
        require(rising, name + "examples", "two numbers of 1 or above, the smallest and the largest", examples)
        require(kind in get_args(Kind), name + "kind", f"one of {', '.join(get_args(Kind))}", kind)
        for setting, value in (("spread", spread), ("noise", noise), ("shift", shift)):
            require(value >= 0, name + setting, "0 or above", value)
        for setting, value in (("outliers", outliers), ("server_outliers", server_outliers)):
            require(0 <= value <= 1, name + setting, "a share from 0 to 1", value)
            require(kind == "regression" or not value, name + setting, "0 unless 'kind' is regression", value)
        self.num_clients, self.groups, self.features = num_clients, groups, features
        self.examples, self.kind, self.test_examples = (examples[0], examples[1]), kind, test_examples
        self.spread, self.noise, self.shift = spread, noise, shift
        self.outliers, self.server_outliers, self.seed = outliers, server_outliers, seed

    def true_weights(self) -> Tensor:
        """Return w_t of each client, float64, shape (K, d); for ``clusters``, the centres of the blobs before the shift."""
        draw = generator(self.seed, "related weights")
        return related_weights(self.num_clients, self.groups, self.features, self.spread, draw)

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Draw the training set and the server's set."""
        least, most = self.examples
        sizes = torch.randint(least, most + 1, (self.num_clients,), generator=generator(self.seed, "sizes"))
        everyone = torch.arange(self.num_clients)
        train = self._draw(everyone.repeat_interleave(sizes), "training")
        test = self._draw(torch.arange(self.test_examples) % self.num_clients, "test")
        self.origin = (
            f"simulated, {self.kind}: {self.num_clients} clients in {self.groups} groups ({int(sizes.sum())} + "
            f"{self.test_examples} examples, {self.features} features)"
        )
        return train, test

    def _draw(self, clients: Tensor, part: str) -> TensorDataset:
        shape = self.num_clients, self.features
        shifts = self.shift * torch.randn(shape, generator=generator(self.seed, "shifts"), dtype=torch.float64)
        draw = generator(self.seed, "examples", part)
        inputs, targets = related_examples(self.true_weights(), shifts, clients, self.groups, self.kind, self.noise, draw)
        if self.kind == "regression":
            draw = generator(self.seed, "outliers", part)  # apart, so that the other numbers do not depend on them
            share = self.outliers if part == "training" else self.server_outliers
            targets = with_outliers(targets, share, _OUTLIER_NOISE, draw).float()
        digits = len(str(self.num_clients - 1))  # so that the names sort by number
        names = tuple(f"client {t:0{digits}} of group {t % self.groups}" for t in range(self.num_clients))
        return named_dataset([inputs.float(), targets], domains=clients, domains_names=names)
