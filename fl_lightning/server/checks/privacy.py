"""Settings under which a promise of privacy would not hold: refused before anything trains."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule

from fl_lightning.clients.engines.selection import possible_engines
from fl_lightning.clients.private_steps import check_private_module
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.routes.base import Route
from fl_lightning.settings.attackers import Attackers
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.secure_aggregation import SecureAggregation
from fl_lightning.strategies.base import JointStrategy, Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.strategies.last_client import LastClient
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy

_ELSEWHERE = "Use a strategy that reads nothing but the clients' models, such as FedAvg or AdaFed."


def check_privacy(owner: FederationSettings, data: FederatedDataModule) -> None:
    """Refuse settings with which clients or examples would not be as private as is said.

    Raises:
        ConfigurationError: naming them.
    """
    cohort = cohort_size(data.num_clients, owner.clients_per_round)
    _check_clients(owner.transforms, owner.attackers, owner.strategy, owner.availability, data)
    _check_examples(owner.local, owner.strategy, owner.route, data)
    _check_secrecy(owner.secure_aggregation, owner.strategy, owner.route, cohort)
    _check_noise_seeds(owner.transforms, owner.local)


def check_private_model(
    transforms: Sequence[Transform], local: LocalTraining, precision: str, module: LightningModule, server: ModelState
) -> None:
    """Refuse a module of which more is sent than what is protected, or in which an example's gradient is not its own.

    Raises:
        ConfigurationError: naming what it is.
    """
    _check_training(local, precision, module)
    _check_sent_state(transforms, local, precision, server)


def privacy_in_words(transforms: Sequence[Transform], local: LocalTraining) -> str:
    """Describe what must be the same in all rounds for one epsilon to cover them; empty without privacy."""
    private = [
        f"ClientPrivacy({one.max_norm}, {one.noise_multiplier}, {one.noise}, {one.delta}, noise_seed={one.noise_seed})"
        for one in transforms
        if isinstance(one, ClientPrivacy)
    ]
    return " and ".join([*private, *([] if local.privacy is None else [str(local.privacy)])])


def _check_noise_seeds(transforms: Sequence[Transform], local: LocalTraining) -> None:
    """Refuse noise of which one part could be subtracted, and the other not."""
    of_clients = {one.noise_seed for one in transforms if isinstance(one, ClientPrivacy)}
    if of_clients and local.privacy is not None and local.privacy.noise_seed not in of_clients:
        raise ConfigurationError(
            f"'noise_seed' of ClientPrivacy is {next(iter(of_clients))}, and that of 'federation.local.privacy' "
            f"{local.privacy.noise_seed}. Set both to the same number for a simulation, or neither."
        )


def _check_clients(
    transforms: Sequence[Transform],
    attackers: Attackers,
    strategy: Strategy,
    availability: Availability,
    data: FederatedDataModule,
) -> None:
    """Refuse what one client could influence beyond its clipped change, or what the accountant does not know."""
    private = [transform for transform in transforms if isinstance(transform, ClientPrivacy)]
    if not private:
        return
    if len(private) > 1:
        raise ConfigurationError("'federation.transforms' has ClientPrivacy more than once. Keep one.")
    if isinstance(strategy, Scaffold):
        raise ConfigurationError(
            "Scaffold's clients send control variates beside their models, and ClientPrivacy covers the models alone. "
            + _ELSEWHERE
        )
    _check_own_metrics(strategy, "ClientPrivacy", data)
    if data.rebalancing is not None:
        raise ConfigurationError(
            "'data.rebalancing' lets each client's counts of labels steer the others' training, which ClientPrivacy does not "
            "cover. Leave one of them out."
        )
    if attackers.model is not None and attackers.model.needs_crowd:
        raise ConfigurationError(
            f"{type(attackers.model).__name__} looks at the honest clients' changes before ClientPrivacy has hidden them, and "
            "sends what follows from them. Use an attack that does not, such as SignFlip, or leave one of them out."
        )
    if private[0].noise == "central":
        _check_central(transforms, strategy, availability)


def _check_central(transforms: Sequence[Transform], strategy: Strategy, availability: Availability) -> None:
    """Refuse what would make one client's part in the sum larger than its norm, or its cohort another than is counted on."""
    if not (isinstance(strategy, FedAvg) and strategy.weighting == "uniform"):
        how = f"weighs by '{strategy.weighting}'" if isinstance(strategy, FedAvg) else "combines models in a way of its own"
        raise ConfigurationError(
            "ClientPrivacy with noise at the server needs the plain average, in which a client moves the sum by its clipped "
            f"change and no more, but {type(strategy).__name__} {how}. Set 'federation.strategy' to FedAvg or FedAvgM with "
            "'weighting' uniform, or 'noise' to local."
        )
    if not isinstance(transforms[-1], ClientPrivacy):
        raise ConfigurationError(
            f"{type(transforms[-1]).__name__} comes after ClientPrivacy and may make changes longer than its norm. Let "
            "ClientPrivacy be the last of 'federation.transforms', or set its 'noise' to local."
        )
    if availability.leave:
        raise ConfigurationError(
            "ClientPrivacy with noise at the server counts on cohorts that are drawn from all clients, but "
            f"'federation.availability.leave' is {availability.leave}: who is there changes. Set it to 0, or 'noise' to local."
        )


def _check_examples(local: LocalTraining, strategy: Strategy, route: Route, data: FederatedDataModule) -> None:
    """Refuse settings under which an example has more influence than its clipped gradient."""
    if local.privacy is None:
        return
    known = "one of trainer, fabric, auto with 'federation.local.privacy'"
    alone = not any(kind.side_by_side for kind in possible_engines(local.engine))
    require(alone, "federation.local.engine", known, local.engine)
    batches = local.accumulate_grad_batches
    require(batches == 1, "federation.local.accumulate_grad_batches", "1 with 'federation.local.privacy'", batches)
    if data.rebalancing is not None:
        raise ConfigurationError(
            "'data.rebalancing' repeats examples, and 'federation.local.privacy' counts on each being there once. Leave one of "
            "them out."
        )
    if route.reads_data:
        raise ConfigurationError(
            f"On the route {type(route).__name__} clients' models are measured on their training examples, or their labels "
            "counted, which 'federation.local.privacy' does not cover. Use another route, such as ServerRoute."
        )
    _check_own_metrics(strategy, "'federation.local.privacy'", data)


def _check_training(local: LocalTraining, precision: str, module: LightningModule) -> None:
    """Refuse a precision or a module with which an example's gradient is not its own, or not clipped as it should be."""
    if local.privacy is None:
        return
    allowed = ("32-true", "64-true", "bf16-mixed")
    wanted = f"one of {', '.join(allowed)} with 'federation.local.privacy'"
    require(precision in allowed, "federation.local.precision", wanted, precision)
    check_private_module(module)


def _check_secrecy(secure: SecureAggregation | None, strategy: Strategy, route: Route, cohort: int) -> None:
    """Refuse what must see single updates."""
    if secure is None:
        return
    least = "2 clients or more with 'federation.secure_aggregation': the sum of one is its update"
    require(cohort >= 2, "federation.clients_per_round", least, cohort)
    name = type(strategy).__name__
    why = ""
    if isinstance(strategy, JointStrategy):
        why = f"{name} must see every client's model to combine them"
    elif isinstance(strategy, LastClient):
        why = f"{name} keeps one client's model"
    elif strategy.metric is not None:
        why = f"{name} weighs every client's model by what the server measures of it"
    elif route.bypasses_server:
        why = f"on the route {type(route).__name__} clients pass models to each other or keep them"
    if why:
        raise ConfigurationError(
            f"{why}, but with 'federation.secure_aggregation' the server learns their sum and no single one. Use FedAvg, "
            "FedAvgM, FedNova, FedLoss or Scaffold on the route ServerRoute, or leave secure aggregation out."
        )


def _check_own_metrics(strategy: Strategy, privacy: str, data: FederatedDataModule) -> None:
    """Refuse metrics of the clients' own data that have a say in the model."""
    if data.server_set == "clients":
        raise ConfigurationError(
            f"'data.server_set' is clients: what the server measures there is of the clients' own data, which {privacy} does "
            "not cover. Set it to datamodule."
        )
    if strategy.local_metric is not None or strategy.global_metric is not None:
        raise ConfigurationError(
            f"{type(strategy).__name__} reads metrics that clients measure on their own data, which {privacy} does not cover. "
            + _ELSEWHERE
        )


def _check_sent_state(transforms: Sequence[Transform], local: LocalTraining, precision: str, server: ModelState) -> None:
    """Refuse a module of which more is sent than what is protected."""
    hides_clients = any(isinstance(transform, ClientPrivacy) for transform in transforms)
    if not hides_clients and local.privacy is None:
        return
    _, floats, counters, _ = server.names()
    if floats or counters:
        raise ConfigurationError(
            f"The clients send the buffers {', '.join([*floats, *counters][:3])} beside the parameters, and privacy covers "
            "the parameters alone. Use a network without BatchNorm (GroupNorm has no such buffers)."
        )
    if not hides_clients:
        return
    known = "one of at least 32 bits with ClientPrivacy: rounding would make changes longer than its norm"
    require(precision not in ("16-true", "bf16-true"), "federation.local.precision", known, precision)
