"""Define routes: who sends a model to whom in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need, Removal, Unassuming
from fl_lightning.types import ClientUpdate, Pull, Snapshot
from fl_lightning.utilities.argument_types import ChecksTypes

Chains = Sequence[Sequence[int]]
"""Clients that train one after another, each from the previous client's result; chains run side by side."""


class Cohort(ABC):
    """Let a route put the clients of a round to work. Every rank runs the route in the same way.

    Attributes:
        round_idx: the communication round, from 0.
        clients: the ids of the participating clients, ascending.
        num_examples: the number of training examples of every client of the federation, by its id.
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
        """Train chains and return every client's update on every rank, in chain order; a chain's last one has its state.

        Clients that fail are left out, if the policy allows it.

        Args:
            chains: the order in which clients train.
            starts: for the first client of a chain, the model to start from if it is not w_t.
            period: the period, from 0; the clients' random numbers differ between periods.
            pulled: by client, the model that attracts its weights during training.
        """

    @abstractmethod
    def own_models(self) -> Tensor:
        """Return all clients' last models, shape (K, d). A client has w_t before it trains, or if the route keeps no models."""

    @abstractmethod
    def hand_in(self, updates: Sequence[ClientUpdate]) -> None:
        """Hand updates of :meth:`train`, one per client, to the strategy."""

    @abstractmethod
    def conclude(self, updates: Sequence[ClientUpdate], chosen: ClientUpdate) -> None:
        """End the round with one of the updates as w_{t+1}, without a strategy."""

    @abstractmethod
    def cross_scores(self, updates: Sequence[ClientUpdate]) -> Tensor:
        """Score each model on each client's training data by the route's ``client_metric``.

        Returns:
            The scores, float64, shape (m, m): row k the data, column j the model.
        """

    @abstractmethod
    def server_scores(self, updates: Sequence[ClientUpdate], metric: str | Metric) -> list[float]:
        """Score each model on the server's validation set."""

    @abstractmethod
    def label_counts(self) -> Tensor:
        """Count the training examples of each class that each of ``clients`` holds, int64, shape (m, C).

        Raises:
            DataError: if the training data do not have labels.
        """

    @property
    @abstractmethod
    def model_bytes(self) -> int:
        """Return the size in bytes of one model as a client sends it."""


class Route(Unassuming, ChecksTypes, ABC):
    """Decide from whose model each client trains, and which models reach the strategy.

    Attributes:
        needs_all_clients: whether every client must take part in every round.
        sequential: whether clients wait for each other, so that more ranks do not help.
        passes_models: whether clients receive models from each other. Rules that read a client's own training are rejected.
        single_model: whether only one model reaches the server, so that a strategy has nothing to weigh.
        keeps_models: whether clients resume from their own models instead of the global one.
        bypasses_server: whether in any round models reach other clients, or are chosen, without passing through the strategy
            one by one. Anything that protects or changes single updates in transit is then rejected.
        reads_data: whether the route measures models on the clients' training examples, or counts their labels.
        needs_labels: whether the route calls :meth:`~fl_lightning.routes.Cohort.label_counts`.
        server_metric: the metric that :meth:`~fl_lightning.routes.Cohort.server_scores` will measure, or None.
        client_metric: the metric that :meth:`~fl_lightning.routes.Cohort.cross_scores` will measure, or None.
        needs_convex: whether the route only makes sense for linear models with convex losses. Others are rejected.
    """

    needs_all_clients: bool = False
    sequential: bool = False
    passes_models: bool = False
    single_model: bool = False
    keeps_models: bool = False
    needs_labels: bool = False
    server_metric: str | Metric | None = None
    client_metric: str | Metric | None = None
    reads_data: bool = False
    needs_convex: bool = False

    @property
    def bypasses_server(self) -> bool:
        """Return whether models bypass the server; see the class."""
        return self.passes_models or self.single_model or self.keeps_models

    def needs(self) -> Iterator[Need]:
        """Return what the route needs of other parts of a federation."""
        name, server = type(self).__name__, "Use the route ServerRoute"
        yield Need(Capability.WAITING_CLIENTS, f"On the route {name} clients wait for each other", server)
        if self.needs_all_clients:
            yield Need(Capability.EVERY_CLIENT, f"{name} needs every client in every round", server)
        if self.bypasses_server:
            yield Need(Capability.SINGLE_UPDATES, self._bypass[0].upper() + self._bypass[1:], server)
        if self.server_metric is not None:
            why = f"The route {type(self).__name__} scores models on the server's set"
            yield Need(Capability.COMPLETE_MODEL, why, server)

    def removes(self) -> Iterator[Removal]:
        """Return what the route takes away from other parts of a federation."""
        if self.bypasses_server:
            yield Removal(Capability.DELIVERED_UPDATES, self._bypass, "use the route ServerRoute")
        if self.keeps_models:
            why = f"the route {type(self).__name__} keeps whole models at the clients"
            yield Removal(Capability.SERVED_MODELS, why, "use the route ServerRoute")

    @property
    def _bypass(self) -> str:
        return f"on the route {type(self).__name__} clients pass models to each other or keep them"

    @abstractmethod
    def run(self, cohort: Cohort) -> None:
        """Run one round, and end it.

        A route ends in one of :meth:`~fl_lightning.routes.Cohort.deliver`, :meth:`~fl_lightning.routes.Cohort.hand_in` and
        :meth:`~fl_lightning.routes.Cohort.conclude`.
        """

    def side_by_side(self, clients: int) -> int:
        """Return how many of the clients of a round can train at the same time, and so how many ranks can work."""
        return 1 if self.sequential else clients

    def turns_before(self, round_idx: int) -> int:
        """Return how many times a client that takes part in every round trains before a round."""
        return round_idx

    def reset(self) -> None:
        """Forget an earlier run. Called before round 0."""

    def matrices(self) -> dict[str, Tensor]:
        """Return matrices of the last round to save as files next to the CSV logger's, by name, each of shape (K, K)."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint: tensors and plain Python types only. Empty for most routes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""
