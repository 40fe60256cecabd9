"""Hold the parts of a federation that stay the same from round to round, and declare the pool, which trains its clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from fl_lightning.messages import ClientInfo, ClientTask, EvalOrder, EvalReport, Note, ServerModel
from fl_lightning.types import ClientFailure, ClientUpdate, Snapshot

if TYPE_CHECKING:
    from fl_lightning.data.federated import FederatedDataModule
    from fl_lightning.functional.keyed_noise import SecretKey
    from fl_lightning.functional.model_state import ModelState
    from fl_lightning.routes.base import Route
    from fl_lightning.settings.server import Checkpoints, Faults, RemoteClients, ServerEvaluation, Storage
    from fl_lightning.strategies.base import Strategy
    from fl_lightning.transforms.base import Transform
    from fl_lightning.utilities.collectives import Collectives

_versions = count(1)


class LocalSettings(Protocol):
    """Name the settings of :class:`~fl_lightning.LocalTraining` that options read."""

    @property
    def engine(self) -> str:
        """Return the name of the engine."""

    @property
    def max_epochs(self) -> int:
        """Return the number of local epochs."""

    @property
    def accumulate_grad_batches(self) -> int:
        """Return the number of batches in a step."""

    @property
    def full_batch(self) -> bool:
        """Return whether a client trains on all its examples in one batch."""

    def steps(self, batches: int, epochs: int | None = None) -> int:
        """Return the number of steps of a fit that nothing stops early."""

    def require_steps(self, setting: str) -> None:
        """Refuse a setting that ends a client's training early, if the engine runs many clients' steps at once."""


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

    @property
    def state_key(self) -> str:
        """Return the name under which checkpoints hold the federation."""

    @property
    def active_options(self) -> tuple[Part, ...]:
        """Return the options in use, in the order of their hooks."""


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

    def publish(self, model: ServerModel) -> None:
        """Take a new global model."""

    def score(self, model: Any, metric: str | Metric, setting: str = ...) -> float:
        """Return the score of a model."""

    def score_changed(self, metric: Metric, changed: Callable[[Any], Any], setting: str) -> float:
        """Return the score of the global model with the batches changed."""


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


@dataclass
class Chain:
    """Hold the results of clients that train one after another, each from the model of the one before it.

    Attributes:
        tasks: the tasks of its clients, in order, all with the start of the first one.
        updates: the updates of the clients that have trained, in order; only the last one has its model.
        failures: the failures of the other clients, each with its own cause.
        trained: the task of the last update; None without one.
    """

    tasks: Sequence[ClientTask]
    updates: list[ClientUpdate] = field(default_factory=list)
    failures: list[ClientFailure] = field(default_factory=list)
    trained: ClientTask | None = None

    def lose(self, cause: str) -> None:
        """Turn all updates into failures, because the server cannot have the last one's model."""
        self.failures += [ClientFailure(update.client, update.round_idx, cause) for update in self.updates]
        self.updates = []


Tasks = Sequence[ClientTask]
"""The tasks of a chain."""
Take = Callable[[Chain], None]
"""What a pool calls with each chain at its end."""
PassesOn = Callable[[ClientUpdate], None]
"""What a pool calls with the update of a client whose model goes to the next client of its chain."""


class RunningChains:
    """Follow chains, in each of which one client trains at a time. The pool begins the first task.

    Args:
        chains: the tasks of each chain.
        begin: called with each further task, which starts from the last model of its chain.
        passes_on: called with the update of a client whose model goes to the next client of its chain.
    """

    def __init__(self, chains: Sequence[Tasks], begin: Callable[[ClientTask], None], passes_on: PassesOn) -> None:
        self._begin, self._passes_on = begin, passes_on
        self._running = {tasks[0].client: Chain(tasks) for tasks in chains}  # by the client that trains

    def add(self, result: ClientUpdate | ClientFailure) -> Chain | None:
        """Add the result of a task, and begin the next one of its chain; at its end return the chain instead."""
        chain = self._running.pop(result.client)
        done = len(chain.updates) + len(chain.failures)
        last = done + 1 == len(chain.tasks)
        if isinstance(result, ClientFailure):
            chain.failures.append(result)
        else:
            if not last:
                self._passes_on(result)
            chain.trained = chain.tasks[done]
            chain.updates = [*(earlier.without_state() for earlier in chain.updates), result]
        if last:
            return chain
        task = chain.tasks[done + 1]
        self._running[task.client] = chain
        self._begin(replace(task, start=chain.updates[-1].snapshot) if chain.updates else task)
        return None


class ClientPool(Protocol):
    """Train and evaluate the clients of a federation, wherever they are.

    All ranks of the server call every method with the same arguments, including all orders.

    Attributes:
        comm: the ranks of the server; a single one over a network.
        simulated: whether the clients run in the processes of the server, so that it can read their state.
    """

    comm: Collectives
    simulated: bool

    def clients(self) -> tuple[ClientInfo, ...]:
        """Return the information that clients give about themselves, in the order of their ids."""

    def publish(self, model: ServerModel) -> None:
        """Store a new global model. Later orders refer to it by its version.

        Raises:
            ConfigurationError: if clients have stored tensors of another layout.
        """

    def train(self, chains: Sequence[Tasks], take: Take, passes_on: PassesOn, scored: int = 0) -> None:
        """Train the chains of this rank, and pass on each one as soon as it is done, in any order, without keeping it.

        The last update of a chain is as the server receives it. ``take`` and ``passes_on`` do not wait for other ranks. After
        an error on one rank, the others train all of their chains.

        Args:
            chains: the tasks of each chain of clients.
            take: called with each chain of this rank.
            passes_on: called with the update of a client whose model goes to the next client of its chain.
            scored: the number of examples on which the server will evaluate each chain's model, for balancing the ranks' work.

        Raises:
            ClientError: if a client fails and the policy is ``fatal``. Errors that are not a client's are raised as they are.
        """

    @property
    def published(self) -> ServerModel:
        """Return the model that was published last."""

    def terms(self) -> dict[str, str]:
        """Return what a site knows of the fit as well: ``federation``, ``contract`` and ``session``; empty in a simulation.

        Every rank must return the same.
        """
        return {"federation": "", "contract": "", "session": ""}

    def ask(self, notes: Sequence[Note]) -> dict[int, Note]:
        """Return the answers of clients to messages of an option, by client; a client that fails has none."""

    def tell(self, notes: Sequence[Note]) -> None:
        """Have messages of an option reach clients before their next task."""
        self.ask(notes)

    def under_way(self) -> Mapping[int, bytes]:
        """Return what asks once more for each task under way, by client; only a ``LastingPool`` has some."""
        return {}

    def evaluate(self, orders: Sequence[EvalOrder]) -> list[EvalReport]:
        """Evaluate models on clients' examples, and return all reports on every rank, in the order of the orders."""

    def own_models(self) -> list[Snapshot | None]:
        """Return the clients' own stored models, by client; None for a client without one."""

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the clients' hooks have counted here since the last call, and the transformed messages (``sent``)."""

    def settle(self, round_idx: int, accepted: Collection[int], saved_round: int) -> dict[str, float]:
        """Store client state from accepted updates, and discard the rest; ranks exchange data.

        Args:
            round_idx: the round that ends.
            accepted: the clients whose updates the server used.
            saved_round: the last round in a checkpoint, or -1. Earlier rounds will not be repeated.

        Returns:
            The metrics of the exchange, logged as ``federation/<name>``.
        """

    def state_dict(self) -> dict[Any, Any]:
        """Return the clients' state that the server stores, as tensors and plain values."""

    def close(self) -> None:
        """End the training at the end of a fit, also after an error. What the server stores can still be read."""


class LastingPool(ClientPool, Protocol):
    """Train clients whose tasks may outlast a round: :meth:`follow` returns when it has enough results.

    The tensors of a published model must not change while tasks refer to it. :meth:`ask` and :meth:`evaluate` are not for
    clients with a task under way.
    """

    def absent(self) -> Collection[int]:
        """Return the clients that could not begin a task now."""

    def begin(self, task: ClientTask) -> None:
        """Begin a task, also while :meth:`follow` runs; it may fail at once, if its client is absent."""

    def follow(self, take: Callable[[ClientUpdate | ClientFailure], bool]) -> None:
        """Pass on the results of tasks as they arrive, without keeping them, until no task is under way.

        Args:
            take: called with each result; returns whether to continue. The other tasks are still under way if it does not.

        Raises:
            ClientError: as :meth:`ClientPool.train` does.
        """

    def take_up(self, task: ClientTask, model: ServerModel, asked: bytes) -> None:
        """Ask once more for a task that was under way when the server stopped; a client that has done it answers at once.

        Args:
            task: the task.
            model: the model to which it refers, not always the newest one.
            asked: what :meth:`ClientPool.under_way` returned for it; empty to ask anew.
        """
