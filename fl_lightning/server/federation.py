"""Hold the parts of a federation that stay the same from round to round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from types import MappingProxyType
from uuid import uuid4

from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.clients.pool import ClientPool
from fl_lightning.core.capabilities import Need
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.returned import described
from fl_lightning.messages import ServerModel
from fl_lightning.server.evaluators import Evaluators
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform
from fl_lightning.utilities.collectives import Collectives

_versions = count(1)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Hold the parts of a running federation on this rank.

    Attributes:
        trainer: the user's Trainer.
        strategy: the strategy that combines the updates.
        data: the data, divided among the clients.
        server: the view of the global model.
        pool: the pool of clients.
        evaluators: the evaluators of models on the server's set.
        local: the settings of the local training.
        seed: the seed of the federation.
        transforms: the transforms of the clients' updates, in order.
        faults: how to handle clients that fail.
        hides_updates: whether an option hides single updates from the server.
        memory_limit: the memory in bytes for the models of a round, for a strategy that needs all of them at once.
        secret: the key of random numbers that must hide something.
        fixed: the need of a part that training changes no tensor without a gradient; None without one.
        session: the id of the fit, different for each one.
    """

    trainer: Trainer
    strategy: Strategy
    data: FederatedDataModule
    server: ModelState
    pool: ClientPool
    evaluators: Evaluators
    local: LocalTraining = field(default_factory=LocalTraining)
    seed: int = 0
    transforms: Sequence[Transform] = ()
    faults: Faults = field(default_factory=Faults)
    hides_updates: bool = False
    memory_limit: float = math.inf
    secret: SecretKey = field(default_factory=SecretKey.draw)
    fixed: Need | None = None
    session: str = field(default_factory=lambda: uuid4().hex)

    @property
    def comm(self) -> Collectives:
        """Return the ranks of the server."""
        return self.pool.comm

    @property
    def size(self) -> int:
        """Return d, the length of a model's vector."""
        return self.server.size

    def refresh_frozen(self) -> None:
        """Re-check which parameters are frozen, before a round: callbacks may have changed that.

        Raises:
            ConfigurationError: if the strategy's tensors have another length, maybe that of the previous parameters.
        """
        self.server.refresh()
        first = self._first_size  # remembers it in the first round
        size, name = self.server.num_parameters, type(self.strategy).__name__
        for key, tensor in self.strategy.broadcast().items():
            if isinstance(tensor, Tensor) and tensor.numel() == size:
                continue
            if size != first:
                raise ConfigurationError(
                    f"The trained parameters changed in round {self.trainer.current_epoch}, but {name} keeps '{key}', which "
                    "belongs to the previous parameters. Freeze the same parts in all rounds ('thaw_after' null), or use a "
                    "strategy without such state, such as FedAvg."
                )
            raise ConfigurationError(
                f"{name}.broadcast returned {described(tensor)} as '{key}', but a tensor of shape ({size},) is needed. Return "
                "one number for each trained parameter. A resumed run must train the same parameters as before."
            )

    @cached_property
    def _first_size(self) -> int:
        """Return the number of trained parameters in the first round of the fit."""
        return self.server.num_parameters

    def model_of(self, round_idx: int | None = None, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> ServerModel:
        """Return the current global model with a version of its own, or that of an earlier round.

        Args:
            round_idx: the round that began with the model; None for the current one.
            tensors: those of its tensors that differ from the current ones, by name.
        """
        strategy = self.strategy
        return ServerModel(
            version=next(_versions),
            round_idx=self.trainer.current_epoch if round_idx is None else round_idx,
            tensors={**self.server.tensors(), **tensors},
            layout=self.server.layout,
            broadcast=strategy.broadcast(),
            max_abs_weight=self.max_abs_weight,
            tolerates_broken=strategy.tolerates_broken,
            session=self.session,
            first=self.server.held_tensors(),
        )

    def publish(self, round_idx: int | None = None, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> ServerModel:
        """Publish a model to the clients, and return it; see :meth:`model_of`."""
        model = self.model_of(round_idx, tensors)
        self.pool.publish(model)
        self.evaluators.publish(model)
        return model

    @cached_property
    def max_abs_weight(self) -> float:
        """Return the largest accepted weight, for which the sum over all clients, weighted by examples, is still exact."""
        return 2.0**40 / max(1, int(self.data.indices.sizes.sum()))

    @property
    def shows_updates(self) -> bool:
        """Return whether the server sees individual changes, without masks or noise added at the server."""
        return not self.hides_updates and not any(transform.receives for transform in self.transforms)

    @property
    def examples_to_score(self) -> int:
        """Return the number of examples on which the strategy evaluates each client's model."""
        return 0 if self.strategy.metric is None else self.evaluators.num_server_examples
