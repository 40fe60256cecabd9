"""Check the settings of a federation against each other, the Trainer and the data, before a fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lightning.pytorch import Trainer

from fl_lightning.core.capabilities import Part, check_parts
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.server.checks.asynchronous import check_clock
from fl_lightning.server.checks.compatibility import (
    check_cohort,
    check_faults,
    check_route,
    check_server_optimizer,
    check_state,
    check_strategy,
)
from fl_lightning.server.checks.incomplete import check_incomplete
from fl_lightning.server.checks.privacy import check_privacy
from fl_lightning.settings.federation import FederationSettings


def parts_of(settings: FederationSettings) -> Iterator[Part]:
    """Yield the parts of a federation, which say what they need and what they take away."""
    yield from (settings.strategy, settings.route)
    yield from settings.transforms
    yield from settings.active_options
    yield from (part for part in (settings.pool, settings.asynchronous, settings.local.privacy) if part is not None)


def check_federation(settings: FederationSettings, trainer: Trainer, data: FederatedDataModule) -> None:
    """Refuse settings that do not fit each other, the Trainer or the data.

    Raises:
        ConfigurationError: with the settings that do not fit, and what to change.
    """
    check_parts(parts_of(settings))
    check_incomplete(settings, trainer)
    check_clock(settings, data, trainer)
    limits_steps = settings.asynchronous is None  # otherwise slow clients end later
    availability = settings.availability if limits_steps else replace(settings.availability, slow=0.0)
    for part in (settings.route, settings.strategy):
        check_state(part)
        check_cohort(part, settings.local, data.num_clients, settings.clients_per_round)
        check_faults(settings.faults, availability, part, settings.local, data.num_clients, settings.clients_per_round)
    check_strategy(settings.strategy, settings.local, data, trainer)
    check_privacy(settings, data)
    check_route(settings.route, settings.strategy, data, trainer)
    check_server_optimizer(settings.strategy, settings.route, settings.server_optimizer)
