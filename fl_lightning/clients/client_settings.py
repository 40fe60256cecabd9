"""Select the settings of a federation that clients need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_lightning.clients.client_evaluators import STRATEGY_METRIC, Metrics
from fl_lightning.core.capabilities import Capability, Need, Part, need_of
from fl_lightning.core.option import OptionSettings
from fl_lightning.rules import ClientRule, ProximalRule, PullRule
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.transforms.base import Transform


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Hold the settings of a federation that clients need.

    Attributes:
        local: the settings of the local training.
        strategy: the strategy.
        rule: the client's half of the strategy, or None.
        metrics: the metrics that clients compute, by role.
        transforms: the transforms of their updates, in order.
        options: the options in use.
        faults: how to handle clients that fail.
        seed: the seed of the federation.
        num_clients: the number of clients in the federation.
        fixed: the need of a part at the clients that training changes no tensor without a gradient; None without one.
    """

    local: LocalTraining = field(default_factory=LocalTraining)
    strategy: Strategy = field(default_factory=FedAvg)
    rule: ClientRule | None = None
    metrics: Metrics = field(default_factory=dict)
    transforms: Sequence[Transform] = ()
    options: Sequence[OptionSettings] = ()
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    num_clients: int = 1
    fixed: Need | None = None

    @property
    def rules(self) -> list[ClientRule]:
        """Return the rules in order: the proximal term, a route's pull, the strategy's own rule."""
        mu = self.local.proximal_mu
        return [*([ProximalRule(mu)] if mu else []), PullRule(), *([self.rule] if self.rule is not None else [])]


def client_metrics(settings: FederationSettings) -> Metrics:
    """Return the metrics that are computed on clients' examples, by role."""
    strategy, route = settings.strategy, settings.route
    found: dict[str, tuple[Any, str]] = {
        "start": (strategy.global_metric, STRATEGY_METRIC),
        "sent": (strategy.local_metric, STRATEGY_METRIC),
        "route": (getattr(route, "metric", None), "federation.route.metric"),
    }
    for option in settings.active_options:
        found |= {one.role: (one.metric, f"federation.{option.setting}.metric") for one in option.measures()}
    return {role: pair for role, pair in found.items() if pair[0] is not None}


def client_settings(settings: FederationSettings, num_clients: int) -> ClientSettings:
    """Return the settings of a federation that clients need."""
    here: list[Part] = [*settings.transforms, *settings.active_options]
    return ClientSettings(
        local=settings.local,
        strategy=settings.strategy,
        rule=settings.strategy.client_rule(),
        metrics=client_metrics(settings),
        transforms=settings.transforms,
        options=settings.active_options,
        faults=settings.faults,
        seed=settings.seed,
        num_clients=num_clients,
        fixed=need_of(here, Capability.FIXED_TENSORS),
    )
