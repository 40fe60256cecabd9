"""Refuse settings under which what clients send would be less private than reported; sites check this themselves, too."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule

from fl_lightning.clients.engines.selection import possible_engines
from fl_lightning.clients.private_steps import check_private_module
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.model_state import ModelState
from fl_lightning.routes.base import Route
from fl_lightning.routes.server import ServerRoute
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy

_ELSEWHERE = "Use a strategy that reads only the clients' models, such as FedAvg or AdaFed."
DECLARE = "if that is true of a class of your own, set 'private_with = (\"central\",)' in its body; it is not inherited"


def check_private_settings(transforms: Sequence[Transform], local: LocalTraining, strategy: Strategy, route: Route) -> None:
    """Refuse settings with which no data and no module would be as private as reported; sites check them themselves, too.

    Raises:
        ConfigurationError: naming the settings.
    """
    _check_messages(transforms, strategy, route)
    _check_examples(local, strategy, route)


def private_transforms(transforms: Sequence[Transform]) -> list[ClientPrivacy]:
    """Return the transforms that make clients' messages private."""
    return [transform for transform in transforms if isinstance(transform, ClientPrivacy)]


def declares(strategy: Strategy, noise: str) -> bool:
    """Return whether a strategy's own class, not one that it inherits from, declares itself private with such noise."""
    return noise in vars(type(strategy)).get("private_with", ())


def _check_messages(transforms: Sequence[Transform], strategy: Strategy, route: Route) -> None:
    """Refuse messages that contain more than the clipped and noisy change, and rules that may read more of them."""
    private = private_transforms(transforms)
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


def _check_declared(strategy: Strategy, noise: str, privacy: str) -> None:
    """Refuse a strategy that may read more of a client than its noisy model."""
    if not declares(strategy, noise):
        why = f"does not declare that it reads nothing else of their data ({DECLARE.replace('central', noise)})"
        why = "reads or sends more than these" if "private_with" in vars(type(strategy)) else why
        raise ConfigurationError(
            f"{privacy} covers only the clients' models, but {type(strategy).__name__} {why}. {_ELSEWHERE}"
        )


def _check_own_metrics(strategy: Strategy, privacy: str) -> None:
    """Refuse metrics of the clients' own data that influence the model."""
    if strategy.local_metric is not None or strategy.global_metric is not None:
        raise ConfigurationError(
            f"{type(strategy).__name__} reads metrics that clients compute on their own data, which {privacy} does not cover. "
            + _ELSEWHERE
        )


def check_private_training(
    transforms: Sequence[Transform], local: LocalTraining, precision: str, module: LightningModule
) -> None:
    """Refuse a precision or a module with which examples' gradients are not separate, or clipping is not exact.

    Raises:
        ConfigurationError: naming the precision or the layers.
    """
    if private_transforms(transforms):
        known = "one of at least 32 bits with ClientPrivacy, because rounding could increase the norm of changes"
        require(precision not in ("16-true", "bf16-true"), "federation.local.precision", known, precision)
    if local.privacy is None:
        return
    allowed = ("32-true", "64-true", "bf16-mixed")
    wanted = f"one of {', '.join(allowed)} with 'federation.local.privacy'"
    require(precision in allowed, "federation.local.precision", wanted, precision)
    check_private_module(module)


def check_sent_buffers(transforms: Sequence[Transform], local: LocalTraining, server: ModelState) -> None:
    """Refuse a module that sends unprotected buffers.

    Raises:
        ConfigurationError: naming the buffers.
    """
    if not private_transforms(transforms) and local.privacy is None:
        return
    _, floats, counters, _ = server.names()
    if floats or counters:
        raise ConfigurationError(
            f"The clients send the buffers {', '.join([*floats, *counters][:3])} with the parameters, but privacy covers only "
            "the parameters. Use a network without BatchNorm (GroupNorm has no such buffers)."
        )
