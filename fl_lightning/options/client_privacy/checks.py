"""Refuse settings by which messages tell more of a client than its clipped and noisy change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_lightning.errors import ConfigurationError
from fl_lightning.options.client_privacy.settings import ClientPrivacy
from fl_lightning.options.privacy_account.checks import DECLARE, ELSEWHERE, check_declared, check_own_metrics, declares
from fl_lightning.routes.server import ServerRoute
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.scaffold import Scaffold
from fl_lightning.transforms.base import Transform

if TYPE_CHECKING:
    from fl_lightning.settings.federation import FederationSettings


def check_settings(own: ClientPrivacy, settings: FederationSettings) -> None:
    """Refuse messages that contain more than the noise covers, and rules that may read more of them.

    Args:
        own: the settings of the noise.
        settings: those of all parts.

    Raises:
        ConfigurationError: naming the settings.
    """
    strategy, route, transforms = settings.strategy, settings.route, settings.transforms
    if sum(isinstance(one, ClientPrivacy) for one in transforms) > 1:
        raise ConfigurationError("'federation.transforms' contains ClientPrivacy more than once. Keep one of them.")
    if type(own) is not ClientPrivacy:
        raise ConfigurationError(
            f"{type(own).__name__} is a subclass of ClientPrivacy, which may clip or add noise in another way than the "
            "reported epsilon assumes. Use ClientPrivacy itself, with a transform of your own before it."
        )
    if type(route) is not ServerRoute:
        raise ConfigurationError(
            f"ClientPrivacy covers only what clients send to the server one by one, but 'federation.route' is "
            f"{type(route).__name__}. Use ServerRoute, or remove ClientPrivacy."
        )
    if isinstance(strategy, Scaffold):
        raise ConfigurationError(
            "Scaffold's clients send control variates with their models, but ClientPrivacy covers only the models. " + ELSEWHERE
        )
    check_own_metrics(strategy, "ClientPrivacy")
    if own.noise == "local":
        check_declared(strategy, "local", "ClientPrivacy with noise at the clients")
    else:
        _check_central(transforms, strategy)


def _check_central(transforms: Sequence[Transform], strategy: Strategy) -> None:
    """Refuse settings with which a client's part in the sum exceeds its norm."""
    name, weighting = type(strategy).__name__, getattr(strategy, "weighting", "uniform")
    how = f"weighs by '{weighting}'" if weighting != "uniform" else ""
    if not declares(strategy, "central"):
        declared = "private_with" in vars(type(strategy))
        why = f"does not declare that it computes it ({DECLARE.format('central')})"
        how = how or ("combines models in another way" if declared else why)
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
