"""Refuse settings under which a privacy guarantee would not hold, before training starts."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.clients.private_checks import (
    DECLARE,
    check_private_settings,
    check_private_training,
    check_sent_buffers,
    declares,
    private_transforms,
)
from fl_lightning.core.capabilities import Capability, Need, check_need
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_state import ModelState
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy


def check_privacy(owner: FederationSettings, data: FederatedDataModule) -> None:
    """Refuse settings with which clients or examples would be less private than reported.

    Raises:
        ConfigurationError: if the settings break privacy; it names them.
    """
    check_private_settings(owner.transforms, owner.local, owner.strategy, owner.route)
    _check_clients(owner)
    _check_data(owner.transforms, owner.local, data)
    _check_noise_seeds(owner.transforms, owner.local)


def check_private_model(
    transforms: Sequence[Transform], local: LocalTraining, precision: str, module: LightningModule, server: ModelState
) -> None:
    """Refuse a module that sends unprotected tensors, or in which an example's gradient depends on other examples.

    Raises:
        ConfigurationError: if the module breaks privacy; it gives the reason.
    """
    check_private_training(transforms, local, precision, module)
    check_sent_buffers(transforms, local, server)
    private = privacy_in_words(transforms, local)
    if private and server.held_tensors():
        rank_zero_info(
            f"Differential privacy ({private}) covers what the clients send. The parts that they hold have none: whoever gets "
            "a client's complete model, such as an export, may learn about its examples from them."
        )


def warn_unprotected(owner: FederationSettings) -> None:
    """Warn if a training without a federation leaves out settings that were to protect the clients."""
    named = {
        "'federation.local.privacy'": owner.local.privacy is not None,
        **{f"'federation.{option.setting}'": option.protects for option in owner.active_options},
        "ClientPrivacy in 'federation.transforms'": bool(private_transforms(owner.transforms)),
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
        for one in private_transforms(transforms)
    ]
    return " and ".join([*private, *([] if local.privacy is None else [str(local.privacy)])])


def _check_noise_seeds(transforms: Sequence[Transform], local: LocalTraining) -> None:
    """Refuse two kinds of noise of which only one is simulated, and so could be subtracted."""
    of_clients = {one.noise_seed for one in private_transforms(transforms)}
    if of_clients and local.privacy is not None and local.privacy.noise_seed not in of_clients:
        raise ConfigurationError(
            f"'noise_seed' of ClientPrivacy is {next(iter(of_clients))}, but 'noise_seed' of 'federation.local.privacy' is "
            f"{local.privacy.noise_seed}. Set both to the same number for a simulation, or remove both."
        )


def _check_clients(owner: FederationSettings) -> None:
    """Refuse settings by which a client has influence beyond its clipped change, or which the accountant does not cover."""
    private = private_transforms(owner.transforms)
    if private and private[0].noise == "central":
        _check_central(owner.transforms, owner.strategy)
        what = "ClientPrivacy with noise at the server needs cohorts that are drawn from all clients"
        check_need(Need(Capability.FULL_DRAWS, what, "Set its 'noise' to local"), owner.active_options)


def _check_central(transforms: Sequence[Transform], strategy: Strategy) -> None:
    """Refuse settings with which a client's part in the sum exceeds its norm, or cohorts are not as the accountant assumes."""
    name, weighting = type(strategy).__name__, getattr(strategy, "weighting", "uniform")
    how = f"weighs by '{weighting}'" if weighting != "uniform" else ""
    if not declares(strategy, "central"):
        declared = "private_with" in vars(type(strategy))
        how = how or ("combines models in another way" if declared else f"does not declare that it computes it ({DECLARE})")
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


def _check_data(transforms: Sequence[Transform], local: LocalTraining, data: FederatedDataModule) -> None:
    """Refuse data that clients learn of each other, or by which an example counts more than once."""
    hides_clients = bool(private_transforms(transforms))
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
