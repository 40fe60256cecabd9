"""Refuse by name, before anything is sent, what cannot work over a network."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.errors import ConfigurationError
from fl_lightning.messages import ClientInfo, NameComparison, Part
from fl_lightning.routes.mocha import Mocha
from fl_lightning.strategies.focus import Focus
from fl_lightning.strategies.kmeans import FederatedKMeans
from fl_lightning.transforms.base import Transform


def refuse_simulated(settings: Any, trainer: Trainer, data: Any) -> None:
    """Refuse what only a simulation can do.

    Args:
        settings: the federation's settings.
        trainer: the user's Trainer.
        data: the server's datamodule.

    Raises:
        ConfigurationError: naming the setting.
    """
    local, route = settings.local, settings.route
    refused = not_at_sites(settings) | {
        "federation.local.callbacks": bool(local.callbacks),
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
    if standardizes(data.datamodule):
        raise ConfigurationError(
            "'data.datamodule.standardize' is true, but each site would scale by its own rows, and the server by its own. Set "
            "it to false here and in the sites' data.yaml, and let the model scale: Standardized uses the rows of all sites."
        )


def not_at_sites(settings: Any) -> dict[str, bool]:
    """Return what sites do not do for any server, by name, and whether the settings ask for it; sites check it themselves."""
    local, strategy = settings.local, settings.strategy
    return {
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


def compared(own: Sequence[str] | None, servers: Sequence[str] | None) -> NameComparison | None:
    """Compare a site's names with those that the server sent; None if one side has no names."""
    if own is None or servers is None:
        return None
    missing = tuple(name for name in servers if name not in own)
    further = sum(name not in servers for name in own)
    moved = next((name for name, other in zip(servers, own, strict=False) if name != other), "")
    return NameComparison(missing, further, "" if missing or further else moved)


def digest_of_schema(datamodule: Any) -> str:
    """Return the digest of the ``schema`` of a datamodule; empty if it has none."""
    digest = getattr(getattr(datamodule, "schema", None), "digest", None)
    return str(digest()) if callable(digest) else ""


def require_schema(infos: Sequence[ClientInfo], own: str) -> None:
    """Refuse sites whose tables have another schema than the server's, or than each other's without one there.

    Args:
        infos: what the sites told.
        own: the digest of the server's schema; empty without one.

    Raises:
        ConfigurationError: naming the sites.
    """
    usual = own or next((info.schema for info in infos if info.schema), "")
    other = [info.name for info in infos if info.schema != usual and (own or info.schema)]
    if usual and other:
        lacking = [info.name for info in infos if not info.schema and info.name in other]
        without = f" ({', '.join(lacking)} without any)" if lacking and lacking != other else ""
        than = "the server" if own else f"site {next(info.name for info in infos if info.schema)}"
        what = "no schema" if lacking == other else "another schema"
        raise ConfigurationError(
            f"The tables of {', '.join(other)} have {what}{without}, so the same number would not mean the same as at {than}. "
            "Send the file that 'data.datamodule.schema' names to these sites; they set it as 'schema' of the datamodule in "
            "data.yaml, and describe their own exports with 'columns' and 'csv'."
        )


def require_names(infos: Sequence[ClientInfo], classes: Sequence[str] | None, features: Sequence[str] | None) -> None:
    """Refuse sites whose classes or features have other names than the server's, or than each other's without names there.

    Args:
        infos: what the sites told.
        classes: the names of the server's classes; None without names.
        features: the names of its features; None without names.

    Raises:
        ConfigurationError: naming the sites, and the names that the server sent.
    """
    problems = []
    for what, names, remedy in (
        (
            "classes",
            classes,
            "Set 'classes' of the site's datamodule to the server's list; a site may lack examples of a class.",
        ),
        ("columns", features, "Give the tables of all sites the server's columns in the same order."),
    ):
        kind = "classes" if what == "classes" else "features"
        told = [text for info in infos if (text := _difference(getattr(info, kind), what, info.name))]
        if told and names is not None:
            problems.append(f"{' '.join(told)} The server's {what} are {_listed(names)}. {remedy}")
        if names is None:
            index = 0 if kind == "classes" else 1
            named = [info for info in infos if info.digests[index]]
            other = [info.name for info in named if info.digests[index] != named[0].digests[index]]
            if other:
                problems.append(
                    f"The {what} of {', '.join(other)} have other names than those of site {named[0].name}, or another order. "
                    + remedy.replace("the server's list", "one list").replace("the server's columns", "the same columns")
                )
    if problems:
        raise ConfigurationError(
            " ".join(problems)
            + " Otherwise the same number would mean different classes, or a feature would be taken for another."
        )


def _difference(found: NameComparison | None, what: str, site: str) -> str:
    if found is None or found.equal:
        return ""
    said = [f"lacks the server's {what} {_listed(found.missing)}"] if found.missing else []
    said += [f"has {found.further} {what} that the server lacks"] if found.further else []
    said += [f"has the same {what} in another order, from '{found.moved}' on"] if found.moved else []
    return f"Site {site} {' and '.join(said)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def require_fitting_classes(module: LightningModule, classes: Sequence[str] | None) -> None:
    """Refuse a model with fewer outputs than there are classes, before sites load or build anything for it.

    Raises:
        ConfigurationError: with both numbers.
    """
    outputs = getattr(module, "num_classes", None)
    if classes is not None and isinstance(outputs, int) and outputs < len(classes):
        raise ConfigurationError(
            f"The data have {len(classes)} classes ({_listed(classes)}), but 'num_classes' of the model is {outputs}. Set "
            f"'model.init_args.num_classes' to {len(classes)}."
        )


# ---------------------------------------------------------------- what sites have


def require_parts(settings: Any, infos: Sequence[ClientInfo], absent: int = 0, unseen: Sequence[ClientInfo] = ()) -> None:
    """Refuse settings that need examples, evaluations or counts which a site does not have, allow or tell.

    Args:
        settings: the federation's settings.
        infos: what the sites told.
        absent: the number of sites that are absent.
        unseen: what the held-out sites told, which are only tested.

    Raises:
        ConfigurationError: naming the setting and the sites.
    """
    fixed = [option.setting for option in settings.active_options if not option.clients_may_join]
    if absent and fixed:
        raise ConfigurationError(
            f"'federation.{fixed[0]}' needs all sites, but some are absent. Remove 'federation.pool.min_sites', or "
            f"'federation.{fixed[0]}'."
        )
    sizes: dict[Part, Callable[[ClientInfo], int]] = {
        "training": lambda info: info.num_examples,
        "validation": lambda info: info.num_validation,
        "test": lambda info: info.num_test,
    }
    for name, part in evaluated_parts(settings):
        asked = [*infos, *unseen] if part == "test" else infos
        lacking = [info.name for info in asked if not sizes[part](info)]
        if lacking:
            raise ConfigurationError(
                f"'{name}' needs a {part} part at each site. Without one: {', '.join(lacking)}. Set 'client_{part}' or "
                f"'{part}' in the site's data.yaml."
            )
        refusing = [info.name for info in asked if part not in info.evaluations]
        if refusing:
            raise ConfigurationError(
                f"'{name}' evaluates models on each site's {part} examples. Sites that do not allow it: {', '.join(refusing)}. "
                f"If their staff agrees, they add 'evaluation/{part}' to 'policy.tells' in data.yaml."
            )
    silent = [info.name for info in infos if info.label_counts is None]
    if settings.route.needs_labels and silent:
        raise ConfigurationError(
            f"'federation.route' is {type(settings.route).__name__}, which needs label counts. Sites that do not "
            f"report them: {', '.join(silent)}. If its staff agrees, a site adds 'label_counts' to 'policy.tells' in data.yaml."
        )


def require_claims(infos: Sequence[ClientInfo], limit: int | dict[str, int] | None) -> None:
    """Refuse sites that claim more examples than the server's owner expects.

    Args:
        infos: what the sites told.
        limit: the most training examples of a site; by site's name, or for all of them; None for no limit.

    Raises:
        ConfigurationError: naming the sites and their claims.
    """
    if limit is None:
        return
    most = {info.name: limit.get(info.name, math.inf) if isinstance(limit, dict) else limit for info in infos}
    over = [f"{info.name} ({info.num_examples})" for info in infos if info.num_examples > most[info.name]]
    if over:
        raise ConfigurationError(
            f"These sites tell more training examples than 'federation.pool.max_examples' allows: {', '.join(over)}. Ask them, "
            "then raise the limit, or revoke the site."
        )
