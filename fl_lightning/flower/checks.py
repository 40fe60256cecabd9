"""Refuse by name, before anything is sent, what cannot work over a network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ClientInfo
from fl_lightning.routes.mocha import Mocha
from fl_lightning.settings.attackers import Attackers
from fl_lightning.settings.availability import Availability
from fl_lightning.strategies.focus import Focus
from fl_lightning.strategies.kmeans import FederatedKMeans
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy


def refuse_simulated(settings: Any, trainer: Trainer, data: Any) -> None:
    """Refuse what only a simulation can do.

    Args:
        settings: the federation's settings.
        trainer: the user's Trainer.
        data: the server's datamodule.

    Raises:
        ConfigurationError: naming the setting.
    """
    local, strategy, route = settings.local, settings.strategy, settings.route
    noise = [t for t in settings.transforms if isinstance(t, ClientPrivacy) and t.noise_seed is not None]
    seeded = bool(noise) or (local.privacy is not None and local.privacy.noise_seed is not None)
    refused = {
        "federation.attackers": settings.attackers != Attackers(),
        "federation.availability": settings.availability != Availability(),
        "federation.asynchronous": settings.asynchronous is not None,
        "federation.clock": settings.clock is not None,
        "federation.secure_aggregation": settings.secure_aggregation is not None,
        "federation.local.callbacks": bool(local.callbacks),
        f"federation.local.engine: {local.engine}": local.engine in ("stacked", "fastest"),
        f"federation.local.compile: {local.compile}": bool(local.compile),
        "noise_seed": seeded,
        "federation.route: Mocha": isinstance(route, Mocha),
        f"federation.strategy: {type(strategy).__name__}": isinstance(strategy, FederatedKMeans | Focus),
        "data.public_share": bool(data.public_share),
        "data.feature_noise": bool(data.feature_noise),
        "data.rebalancing": data.rebalancing is not None,
        "data.server_set: clients": data.server_set == "clients",
        "several ranks (trainer.devices, trainer.num_nodes)": trainer.world_size > 1,
        "trainer.fast_dev_run": bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
    }
    chains = bool(settings.transforms) and any(type(t).receive is not Transform.receive for t in settings.transforms)
    refused |= {f"federation.transforms on {type(route).__name__}": chains and route.passes_models}
    named = [name for name, found in refused.items() if found]
    if named:
        raise ConfigurationError(
            f"'federation.pool' is {type(settings.pool).__name__}, so clients train at sites of their own. This does not work "
            f"there: {', '.join(named)}. Remove it, or simulate the clients without 'federation.pool'."
        )


def digest_of_names(names: Sequence[str] | None) -> str | None:
    """Return a digest of the names of features in their order; None without names."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16] if names else None


def require_features(infos: Sequence[ClientInfo], own: str | None) -> None:
    """Refuse sites whose features have other names than the others', or another order.

    Args:
        infos: what the sites told.
        own: the digest of the names of the server's features; None without names.

    Raises:
        ConfigurationError: naming the sites.
    """
    wanted = own if own is not None else next((info.features for info in infos if info.features is not None), None)
    different = [info.name for info in infos if info.features is not None and info.features != wanted]
    if different:
        others = "the server's" if own is not None else f"those of site {infos[0].name}"
        raise ConfigurationError(
            f"The columns of {', '.join(different)} have other names than {others}, or another order, so a feature would be "
            "taken for another one. Give the tables of all sites the same columns in the same order."
        )


def require_parts(settings: Any, infos: Sequence[ClientInfo], absent: int = 0) -> None:
    """Refuse settings that need examples or counts which a site does not have or does not tell.

    Args:
        settings: the federation's settings.
        infos: what the sites told.
        absent: the number of sites that are absent.

    Raises:
        ConfigurationError: naming the setting and the sites.
    """
    if absent and settings.client_evaluation.active:
        raise ConfigurationError(
            "'federation.client_evaluation' needs all sites, but some are absent. Remove 'federation.pool.min_sites', or the "
            "evaluation."
        )
    needs = {
        "validation": ("federation.strategy", settings.strategy.local_metric is not None, "num_validation"),
        "test": ("federation.client_evaluation", settings.client_evaluation.active, "num_test"),
    }
    for part, (name, needed, counted) in needs.items():
        lacking = [info.name for info in infos if not getattr(info, counted)]
        if needed and lacking:
            raise ConfigurationError(
                f"'{name}' needs a {part} part at each site. Without one: {', '.join(lacking)}. Set 'client_{part}' or "
                f"'{part}' in the site's data.yaml."
            )
    different = next((info for info in infos if info.classes != infos[0].classes), None)
    if different is not None:
        raise ConfigurationError(
            f"Site {infos[0].name} numbers the classes as {_listed(infos[0])}, but site {different.name} as "
            f"{_listed(different)}, so the same number means different classes. Give all sites examples of every class."
        )
    silent = [info.name for info in infos if info.label_counts is None]
    if settings.route.needs_labels and silent:
        raise ConfigurationError(
            f"'federation.route' is {type(settings.route).__name__}, which needs label counts. Sites that do not "
            f"report them: {', '.join(silent)}. A site can set 'policy.label_counts' to true in its data.yaml."
        )


def _listed(info: ClientInfo) -> str:
    return "no names" if info.classes is None else f"{', '.join(info.classes[:20])}"
