"""Refuse settings that do not work with asynchronous rounds or with a simulated clock."""

from __future__ import annotations

import warnings

from lightning.pytorch import Trainer

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.routes.server import ServerRoute
from fl_lightning.settings.asynchronous import Asynchronous
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.client_privacy import ClientPrivacy


def round_size(owner: FederationSettings, num_clients: int) -> int:
    """Return the number of clients in a round: of the cohort, or of the updates in an asynchronous server's buffer.

    Raises:
        ConfigurationError: if it exceeds the number of clients.
    """
    if owner.asynchronous is None:
        return cohort_size(num_clients, owner.clients_per_round)
    owner.asynchronous.check(num_clients)
    return owner.asynchronous.buffer


def check_clock(owner: FederationSettings, data: FederatedDataModule, trainer: Trainer) -> None:
    """Refuse parts of a federation that need synchronous rounds, or asynchronous ones, or have no duration.

    Raises:
        ConfigurationError: if a part does not work; it says what to use instead.
    """
    name, settings = type(owner.strategy).__name__, owner.asynchronous
    if owner.strategy.needs_asynchronous and settings is None:
        raise ConfigurationError(
            f"{name} combines updates of asynchronous rounds, but 'federation.asynchronous' is not set. Set it, for example to "
            "{concurrency: 10, buffer: 1}, or use FedAvg."
        )
    on_the_clock = "'federation.asynchronous'" if settings is not None else "'federation.clock'"
    if (settings is not None or owner.clock is not None) and type(owner.route) is not ServerRoute:
        raise ConfigurationError(
            f"On the route {type(owner.route).__name__} clients wait for each other, which {on_the_clock} does not simulate. "
            f"Remove {on_the_clock}, or use the route ServerRoute."
        )
    if settings is None:
        return
    settings.check(data.num_clients)
    owner.faults.check(settings.buffer)
    _check_strategy(owner.strategy, settings)
    _check_rounds(owner)
    if settings.buffer == 1 and trainer.world_size > 1:
        warnings.warn(
            f"'federation.asynchronous.buffer' is 1, so one client trains at a time, and {trainer.world_size} ranks are no "
            "faster than one. Set 'trainer.devices' to 1.",
            stacklevel=2,
        )


def _check_strategy(strategy: Strategy, settings: Asynchronous) -> None:
    name = type(strategy).__name__
    if strategy.needs_own_training:
        raise ConfigurationError(
            f"{name} needs each client to train from the current global model, but with 'federation.asynchronous' clients "
            "start from earlier ones. Use FedBuff, FedAsync, FedAvg, AdaFed or FedMedian, or remove 'federation.asynchronous'."
        )
    if type(strategy).broadcast is not Strategy.broadcast:
        raise ConfigurationError(
            f"{name} sends tensors with each model ('broadcast'), which belong to the current model, but with "
            "'federation.asynchronous' clients start from earlier ones. Use FedBuff, or remove 'federation.asynchronous'."
        )
    if strategy.needs_all_clients:
        raise ConfigurationError(
            f"{name} needs every client in every round, but with 'federation.asynchronous' a round has the clients that end "
            "first. Use FedBuff, or remove 'federation.asynchronous'."
        )
    most = strategy.largest_buffer
    if most is not None and settings.buffer > most:
        raise ConfigurationError(
            f"{name} mixes every update into the model at once, but 'federation.asynchronous.buffer' is {settings.buffer}. Set "
            f"it to {most}, or use FedBuff."
        )


def _check_rounds(owner: FederationSettings) -> None:
    """Refuse settings that are defined by the cohort of a round."""
    central = any(isinstance(one, ClientPrivacy) and one.noise == "central" for one in owner.transforms)
    refused = {
        f"'federation.clients_per_round' ({owner.clients_per_round})": (
            owner.clients_per_round != 1.0,
            "no round draws a cohort. Set 'federation.asynchronous.concurrency' instead, and remove it.",
        ),
        "ClientPrivacy with noise at the server": (
            central,
            "its epsilon assumes cohorts that are drawn from all clients. Set its 'noise' to local, or remove one of them.",
        ),
        "'federation.local.partial_work'": (
            owner.local.partial_work.share > 0,
            "no deadline ends a client's work. Remove it, and set 'federation.clock' or 'federation.availability.slow'.",
        ),
    }
    for what, (used, why) in refused.items():
        if used:
            raise ConfigurationError(f"{what} does not work with 'federation.asynchronous': {why}")
