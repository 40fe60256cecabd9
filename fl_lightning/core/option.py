"""Define options: parts of a federation that are not there unless a setting asks for them.

An option is a class of settings. If it is in use, it builds two halves: hooks that run at the server and hooks that run where
clients train. The federation calls the hooks of all options in one order, and knows nothing else of them. What hooks read of
a client, its data, its place and its metrics, is declared here, too.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, get_type_hints

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need, Removal, ResumeRule
from fl_lightning.core.federation import Federation, FederationSettings, LocalSettings, ServerContext
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.messages import ClientTask, Part
from fl_lightning.types import ClientUpdate, RoundResult
from fl_lightning.utilities.argument_types import ChecksTypes

if TYPE_CHECKING:
    from fl_lightning.clients.judging import UpdateEditor
    from fl_lightning.core.plan import ClientSampler, RoundPlan
    from fl_lightning.data.federated import FederatedDataModule
    from fl_lightning.data.tensor_loader import Coins, PoissonBatches
    from fl_lightning.functional.exact_moments import Moments
    from fl_lightning.functional.keyed_noise import SecretKey
    from fl_lightning.functional.model_state import ModelState
    from fl_lightning.functional.releases import Release
    from fl_lightning.strategies.base import ModelScorer, Strategy
    from fl_lightning.utilities.collectives import Collectives


USUAL_TICKS = 1000
"""How long a client trains in simulated time, unless an option says otherwise."""


class ClientData(Protocol):
    """Provide the examples of all clients of a simulation, or of the client of a site."""

    def num_examples(self, client: int) -> int:
        """Return the client's number of training examples."""

    def client(
        self, client: int, seed: int, full_batch: bool = False, drop_single: bool = False, poisson: PoissonBatches | None = None
    ) -> LightningDataModule:
        """Return the client's training examples; see :meth:`FederatedDataModule.client`."""

    def client_evaluation_view(self, client: int, part: Part) -> LightningDataModule:
        """Return a part of the client's examples as a validation set."""

    def evaluated_persons(self, client: int, part: Part) -> Tensor | None:
        """Return the person of each example of a part, in order, int64; None if the data name no persons."""

    def poisson_batches(self, client: int, full_batch: bool, coins: Coins) -> PoissonBatches:
        """Return the client's batches, drawn by Poisson sampling."""


@dataclass(frozen=True, kw_only=True)
class SitePlace:
    """Describe the site of a client that is not simulated, and what its staff has decided.

    Attributes:
        name: the site's name.
        key: its private key, in OpenSSH's format.
        peers: the public keys of the other sites that its staff trusts, by name, in OpenSSH's format.
        folder: the folder for what must outlive a restart.
        federation: the id of the federation.
        contract: the digest of all settings that the server has sent.
        min_cohort: the fewest sites of a sum that it takes part in.
        max_lost: how many sites later sums may lack.
        told: returns an update with the figures that may leave.
        moments: returns the sums of its inputs, which may leave inside of a sum over sites, or refuses.
        hides_steps: whether numbers of steps stay at the site, and with them the counters of the model.
    """

    name: str
    key: bytes
    peers: Mapping[str, bytes]
    folder: Path
    federation: str
    contract: str
    min_cohort: int
    max_lost: int
    told: Callable[[ClientUpdate], ClientUpdate]
    moments: Callable[[], Moments]
    hides_steps: bool = False


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """Describe the place where an option's clients train.

    Attributes:
        num_clients: the number of clients in the federation.
        seed: the seed of the federation.
        device: the device on which they train.
        kept: returns a client's tensors of this option, by name, for reading and writing. They are in checkpoints, and are
            taken back if the server does not use the client's update.
        secret: the key of random numbers that must hide something.
        strategy: the strategy; in a simulation the server's own, which must not be changed.
        place: the site; None for simulated clients.
        numbers: returns the whole numbers that a client adds to those of the others before round 0, by the name of what the
            hooks at the server add up; see ``ServerHooks.add_up``.
    """

    num_clients: int
    seed: int
    device: torch.device
    kept: Callable[[int], MutableMapping[str, Tensor]]
    secret: SecretKey
    strategy: Strategy
    place: SitePlace | None = None
    numbers: Callable[[int, str], Sequence[int]] = lambda client, what: ()


@dataclass(frozen=True)
class ClientMetric:
    """Describe a metric that clients compute whenever the server orders it by its role.

    Attributes:
        role: its name in orders, which no other part of the federation uses.
        metric: the name of a metric that the module logs in validation, or a torchmetrics metric.
        part: the part of each client's examples on which models are evaluated.
    """

    role: str
    metric: str | Metric
    part: Part


def require_server_set(
    metric: str | Metric,
    data: FederatedDataModule,
    limit_batches: int | float,
    setting: str = "federation.strategy.metric",
    module: LightningModule | None = None,
) -> None:
    """Refuse a metric on the server's validation set if the server does not have one, or the module does not log any.

    Raises:
        ConfigurationError: if the server has no validation set, or the module no ``validation_step`` to log the metric in.
    """
    if module is not None and isinstance(metric, str) and not is_overridden("validation_step", module):
        raise ConfigurationError(
            f"'{setting}' needs {metric}, but {type(module).__name__} has no 'validation_step' to log it in. Define one, set "
            f"'{setting}' to a torchmetrics metric, or use a strategy that needs no validation, such as FedAvg."
        )
    if limit_batches == 0 or not data.has_validation_set:
        raise ConfigurationError(
            f"'{setting}' needs {metric if isinstance(metric, str) else type(metric).__name__} on the server's validation set, "
            "but the server has none. Add a 'val_dataloader' to your datamodule and keep 'trainer.limit_val_batches' above 0, "
            "or use a strategy that needs no validation set, such as FedAvg."
        )


Aggregate = tuple[Tensor, list[ClientUpdate], Mapping[str, Tensor]]
"""The new state of a round (float64, shape (d,)), the updates with their weights, and the new values of frozen tensors."""


class Gathering(Protocol):
    """Gather a round's updates on each rank: their sums, or all of them."""

    def add(self, update: ClientUpdate) -> ClientUpdate:
        """Add an update, and return it with its weight, if it is known."""

    def aggregate(self, updates: list[ClientUpdate], chains: Sequence[Sequence[int]], scorer: ModelScorer) -> Aggregate:
        """Return the strategy's aggregate; ranks exchange data.

        Args:
            updates: the updates of all ranks, without states.
            chains: the clients of each chain that delivered, of which the last one has sent the model.
            scorer: scores models of the strategy's making.
        """


class ServerHooks:
    """Act at the server, on every rank alike. Each method does nothing unless a subclass defines it."""

    def held(self, module: nn.Module) -> Sequence[str]:
        """Return the names of parameters and buffers that stay on the clients, neither sent nor averaged."""
        return ()

    def restored(self) -> None:
        """Learn that a checkpoint's state, if any, has been restored, before the clients are built or sites are asked.

        Ranks may exchange data.
        """

    def open(self, federation: Federation) -> None:
        """Take the parts of the federation when all are built, with a checkpoint's state restored, before the first round.

        Ranks may exchange data.
        """

    def add_up(self, federation: Federation, what: str, size: int) -> Sequence[int] | None:
        """Return the totals of whole numbers over all clients, before round 0; None if the server may see those of each client.

        A class with it sets ``seals``.

        Args:
            federation: the parts of the federation.
            what: the name of what is added up; the hooks at the clients get their part by it (``ClientContext.numbers``).
            size: how many numbers each client has.

        Raises:
            ClientError: if too few clients answer.
        """
        return None

    def begin_round(self, round_idx: int) -> None:
        """Prepare for a round, before its clients are drawn."""

    def candidates(self, round_idx: int, clients: Sequence[int]) -> Sequence[int]:
        """Return those of the given clients, ascending, from which a round may draw its own."""
        return clients

    def plan(self, plan: RoundPlan) -> RoundPlan:
        """Return the plan that follows a draw of clients, instead of the given one: who of them trains, and who is lost.

        What depends only on the plan, and on its seed, is the same on every rank and in a resumed run.
        """
        return plan

    def duration(self, client: int, round_idx: int, ticks: float) -> float:
        """Return how long a client's training from the model of a round takes in simulated time, instead of the given ticks.

        Only rounds that do not wait for all of their clients ask for it.
        """
        return ticks

    def task(self, task: ClientTask) -> ClientTask:
        """Return the task that a client gets instead of the given one. Every rank asks for all tasks of a round."""
        return task

    def sampler(self, sampler: ClientSampler) -> ClientSampler:
        """Return what plans the rounds, instead of the given sampler; see ``OptionSettings.cohort``."""
        return sampler

    def charge(self, federation: Federation, round_idx: int, plan: RoundPlan, tasks: Sequence[ClientTask]) -> None:
        """Learn which tasks are about to begin, before any of them does; ranks may exchange data.

        Args:
            federation: the parts of the federation.
            round_idx: the communication round, from 0; a task of an asynchronous round may have begun in an earlier one.
            plan: the clients that take part.
            tasks: the tasks of all ranks. A round of several periods begins those of each period at once.
        """

    def drained(self, federation: Federation, round_idx: int, updates: list[ClientUpdate]) -> list[ClientUpdate]:
        """Return the updates of all ranks as callbacks and logs get them, after all clients have trained.

        They do not hold models. Ranks may exchange data.
        """
        return updates

    def round_sums(self, federation: Federation, round_idx: int, plan: RoundPlan, examples: Sequence[int]) -> Gathering | None:
        """Return what adds up the updates of a round, for a strategy that needs only sums; None for plain sums.

        Args:
            federation: the parts of the federation.
            round_idx: the communication round, from 0.
            plan: the clients that take part.
            examples: the number of examples of each expected update, on any rank.
        """
        return None

    def before_step(self, result: RoundResult) -> None:
        """Learn the result of a round before the server changes the global model by it."""

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return metrics of a round, logged as ``federation/<name>``, after the global model has been set."""
        return {}

    def end_round(self, round_idx: int, tasks: Sequence[ClientTask]) -> dict[str, float]:
        """Return metrics of the new global model by their full names, after the round has been timed and logged.

        The module logs them, so that callbacks can monitor them.

        Args:
            round_idx: the communication round, from 0.
            tasks: the turns of the round's clients, on all ranks.
        """
        return {}

    def conclude(self, rounds: int) -> None:
        """Act after the last round of a fit.

        Args:
            rounds: the number of rounds so far, also those before the run was resumed.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as tensors and plain values; also after :meth:`close`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""

    def close(self) -> None:
        """Release what the option holds at the end of a fit, also after an error."""


class ClientHooks:
    """Act where clients train. Each method does nothing unless a subclass defines it."""

    @property
    def callbacks(self) -> Sequence[Callback]:
        """Return Lightning callbacks for the clients' fits; they come first, and all clients share them."""
        return ()

    def batches(self, task: ClientTask, data: ClientData, full_batch: bool) -> PoissonBatches | None:
        """Return the batches of a fit that is about to begin, also of a repeated one; None for those of the datamodule.

        Args:
            task: the client's task.
            data: the clients' examples.
            full_batch: whether a client trains on all its examples in one batch.
        """
        return None

    @property
    def waits(self) -> bool:
        """Return whether some clients' updates of this round wait for those of all others; the same on every rank."""
        return False

    def begin(self, round_idx: int, editor: UpdateEditor) -> None:
        """Prepare for the updates of a new global model.

        Args:
            round_idx: the communication round, from 0.
            editor: reads and replaces the changes in updates.
        """

    def send(self, update: ClientUpdate) -> ClientUpdate | None:
        """Return the update that a client sends instead of the given one; None to be asked again after :meth:`drained`."""
        return update

    def seal(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return what leaves for the server instead of an update that transforms have changed and scores complete.

        Args:
            task: the client's task.
            update: the update.
        """
        return update

    def answer(self, client: int, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a message of the option's hooks at the server.

        It comes by :meth:`~fl_lightning.core.federation.ClientPool.ask`.

        Args:
            client: the client that is asked.
            content: the message, as plain values; at a site from a stranger.

        Raises:
            ClientError: if the client does not answer it.
        """
        raise ClientError("This option answers no messages.")

    def drained(self, comm: Collectives, waiting: int) -> None:
        """Learn that all updates that do not wait have been sent; ranks may exchange data.

        Args:
            comm: the ranks.
            waiting: the number of updates that wait on this rank.
        """

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the hooks at the server read from the pool's ``counts``: by name, a number for each client.

        The numbers count from the last call.
        """
        return {}


# jsonargparse takes a dataclass for settings only if all its bases are dataclasses, so this one cannot derive from Unassuming.
@dataclass(frozen=True, eq=False, repr=False)
class OptionSettings:
    """Hold the settings of an option of this package; a subclass is a frozen dataclass, whose fields are its YAML.

    Attributes:
        setting: its name among the federation's settings.
        simulated_only: whether it cannot be used with clients at sites of their own.
        at_sites: whether sites build it from the settings that the server sends, in a section of its name.
        clients_may_join: whether clients may be absent from a run, or join when it is resumed.
        seals: whether its hooks at the clients replace the models that clients send, which its hooks at the server can read;
            its hooks also add up whole numbers of clients (``ServerHooks.add_up``).
        protects: whether it protects clients, so that a training without a federation warns that it does not.
        own_pace: whether clients train at a pace of their own, so that the number of rounds does not tell how often.
        secret_cohorts: whether the choice of clients must be unpredictable, so that they are not drawn from the seed.
        on_resume: what a resumed run may change.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Resolve the annotations of a constructor: in a dataclass, jsonargparse would look for those of fields instead."""
        build = vars(cls).get("__init__")
        if build is not None:
            with suppress(NameError):  # a name that is imported for type checks only
                build.__annotations__ = get_type_hints(build, include_extras=True)
        super().__init_subclass__(**kwargs)

    setting: ClassVar[str]
    simulated_only: ClassVar[bool] = False
    at_sites: ClassVar[bool] = False
    clients_may_join: ClassVar[bool] = True
    seals: ClassVar[bool] = False
    protects: ClassVar[bool] = False
    own_pace: ClassVar[bool] = False
    secret_cohorts: ClassVar[bool] = False
    on_resume: ClassVar[ResumeRule]

    @property
    def active(self) -> bool:
        """Return whether the settings ask for the option. If not, nothing of it is built."""
        return True

    @property
    def title(self) -> str:
        """Return the name of the option in messages."""
        return f"'federation.{self.setting}'"

    @property
    def guarantee(self) -> str:
        """Return in words what protects clients or examples in all rounds of a run, also of a resumed one; empty if nothing."""
        return ""

    def key(self, seed: int) -> SecretKey | None:
        """Return the key of secret random numbers, for a simulation that can be repeated; None for a new one at each start.

        Args:
            seed: the seed of the federation.
        """
        return None

    def needs(self) -> Iterable[Need]:
        """Return what the option needs of the other parts of a federation."""
        return ()

    def removes(self) -> Iterable[Removal]:
        """Return what the option takes away from the other parts."""
        return ()

    def provides(self) -> Iterable[Capability]:
        """Return what is not there without the option."""
        return ()

    def measures(self) -> Iterable[ClientMetric]:
        """Return the metrics that clients compute for the option on examples of their own."""
        return ()

    def logs(self) -> Collection[str]:
        """Return the names of metrics that the option logs after every round, whether or not the server validates."""
        return ()

    def free_on_resume(self) -> Collection[str]:
        """Return the arguments that a resumed run may change freely because of the values of others."""
        return ()

    def cohort(self, num_clients: int) -> int | None:
        """Return the number of updates in a round, if the option's sampler plans rounds that draw no cohort.

        An option with it takes :attr:`Capability.COHORTS` away.

        Raises:
            ConfigurationError: if it exceeds the number of clients.
        """
        return None

    def check_settings(self, settings: FederationSettings) -> None:
        """Refuse settings of other parts with which the option would not do what it promises; capabilities tell most of them.

        A site that requires noise asks as well, and knows only what it needs itself: ``strategy``, ``route``, ``local``,
        ``transforms`` and ``faults``.

        Raises:
            ConfigurationError: naming the settings.
        """

    def check_module(self, precision: str, module: LightningModule) -> None:
        """Refuse a precision or a module with which the option would not do what it promises, as :meth:`check_settings` does.

        Args:
            precision: the precision in which clients train, as accepted by Lightning's Trainer.
            module: the clients' module.
        """

    def check_sent(self, sent: ModelState) -> None:
        """Refuse tensors that clients would send with which the option would not do what it promises."""

    def not_at_sites(self) -> Iterable[str]:
        """Return the settings in use, by name, that only a simulation can have."""
        return (f"federation.{self.setting}",) if self.simulated_only else ()

    def sent_to_sites(self) -> Mapping[str, Any]:
        """Return arguments that sites get instead of those that were given, because they were found at the start of the fit."""
        return {}

    def clients_noise(self, delivered: bool) -> float:
        """Return how much noise clients add to what they send, as the multiplier of a norm; 0 for none. Sites require some.

        Args:
            delivered: whether a model passes the transforms on its way to the server.
        """
        return 0.0

    def released(self, task: ClientTask, data: ClientData, local: LocalSettings, attempts: int) -> Release | None:
        """Return the noisy numbers that a task releases, for the budget of a site; None if the option adds no noise.

        Args:
            task: the task.
            data: the data of the client.
            local: the settings of local training.
            attempts: how often the client may try.
        """
        return None

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server.

        Raises:
            ConfigurationError: if the option does not fit the data or the Trainer.
        """
        return ServerHooks()

    def at_clients(self, context: ClientContext) -> ClientHooks:
        """Return the hooks where clients train."""
        return ClientHooks()


class Option(OptionSettings, ChecksTypes, ABC):
    """Extend a federation by hooks at the server and where clients train; the base of an option of your own.

    The arguments of its constructor are its YAML, under ``federation.options``. Keep them under their own names.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, Option, ServerHooks
        >>> class CountSteps(Option, ServerHooks):
        ...     def at_server(self, context):
        ...         return self
        ...     def after_round(self, federation, round_idx, result):
        ...         return {"steps": float(sum(update.num_steps for update in result.updates))}
        >>> federation = FederatedOrchestrator(options=[CountSteps()])  # logs federation/steps
    """

    setting = "options"
    simulated_only = True

    def needs(self) -> Iterator[Need]:
        """Return what the option needs: with hooks at the clients, that each exact update passes through them to the server.

        Override this for an option whose hooks tell nothing of a client's change, such as its norm in a metric, before noise
        protects it.
        """
        if type(self).at_clients is not OptionSettings.at_clients:
            name = type(self).__name__
            remedy = f"Remove {name} from 'federation.options'"
            yield Need(Capability.DELIVERED_UPDATES, f"{name} acts on the updates that clients send to the server", remedy)
            yield Need(Capability.OPEN_CHANGES, f"{name} may read clients' changes before they are sent", remedy)


def options_in(values: Iterable[object]) -> Iterator[OptionSettings]:
    """Yield the options in use among settings, in order, also those inside of lists and of other settings."""
    for value in values:
        if isinstance(value, OptionSettings) and value.active:
            yield value
        if isinstance(value, list):
            yield from options_in(value)
        elif is_dataclass(value):
            yield from options_in(getattr(value, field.name) for field in fields(value))


def options_of(context: ServerContext) -> list[OptionSettings]:
    """Return the options in use in a fit."""
    return [part for part in context.settings.active_options if isinstance(part, OptionSettings)]


def own_cohort(options: Iterable[OptionSettings], num_clients: int) -> int | None:
    """Return the number of updates in a round that an option plans; None if each round draws a cohort."""
    return next((size for option in options if (size := option.cohort(num_clients)) is not None), None)


def guarantees(options: Iterable[OptionSettings]) -> str:
    """Return in words what the rounds of a run guarantee together; empty if nothing."""
    return " and ".join(option.guarantee for option in options if option.guarantee)


def refuse_rivals(hooks: Mapping[str, ServerHooks], joint: bool) -> None:
    """Refuse two options that both sum updates, or both plan rounds, and sums that a strategy ignores.

    Args:
        hooks: the hooks at the server, by the option's name.
        joint: whether the strategy combines all updates at once instead of adding them up.

    Raises:
        ConfigurationError: naming the options.
    """
    for what, default in ("add up the clients' updates", ServerHooks.round_sums), ("plan rounds", ServerHooks.sampler):
        own = [name for name, hook in hooks.items() if getattr(type(hook), default.__name__) is not default]
        if own and joint and default is ServerHooks.round_sums:
            raise ConfigurationError(
                f"'federation.{own[0]}' adds up the clients' updates, but the strategy needs each of them. Use a strategy that "
                "needs only sums, such as FedAvg, or remove the option."
            )
        if len(own) > 1:
            names = " and ".join(f"'federation.{name}'" for name in own)
            raise ConfigurationError(f"{names} each {what} in a way of their own. Remove all but one of them.")


def by_name(options: Iterable[OptionSettings]) -> dict[str, OptionSettings]:
    """Return options by the names under which their state is kept."""
    own, found = count(), dict[str, OptionSettings]()
    for option in options:
        found[f"{option.setting}.{next(own)}" if isinstance(option, Option) else option.setting] = option
    return found
