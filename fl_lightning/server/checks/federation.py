"""Check the settings of a federation against each other, the Trainer and the data, before a fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.core.capabilities import Capability, Need, Removal, Unassuming, check_parts
from fl_lightning.core.federation import parts_of
from fl_lightning.core.option import own_cohort
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.functional.scheduling import cohort_size
from fl_lightning.server.checks.compatibility import (
    check_cohort,
    check_faults,
    check_route,
    check_server_optimizer,
    check_state,
    check_strategy,
)
from fl_lightning.server.checks.incomplete import check_incomplete
from fl_lightning.settings.federation import FederationSettings


@dataclass(frozen=True)
class Cohorts(Unassuming):
    """State what rounds need that draw a cohort, and that they wait for it.

    Args:
        per_round: the size of a cohort, a number or a fraction of all clients.
        drawn: whether rounds draw cohorts.
    """

    per_round: int | float
    drawn: bool

    def needs(self) -> Iterator[Need]:
        """Return what a size of cohorts needs."""
        if self.per_round != 1.0:
            what = f"'federation.clients_per_round' ({self.per_round}) is the size of the cohort that each round draws"
            yield Need(Capability.COHORTS, what, "Remove it")

    def removes(self) -> Iterator[Removal]:
        """Return what rounds do not do that wait."""
        if self.drawn:
            yield Removal(Capability.OWN_PACE, "each round waits for all clients of its cohort", "use FedAvg")


def round_size(settings: FederationSettings, num_clients: int) -> int:
    """Return the number of clients in a round: of the cohort, or as an option plans it.

    Raises:
        ConfigurationError: if it exceeds the number of clients.
    """
    own = own_cohort(settings.active_options, num_clients)
    return cohort_size(num_clients, settings.clients_per_round) if own is None else own


def check_federation(settings: FederationSettings, trainer: Trainer, data: FederatedDataModule) -> None:
    """Refuse settings that do not fit each other, the Trainer or the data.

    Raises:
        ConfigurationError: with the settings that do not fit, and what to change.
    """
    drawn = own_cohort(settings.active_options, data.num_clients) is None
    check_parts([*parts_of(settings), Cohorts(settings.clients_per_round, drawn)])
    check_incomplete(settings, trainer)
    size = round_size(settings, data.num_clients)
    for part in (settings.route, settings.strategy):
        check_state(part)
        check_cohort(part, size, data.num_clients)
        check_faults(settings.faults, part, settings.local, size)
    check_strategy(settings.strategy, settings.local, data, trainer)
    for option in settings.active_options:
        option.check_settings(settings)
    check_route(settings.route, settings.strategy, data, trainer)
    check_server_optimizer(settings.strategy, settings.route, settings.server_optimizer)


def warn_unprotected(settings: FederationSettings) -> None:
    """Warn if a training without a federation leaves out settings that were to protect the clients."""
    unused = [option.title for option in settings.active_options if option.protects]
    if unused:
        rank_zero_warn(
            f"'federation.enabled' is false, so the module trains on all examples in one place, and {' and '.join(unused)} "
            "protects nothing. Set 'federation.enabled' to true to train with it."
        )
