"""Read what clients need from the settings of a federation."""

from __future__ import annotations

from typing import Any

from fl_lightning.clients.client_evaluators import STRATEGY_METRIC, Metrics
from fl_lightning.core.capabilities import Capability, Need, need_of
from fl_lightning.rules import ClientRule, ProximalRule, PullRule
from fl_lightning.settings.federation import FederationSettings


def client_rules(settings: FederationSettings) -> list[ClientRule]:
    """Return the rules of the clients' training in order: the proximal term, a route's pull, the strategy's own rule."""
    mu, rule = settings.local.proximal_mu, settings.strategy.client_rule()
    return [*([ProximalRule(mu)] if mu else []), PullRule(), *([rule] if rule is not None else [])]


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


def fixed_at_clients(settings: FederationSettings) -> Need | None:
    """Return the need of a part at the clients that training changes no tensor without a gradient; None without one."""
    return need_of([*settings.transforms, *settings.active_options], Capability.FIXED_TENSORS)
