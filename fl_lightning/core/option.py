"""Define options: parts of a federation that are not there unless a setting asks for them.

An option is a class of settings. If it is in use, it builds two halves: hooks that run at the server and hooks that run where
clients train. The federation calls the hooks of all options in one order, and knows nothing else of them.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from lightning.pytorch import LightningModule

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.client_metric import ClientMetric
from fl_lightning.core.hooks import ClientContext, ClientHooks, ServerContext, ServerHooks
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.argument_types import ChecksTypes

if TYPE_CHECKING:
    from fl_lightning.clients.client_data import ClientData
    from fl_lightning.functional.keyed_noise import SecretKey
    from fl_lightning.functional.model_state import ModelState
    from fl_lightning.functional.releases import Release
    from fl_lightning.messages import ClientTask
    from fl_lightning.settings.federation import FederationSettings
    from fl_lightning.settings.local_training import LocalTraining


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

    def released(self, task: ClientTask, data: ClientData, local: LocalTraining, attempts: int) -> Release | None:
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


def own_cohort(options: Iterable[OptionSettings], num_clients: int) -> int | None:
    """Return the number of updates in a round that an option plans; None if each round draws a cohort."""
    return next((size for option in options if (size := option.cohort(num_clients)) is not None), None)


def guarantees(options: Iterable[OptionSettings]) -> str:
    """Return in words what the rounds of a run guarantee together; empty if nothing."""
    return " and ".join(option.guarantee for option in options if option.guarantee)


def refuse_rivals(hooks: Mapping[str, ServerHooks], joint: bool) -> None:
    """Refuse options of which each adds up updates, or plans rounds, in a way of its own, and sums that a strategy ignores.

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
