"""Refuse settings under which a privacy guarantee would not hold, before training starts."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.clients.engines.selection import possible_engines
from fl_lightning.clients.private_steps import check_private_module
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.routes.base import Route
from fl_lightning.routes.server import ServerRoute
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.secure_aggregation import SecureAggregation
from fl_lightning.strategies.base import JointStrategy, Strategy
from fl_lightning.strategies.last_client import LastClient
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy

_ELSEWHERE = "Use a strategy that reads only the clients' models, such as FedAvg or AdaFed."
_DECLARE = "if that is true of a class of your own, set 'private_with = (\"central\",)' in its body; it is not inherited"


def check_privacy(owner: FederationSettings, data: FederatedDataModule) -> None:
    """Refuse settings with which clients or examples would be less private than reported.

    Raises:
        ConfigurationError: if the settings break privacy; it names them.
    """
    cohort = cohort_size(data.num_clients, owner.clients_per_round)
    check_private_settings(owner.transforms, owner.local, owner.strategy, owner.route)
    _check_clients(owner.transforms, owner.strategy, owner.availability)
    _check_data(owner.transforms, owner.local, data)
    _check_secrecy(owner.secure_aggregation, owner.strategy, owner.route, cohort)
    _check_noise_seeds(owner.transforms, owner.local)
    _check_personal_start(owner)


def check_private_settings(transforms: Sequence[Transform], local: LocalTraining, strategy: Strategy, route: Route) -> None:
    """Refuse settings with which no data and no module would be as private as reported; sites check them themselves, too.

    Raises:
        ConfigurationError: naming the settings.
    """
    _check_messages(transforms, strategy, route)
    _check_examples(local, strategy, route)


def check_private_model(
    transforms: Sequence[Transform], local: LocalTraining, precision: str, module: LightningModule, server: ModelState
) -> None:
    """Refuse a module that sends unprotected tensors, or in which an example's gradient depends on other examples.

    Raises:
        ConfigurationError: if the module breaks privacy; it gives the reason.
    """
    check_private_training(transforms, local, precision, module)
    check_sent_buffers(transforms, local, server)


def warn_unprotected(owner: FederationSettings) -> None:
    """Warn if a training without a federation leaves out settings that were to protect the clients."""
    named = {
        "'federation.local.privacy'": owner.local.privacy is not None,
        "'federation.secure_aggregation'": owner.secure_aggregation is not None,
        "ClientPrivacy in 'federation.transforms'": bool(_of_clients(owner.transforms)),
    }
    unused = [name for name, used in named.items() if used]
    if unused:
        rank_zero_warn(
            f"'federation.enabled' is false, so the module trains on all examples in one place, and {' and '.join(unused)} "
            "protects nothing. Set 'federation.enabled' to true to train with it."
        )


def privacy_in_words(transforms: Sequence[Transform], local: LocalTraining) -> str:
    """Describe the settings that all rounds must share for one epsilon to cover them; empty without privacy."""
    private = [
        f"ClientPrivacy({one.max_norm}, {one.noise_multiplier}, {one.noise}, {one.delta}, noise_seed={one.noise_seed})"
        for one in _of_clients(transforms)
    ]
    return " and ".join([*private, *([] if local.privacy is None else [str(local.privacy)])])


def _check_noise_seeds(transforms: Sequence[Transform], local: LocalTraining) -> None:
    """Refuse two kinds of noise of which only one is simulated, and so could be subtracted."""
    of_clients = {one.noise_seed for one in _of_clients(transforms)}
    if of_clients and local.privacy is not None and local.privacy.noise_seed not in of_clients:
        raise ConfigurationError(
            f"'noise_seed' of ClientPrivacy is {next(iter(of_clients))}, but 'noise_seed' of 'federation.local.privacy' is "
            f"{local.privacy.noise_seed}. Set both to the same number for a simulation, or remove both."
        )


def _of_clients(transforms: Sequence[Transform]) -> list[ClientPrivacy]:
    return [transform for transform in transforms if isinstance(transform, ClientPrivacy)]


def _check_messages(transforms: Sequence[Transform], strategy: Strategy, route: Route) -> None:
    """Refuse messages that contain more than the clipped and noisy change, and rules that may read more of them."""
    private = _of_clients(transforms)
    if not private:
        return
    if len(private) > 1:
        raise ConfigurationError("'federation.transforms' contains ClientPrivacy more than once. Keep one of them.")
    if type(private[0]) is not ClientPrivacy:
        raise ConfigurationError(
            f"{type(private[0]).__name__} is a subclass of ClientPrivacy, which may clip or add noise in another way than the "
            "reported epsilon assumes. Use ClientPrivacy itself, with a transform of your own before it."
        )
    if type(route) is not ServerRoute:
        raise ConfigurationError(
            f"ClientPrivacy covers only what clients send to the server one by one, but 'federation.route' is "
            f"{type(route).__name__}. Use ServerRoute, or remove ClientPrivacy."
        )
    if isinstance(strategy, Scaffold):
        raise ConfigurationError(
            "Scaffold's clients send control variates with their models, but ClientPrivacy covers only the models. "
            + _ELSEWHERE
        )
    _check_own_metrics(strategy, "ClientPrivacy")
    if private[0].noise == "local":
        _check_declared(strategy, "local", "ClientPrivacy with noise at the clients")


def _check_clients(transforms: Sequence[Transform], strategy: Strategy, availability: Availability) -> None:
    """Refuse settings by which a client has influence beyond its clipped change, or which the accountant does not cover."""
    private = _of_clients(transforms)
    if not private:
        return
    if private[0].noise == "central":
        _check_central(transforms, strategy, availability)


def _check_central(transforms: Sequence[Transform], strategy: Strategy, availability: Availability) -> None:
    """Refuse settings with which a client's part in the sum exceeds its norm, or cohorts are not as the accountant assumes."""
    name, weighting = type(strategy).__name__, getattr(strategy, "weighting", "uniform")
    how = f"weighs by '{weighting}'" if weighting != "uniform" else ""
    if not _declares(strategy, "central"):
        declared = "private_with" in vars(type(strategy))
        how = how or ("combines models in another way" if declared else f"does not declare that it computes it ({_DECLARE})")
    if how:
        raise ConfigurationError(
            "ClientPrivacy with noise at the server needs the plain average, in which a client moves the sum by no more than "
            f"its clipped change, but {name} {how}. Set 'federation.strategy' to FedAvg or FedAvgM with 'weighting' uniform, "
            "or 'noise' to local."
        )
    if not isinstance(transforms[-1], ClientPrivacy):
        raise ConfigurationError(
            f"{type(transforms[-1]).__name__} comes after ClientPrivacy and may increase the norm of changes beyond its limit. "
            "Make ClientPrivacy the last of 'federation.transforms', or set its 'noise' to local."
        )
    changed = [type(one).__name__ for one in transforms[:-1] if type(one).receive is not Transform.receive]
    if changed:
        raise ConfigurationError(
            f"{changed[0]} changes the average at the server ('receive') before ClientPrivacy adds its noise, so a client may "
            "move it by more than its clipped change. Remove one of them, or set the 'noise' of ClientPrivacy to local."
        )
    if availability.leave:
        raise ConfigurationError(
            "ClientPrivacy with noise at the server needs cohorts that are drawn from all clients, but clients may be away, "
            f"because 'federation.availability.leave' is {availability.leave}. Set it to 0, or 'noise' to local."
        )


def _check_data(transforms: Sequence[Transform], local: LocalTraining, data: FederatedDataModule) -> None:
    """Refuse data that clients learn of each other, or by which an example counts more than once."""
    hides_clients = bool(_of_clients(transforms))
    if not hides_clients and local.privacy is None:
        return
    if data.server_set == "clients":
        privacy = "ClientPrivacy" if hides_clients else "'federation.local.privacy'"
        raise ConfigurationError(
            f"'data.server_set' is clients, so the server's metrics depend on the clients' own data, which {privacy} does not "
            "cover. Set it to datamodule."
        )
    if getattr(data.datamodule, "standardize", False):
        privacy = "ClientPrivacy" if hides_clients else "'federation.local.privacy'"
        raise ConfigurationError(
            "'data.datamodule.standardize' is true, so every client's inputs depend on the mean and the standard deviation of "
            f"all clients' rows, which {privacy} does not cover. Set it to false, and scale the files by public numbers."
        )
    if data.rebalancing is not None and hides_clients:
        raise ConfigurationError(
            "'data.rebalancing' lets each client's label counts influence the training of other clients, which ClientPrivacy "
            "does not cover. Remove one of them."
        )
    if data.rebalancing is not None:
        raise ConfigurationError(
            "'data.rebalancing' repeats examples, but 'federation.local.privacy' needs each example to occur only once. Remove "
            "one of them."
        )


def _check_examples(local: LocalTraining, strategy: Strategy, route: Route) -> None:
    """Refuse settings under which an example has more influence than its clipped gradient."""
    if local.privacy is None:
        return
    known = "one of trainer, fabric, auto with 'federation.local.privacy'"
    alone = not any(kind.side_by_side for kind in possible_engines(local.engine))
    require(alone, "federation.local.engine", known, local.engine)
    batches = local.accumulate_grad_batches
    require(batches == 1, "federation.local.accumulate_grad_batches", "1 with 'federation.local.privacy'", batches)
    if route.reads_data:
        raise ConfigurationError(
            f"The route {type(route).__name__} evaluates clients' models on their training examples, or counts their labels, "
            "which 'federation.local.privacy' does not cover. Use another route, such as ServerRoute."
        )
    _check_own_metrics(strategy, "'federation.local.privacy'")
    _check_declared(strategy, "examples", "'federation.local.privacy'")


def check_private_training(
    transforms: Sequence[Transform], local: LocalTraining, precision: str, module: LightningModule
) -> None:
    """Refuse a precision or a module with which examples' gradients are not separate, or clipping is not exact.

    Raises:
        ConfigurationError: naming the precision or the layers.
    """
    if _of_clients(transforms):
        known = "one of at least 32 bits with ClientPrivacy, because rounding could increase the norm of changes"
        require(precision not in ("16-true", "bf16-true"), "federation.local.precision", known, precision)
    if local.privacy is None:
        return
    allowed = ("32-true", "64-true", "bf16-mixed")
    wanted = f"one of {', '.join(allowed)} with 'federation.local.privacy'"
    require(precision in allowed, "federation.local.precision", wanted, precision)
    check_private_module(module)


def _declares(strategy: Strategy, noise: str) -> bool:
    """Return whether a strategy's own class, not one that it inherits from, declares itself private with such noise."""
    return noise in vars(type(strategy)).get("private_with", ())


def _check_declared(strategy: Strategy, noise: str, privacy: str) -> None:
    """Refuse a strategy that may read more of a client than its noisy model."""
    if not _declares(strategy, noise):
        why = f"does not declare that it reads nothing else of their data ({_DECLARE.replace('central', noise)})"
        why = "reads or sends more than these" if "private_with" in vars(type(strategy)) else why
        raise ConfigurationError(
            f"{privacy} covers only the clients' models, but {type(strategy).__name__} {why}. {_ELSEWHERE}"
        )


def _check_personal_start(owner: FederationSettings) -> None:
    """Refuse to pass the mean of the clients' personal parts, which get no noise, to the server and to other clients."""
    if owner.personal_start == "mean" and (owner.local.privacy is not None or _of_clients(owner.transforms)):
        privacy = "'federation.local.privacy'" if owner.local.privacy is not None else "ClientPrivacy"
        raise ConfigurationError(
            "'federation.personal_start' is 'mean', which passes the mean of the clients' personal parts to the server and to "
            f"clients that have not trained yet, but {privacy} does not cover personal parts. Set it to first."
        )


def _check_secrecy(secure: SecureAggregation | None, strategy: Strategy, route: Route, cohort: int) -> None:
    """Refuse strategies and routes that need individual updates."""
    if secure is None:
        return
    least = "2 clients or more with 'federation.secure_aggregation', because the sum over one client is its update"
    require(cohort >= 2, "federation.clients_per_round", least, cohort)
    name = type(strategy).__name__
    why = ""
    if isinstance(strategy, JointStrategy):
        why = f"{name} needs every client's model to combine them"
    elif isinstance(strategy, LastClient):
        why = f"{name} keeps one client's model"
    elif strategy.metric is not None:
        why = f"{name} weighs every client's model by its score at the server"
    elif route.bypasses_server:
        why = f"on the route {type(route).__name__} clients pass models to each other or keep them"
    if why:
        raise ConfigurationError(
            f"{why}, but with 'federation.secure_aggregation' the server only learns the sum of the models. Use FedAvg, "
            "FedAvgM, FedNova, FedLoss or Scaffold on the route ServerRoute, or remove 'federation.secure_aggregation'."
        )


def _check_own_metrics(strategy: Strategy, privacy: str) -> None:
    """Refuse metrics of the clients' own data that influence the model."""
    if strategy.local_metric is not None or strategy.global_metric is not None:
        raise ConfigurationError(
            f"{type(strategy).__name__} reads metrics that clients compute on their own data, which {privacy} does not cover. "
            + _ELSEWHERE
        )


def check_sent_buffers(transforms: Sequence[Transform], local: LocalTraining, server: ModelState) -> None:
    """Refuse a module that sends unprotected buffers.

    Raises:
        ConfigurationError: naming the buffers.
    """
    if not _of_clients(transforms) and local.privacy is None:
        return
    _, floats, counters, _ = server.names()
    if floats or counters:
        raise ConfigurationError(
            f"The clients send the buffers {', '.join([*floats, *counters][:3])} with the parameters, but privacy covers only "
            "the parameters. Use a network without BatchNorm (GroupNorm has no such buffers)."
        )
