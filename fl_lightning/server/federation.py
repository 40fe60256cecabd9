"""What stays the same from round to round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from lightning.pytorch import Trainer

from fl_lightning.clients.evaluators import Evaluators
from fl_lightning.clients.failures import check_update
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.model_state import ModelState
from fl_lightning.server.privacy.account import PrivacyAccount
from fl_lightning.settings.attackers import Attackers
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.secure_aggregation import SecureAggregation
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy
from fl_lightning.types import ClientUpdate


@dataclass(frozen=True)
class Federation:
    """The parts of a running federation on this rank.

    Attributes:
        trainer: the user's.
        strategy: combines the updates.
        data: spread over the clients.
        server: the view of the global model.
        local: trains the clients.
        measures: evaluates models.
        seed: of the federation.
        attackers: clients that misbehave.
        transforms: of what clients send, in their order.
        faults: what happens where a client fails.
        secure_aggregation: masks what clients send; None without.
        memory_limit: bytes of models that a strategy which needs all of a round may hold in memory.
        privacy: the key of the noise, and the account of what is released.
    """

    trainer: Trainer
    strategy: Strategy
    data: FederatedDataModule
    server: ModelState
    local: LocalTrainer
    measures: Evaluators
    seed: int = 0
    attackers: Attackers = field(default_factory=Attackers)
    transforms: Sequence[Transform] = ()
    faults: Faults = field(default_factory=Faults)
    secure_aggregation: SecureAggregation | None = None
    memory_limit: float = math.inf
    privacy: PrivacyAccount = field(default_factory=PrivacyAccount)

    @property
    def size(self) -> int:
        """d, the length of a model's vector."""
        return self.server.size

    def refresh_frozen(self) -> set[int]:
        """Check again which parameters are frozen, before a round: callbacks may have changed that.

        Returns:
            Lengths that vectors of all parameters, or of a model, had before and have no more.
        """
        self.__dict__.pop("reach", None)
        before = {self.size, self.server.num_parameters}
        if self.server.refresh():
            self.local.rearrange()
        return before - {self.size, self.server.num_parameters}

    def check_kept(self, outdated: set[int]) -> None:
        """Refuse to go on with what was kept of parameters that were trained before, and others are now.

        Args:
            outdated: of :meth:`refresh_frozen`.

        Raises:
            ConfigurationError: saying what may be kept.
        """
        control = self.strategy.control
        own = {"vector": self.size, "control": self.server.num_parameters}
        stale = control is not None and control.numel() != own["control"]
        for name, length in self.local.memory.vectors():
            stale = stale or length in outdated or length != own.get(name, length)
        if stale:
            raise ConfigurationError(
                f"What is trained has changed in round {self.trainer.current_epoch}, and control variates, error feedback or "
                "models of their own, which clients keep over rounds, are of what was trained before. Freeze the same parts "
                "in all rounds ('thaw_after' null), or use a strategy, transforms and a route that keep none, such as FedAvg."
            )

    @cached_property
    def largest(self) -> float:
        """Return the largest accepted weight: all clients' such weights times their examples fit into an exact sum."""
        return 2.0**40 / max(1, int(self.data.indices.sizes.sum()))

    @cached_property
    def reach(self) -> float:
        """The largest absolute value of the parameters that this round begins with."""
        return max((magnitude(parameter.detach()) for parameter in self.server.parameters()), default=0.0)

    def checked(self, update: ClientUpdate) -> ClientUpdate:
        """The update with its norm, if it is fit to be aggregated; see :func:`~fl_lightning.settings.faults.check_update`."""
        return check_update(
            update, self.server, self.size, self.strategy.tolerates_broken, largest=self.largest, reach=self.reach
        )

    @property
    def shows_updates(self) -> bool:
        """Whether the server sees single changes that may be looked at: not behind masks, nor before noise of its own."""
        return self.secure_aggregation is None and not any(map(_acts_at_the_server, self.transforms))

    @property
    def examples_to_score(self) -> int:
        """On which the strategy measures each client's model."""
        return 0 if self.strategy.metric is None else self.measures.num_server_examples


def _acts_at_the_server(transform: Transform) -> bool:
    at_clients = isinstance(transform, ClientPrivacy) and transform.noise == "local"
    return type(transform).receive is not Transform.receive and not at_clients
