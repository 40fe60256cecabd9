"""What a route is: who sends a model to whom in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.types import ClientUpdate, Pull, Snapshot

Chains = Sequence[Sequence[int]]
"""Clients that train one after another, each from the result of the one before; chains run side by side."""


class Cohort(ABC):
    """The clients of a round, as a route can ask them to work. Every rank runs the route alike.

    Attributes:
        round_idx: the communication round, from 0.
        clients: ids of those who take part, ascending.
        num_examples: training examples of every client of the federation, by its id.
    """

    round_idx: int
    clients: tuple[int, ...]
    num_examples: tuple[int, ...]

    @abstractmethod
    def deliver(self, chains: Chains) -> None:
        """Train chains from w_t and hand the last model of each to the strategy, with the chain's examples and steps."""

    @abstractmethod
    def train(
        self,
        chains: Chains,
        starts: Mapping[int, Snapshot] | None = None,
        period: int = 0,
        pulled: Mapping[int, Pull] | None = None,
    ) -> list[ClientUpdate]:
        """Train chains and give every rank every client's update, in the order of the chains; the last of each has its state.

        Clients that fail, where the policy allows it, are left out.

        Args:
            chains: who trains after whom.
            starts: for the first client of a chain the model it starts from, where that is not w_t.
            period: from 0; the clients' random numbers differ between periods.
            pulled: by client, what draws it somewhere while it trains.
        """

    @abstractmethod
    def own_models(self) -> Tensor:
        """Each client's last model, where the route keeps models, else and before w_t; of all clients, shape (K, d)."""

    @abstractmethod
    def hand_in(self, updates: Sequence[ClientUpdate]) -> None:
        """Give updates of :meth:`train`, one per client, to the strategy."""

    @abstractmethod
    def conclude(self, updates: Sequence[ClientUpdate], chosen: ClientUpdate) -> None:
        """End the round with one of the updates as w_{t+1}, without a strategy."""

    @abstractmethod
    def cross_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> Tensor:
        """Each model on each client's training data, float64, shape (m, m): row k the data, column j the model."""

    @abstractmethod
    def server_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> list[float]:
        """Each model on the server's validation set."""

    @abstractmethod
    def label_counts(self) -> Tensor:
        """Training examples of each class that each of :attr:`clients` holds, int64, shape (m, C).

        Raises:
            DataError: if the training data have no labels.
        """

    @property
    @abstractmethod
    def model_bytes(self) -> int:
        """Bytes of one model as a client sends it."""


class Route(ABC):
    """Decides who trains from whose model, and which models reach the strategy.

    Attributes:
        needs_all_clients: whether every client must take part in every round.
        sequential: whether clients wait for each other, so that more ranks do not help.
        passes_models: whether clients get models from each other: rules that read a client's own training are refused.
        single_model: whether one model reaches the server, so that there is nothing for a strategy to weigh.
        keeps_models: whether clients go on from their own models instead of the global one.
        bypasses_server: whether in any round models reach others, or are chosen, without being handed to the strategy one by
            one: then what protects or changes single updates on their way is refused.
        reads_data: whether it measures models on the clients' training examples, or counts their labels.
        needs_labels: whether it asks for :meth:`Cohort.label_counts`.
        server_metric: what :meth:`Cohort.server_scores` will measure, or None.
        needs_convex: whether it has a meaning for linear models with convex losses only: others are refused.
    """

    needs_all_clients: bool = False
    sequential: bool = False
    passes_models: bool = False
    single_model: bool = False
    keeps_models: bool = False
    needs_labels: bool = False
    server_metric: str | Metric | None = None
    reads_data: bool = False
    needs_convex: bool = False

    @property
    def bypasses_server(self) -> bool:
        """See the class."""
        return self.passes_models or self.single_model or self.keeps_models

    @abstractmethod
    def run(self, cohort: Cohort) -> None:
        """Run one round; ends in :meth:`Cohort.deliver`, :meth:`Cohort.hand_in` or :meth:`Cohort.conclude`."""

    def reset(self) -> None:  # noqa: B027 (most routes have nothing to forget)
        """Called before round 0: forget an earlier run."""

    def matrices(self) -> dict[str, Tensor]:
        """What of the last round is worth a file beside the CSV logger's, by name, each of shape (K, K)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must outlive a checkpoint: tensors and plain Python types only. Empty for most routes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (nor to take back)
        """Take back what :meth:`state_dict` gave."""
