"""Define the interface through which local training reads the clients' data."""

from __future__ import annotations

from typing import Protocol

from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning.data.poisson_loader import Coins, PoissonBatches
from fl_lightning.messages import Part


class ClientData(Protocol):
    """Provide the examples of all clients of a simulation, or of the client of a site."""

    def num_examples(self, client: int) -> int:
        """Return the client's number of training examples."""
        ...

    def client(
        self, client: int, seed: int, full_batch: bool = False, drop_single: bool = False, poisson: PoissonBatches | None = None
    ) -> LightningDataModule:
        """Return the client's training examples; see :meth:`FederatedDataModule.client`."""
        ...

    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """Return a part of the client's examples as a validation set."""
        ...

    def evaluated_persons(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each example of a part, in order, int64; None if the data name no persons."""
        ...

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """Return the client's batches, drawn by Poisson sampling."""
        ...
