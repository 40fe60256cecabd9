"""The settings of a whole federation, as the server's code reads them."""

from __future__ import annotations

from typing import Protocol

from lightning.pytorch.cli import OptimizerCallable

from fl_lightning.core.option import OptionSettings
from fl_lightning.routes.base import Route
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.pool import RemoteClients
from fl_lightning.settings.server_evaluation import ServerEvaluation
from fl_lightning.settings.storage import Checkpoints, Storage
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform


class FederationSettings(Protocol):
    """Name the settings of :class:`~fl_lightning.FederatedOrchestrator`, which documents them."""

    strategy: Strategy
    route: Route
    local: LocalTraining
    transforms: list[Transform]
    faults: Faults
    server_evaluation: ServerEvaluation
    clients_per_round: int | float
    server_optimizer: OptimizerCallable | None
    storage: Storage
    checkpoints: Checkpoints
    seed: int

    @property
    def state_key(self) -> str:
        """Return the name under which checkpoints hold the federation."""
        ...

    @property
    def active_options(self) -> tuple[OptionSettings, ...]:
        """Return the options in use, in the order of their hooks."""
        ...

    @property
    def pool(self) -> RemoteClients | None:
        """Return where the clients are, if they are not simulated."""
        ...
