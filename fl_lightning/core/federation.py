"""Hold the parts of a federation that stay the same from round to round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from lightning.pytorch import Trainer
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need, Part, need_of
from fl_lightning.functional.returned import require_vector
from fl_lightning.messages import ServerModel

if TYPE_CHECKING:
    from fl_lightning.clients.pool import ClientPool
    from fl_lightning.data.federated import FederatedDataModule
    from fl_lightning.functional.keyed_noise import SecretKey
    from fl_lightning.functional.model_state import ModelState
    from fl_lightning.routes.base import Route
    from fl_lightning.settings.faults import Faults
    from fl_lightning.settings.pool import RemoteClients
    from fl_lightning.settings.server_evaluation import ServerEvaluation
    from fl_lightning.settings.storage import Checkpoints, Storage
    from fl_lightning.strategies.base import Strategy
    from fl_lightning.transforms.base import Transform
    from fl_lightning.utilities.collectives import Collectives

_versions = count(1)


class LocalSettings(Protocol):
    """Name the settings of :class:`~fl_lightning.LocalTraining` that options read."""

    @property
    def engine(self) -> str:
        """Return the name of the engine."""
        ...

    @property
    def max_epochs(self) -> int:
        """Return the number of local epochs."""
        ...

    @property
    def accumulate_grad_batches(self) -> int:
        """Return the number of batches in a step."""
        ...

    @property
    def full_batch(self) -> bool:
        """Return whether a client trains on all its examples in one batch."""
        ...

    def steps(self, batches: int, epochs: int | None = None) -> int:
        """Return the number of steps of a fit that nothing stops early."""
        ...

    def require_steps(self, setting: str) -> None:
        """Refuse a setting that ends a client's training early, if the engine runs many clients' steps at once."""
        ...


class FederationSettings(Protocol):
    """Name the settings of :class:`~fl_lightning.FederatedOrchestrator`, which documents them."""

    strategy: Strategy
    route: Route
    transforms: list[Transform]
    faults: Faults
    server_evaluation: ServerEvaluation
    clients_per_round: int | float
    server_optimizer: OptimizerCallable | None
    storage: Storage
    checkpoints: Checkpoints
    seed: int
    pool: RemoteClients | None

    @property
    def local(self) -> LocalSettings:
        """Return the settings of local training."""
        ...

    @property
    def state_key(self) -> str:
        """Return the name under which checkpoints hold the federation."""
        ...

    @property
    def active_options(self) -> tuple[Part, ...]:
        """Return the options in use, in the order of their hooks."""
        ...


def parts_of(settings: FederationSettings) -> Iterator[Part]:
    """Yield the parts of a federation, which say what they need and what they take away."""
    yield from (settings.strategy, settings.route)
    yield from settings.transforms
    yield from settings.active_options
    yield from () if settings.pool is None else (settings.pool,)


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """Describe the fit that an option is opened for.

    Attributes:
        trainer: the user's Trainer.
        data: the data, divided among the clients.
        settings: the settings of the federation.
        cohort: the number of clients in a round.
        removed: the capabilities that parts of the federation take away from the others.
        held: returns the parameters and buffers that a simulated client holds, by name; empty before its first training.
    """

    trainer: Trainer
    data: FederatedDataModule
    settings: FederationSettings
    cohort: int
    removed: frozenset[Capability] = frozenset()
    held: Callable[[int], Mapping[str, Tensor]] = lambda client: {}

    @property
    def seed(self) -> int:
        """Return the seed of the federation."""
        return self.settings.seed

    @property
    def synchronous(self) -> bool:
        """Return whether each round draws a cohort and waits for all of it."""
        return Capability.COHORTS not in self.removed

    @property
    def planned_rounds(self) -> int | None:
        """Return the number of rounds for which the Trainer was started; None if it is unlimited."""
        limits = [limit for limit in (self.trainer.max_epochs, self.trainer.max_steps) if limit is not None and limit != -1]
        return min(limits, default=None)


class ServerScores(Protocol):
    """Evaluate models on the server's validation set, as :class:`~fl_lightning.server.evaluators.Evaluators` does."""

    @property
    def num_server_examples(self) -> int:
        """Return the number of examples for one evaluation."""
        ...

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""
        ...

    def score(self, model: Any, metric: str | Metric, setting: str = ...) -> float:
        """Return the score of a model."""
        ...

    def score_changed(self, metric: Metric, changed: Callable[[Any], Any], setting: str) -> float:
        """Return the score of the global model with the batches changed."""
        ...


@dataclass(frozen=True, kw_only=True)
class Federation(ServerContext):
    """Hold the parts of a running federation on this rank, beside those of :class:`ServerContext`.

    Attributes:
        server: the view of the global model.
        pool: the pool of clients.
        evaluators: the evaluators of models on the server's set.
        secret: the key of random numbers that must hide something.
        session: the id of the fit, different for each one.
    """

    server: ModelState
    pool: ClientPool
    evaluators: ServerScores
    secret: SecretKey
    session: str = field(default_factory=lambda: uuid4().hex)

    @property
    def strategy(self) -> Strategy:
        """Return the strategy that combines the updates."""
        return self.settings.strategy

    @property
    def comm(self) -> Collectives:
        """Return the ranks of the server."""
        return self.pool.comm

    def refresh_frozen(self) -> None:
        """Re-check which parameters are frozen, before a round: callbacks may have changed that.

        Raises:
            ConfigurationError: if the strategy's tensors have another length, maybe that of the previous parameters.
        """
        self.server.refresh()
        for key, tensor in self.settings.strategy.broadcast().items():
            source = f"In round {self.trainer.current_epoch}, '{key}' of {type(self.settings.strategy).__name__}.broadcast is"
            remedy = (
                "Return one number for each trained parameter. If other parameters were trained before, freeze the same parts "
                "in all rounds ('thaw_after' null), also in a resumed run, or use another strategy, such as FedAvg."
            )
            require_vector(tensor, self.server.num_parameters, source, remedy)

    def model_of(self, round_idx: int | None = None, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> ServerModel:
        """Return the current global model with a version of its own, or that of an earlier round.

        Args:
            round_idx: the round that began with the model; None for the current one.
            tensors: those of its tensors that differ from the current ones, by name.
        """
        return ServerModel(
            version=next(_versions),
            round_idx=self.trainer.current_epoch if round_idx is None else round_idx,
            tensors={**self.server.tensors(), **tensors},
            layout=self.server.layout,
            broadcast=self.settings.strategy.broadcast(),
            max_abs_weight=self.max_abs_weight,
            tolerates_broken=self.settings.strategy.tolerates_broken,
            session=self.session,
            first=self.server.held_tensors(),
        )

    def publish(self, round_idx: int | None = None, tensors: Mapping[str, Tensor] = MappingProxyType({})) -> ServerModel:
        """Publish a model to the clients, and return it; see :meth:`model_of`."""
        model = self.model_of(round_idx, tensors)
        self.pool.publish(model)
        if not self.pool.simulated:  # otherwise both have one module
            self.evaluators.publish(model)
        return model

    @cached_property
    def max_abs_weight(self) -> float:
        """Return the largest accepted weight, for which the sum over all clients, weighted by examples, is still exact."""
        return 2.0**40 / max(1, int(self.data.indices.sizes.sum()))

    @cached_property
    def shows_updates(self) -> bool:
        """Return whether the server sees individual changes, without masks or noise added at the server."""
        hidden = Capability.SINGLE_UPDATES in self.removed
        return not hidden and not any(transform.receives for transform in self.settings.transforms)

    @cached_property
    def fixed(self) -> Need | None:
        """Return the need of a part that training changes no tensor without a gradient; None without one."""
        return need_of(parts_of(self.settings), Capability.FIXED_TENSORS)
