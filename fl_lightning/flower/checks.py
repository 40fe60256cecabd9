"""Tell what cannot work over a network, and what differs, for server and site."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import Part
from fl_lightning.routes.mocha import Mocha
from fl_lightning.strategies.focus import Focus
from fl_lightning.strategies.kmeans import FederatedKMeans


def not_at_sites(settings: Any) -> dict[str, bool]:
    """Return what sites do not do for any server, by name, and whether the settings ask for it; sites check it themselves."""
    local, strategy = settings.local, settings.strategy
    return {
        "federation.local.callbacks": bool(local.callbacks),
        f"federation.local.engine: {local.engine}": local.engine == "stacked",
        f"federation.local.compile: {local.compile}": bool(local.compile),
        **{name: True for option in settings.active_options for name in option.not_at_sites()},
        "federation.route: Mocha": isinstance(settings.route, Mocha),
        f"federation.strategy: {type(strategy).__name__}": isinstance(strategy, FederatedKMeans | Focus),
    }


def standardizes(datamodule: Any) -> bool:
    """Return whether a datamodule scales features by the mean and deviation of its own rows."""
    return bool(getattr(datamodule, "standardize", False))


def refuse_parts(parts: Mapping[str, Any]) -> None:
    """Refuse a site's datamodules that scale features by its own rows, or whose tables have different schemas.

    Args:
        parts: the datamodules by their setting in data.yaml; None for a part that is not set.

    Raises:
        ConfigurationError: naming the setting.
    """
    for name, datamodule in parts.items():
        if standardizes(datamodule):
            raise ConfigurationError(
                f"'{name}' has 'standardize: true', which scales by this site's own rows, while the other sites and the "
                "server scale by theirs. Set it to false, and let the model scale: Standardized uses the rows of all sites."
            )
        if datamodule is not None and digest_of_schema(datamodule) != digest_of_schema(parts["datamodule"]):
            raise ConfigurationError(f"'schema' of '{name}' and of 'datamodule' differ in data.yaml. Set both to one file.")


def evaluated_parts(settings: Any) -> list[tuple[str, Part]]:
    """Return the parts of each client's examples on which models are evaluated, each after the setting that asks for it."""
    strategy, route = settings.strategy, settings.route
    found: list[tuple[str, Part, bool]] = [
        (f"federation.strategy {type(strategy).__name__}", "validation", strategy.local_metric is not None),
        (f"the losses that {type(strategy).__name__} reads", "training", strategy.global_metric is not None),
        (f"federation.route {type(route).__name__}", "training", route.reads_data and not route.needs_labels),
    ]
    of_options = [(f"federation.{option.setting}", one.part) for option in settings.active_options for one in option.measures()]
    return [(name, part) for name, part, used in found if used] + of_options


# ---------------------------------------------------------------- names of classes and features


def digest_of_names(names: Sequence[str] | None) -> str:
    """Return a digest of names in their order; empty without names."""
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16] if names else ""


def digest_of_schema(datamodule: Any) -> str:
    """Return the digest of the ``schema`` of a datamodule; empty if it has none."""
    digest = getattr(getattr(datamodule, "schema", None), "digest", None)
    return str(digest()) if callable(digest) else ""
