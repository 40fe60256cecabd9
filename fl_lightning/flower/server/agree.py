"""Refuse, before anything is sent or trained, what does not work over a network or means something different at a site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.checks import digest_of_names, evaluated_parts, not_at_sites, standardizes
from fl_lightning.messages import ClientInfo
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
    route = settings.route
    refused = not_at_sites(settings) | {
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


def require_same(
    infos: Sequence[ClientInfo], schema: str, classes: Sequence[str] | None = None, columns: Sequence[str] | None = None
) -> None:
    """Refuse sites whose classes, columns or schemas differ from the server's, or from each other's if it has none.

    Args:
        infos: what the sites told.
        schema: the digest of the server's schema; empty without one, and then sites may have none.
        classes: the names of the server's classes; None without any.
        columns: the names of its columns; None without any.

    Raises:
        ConfigurationError: naming the sites.
    """
    for what, names, own, digests, remedy in (
        ("classes", classes, digest_of_names(classes), [one.digests[0] for one in infos], "Set 'classes' of all to one list."),
        ("columns", columns, digest_of_names(columns), [one.digests[1] for one in infos], "Give all one list."),
        (
            "schemas (or none)",
            None,
            schema,
            [one.schema or (schema and "none") for one in infos],
            "Send the file that 'data.datamodule.schema' names to these sites; they set it as 'schema' in their data.yaml.",
        ),
    ):
        usual = own or next(filter(None, digests), "")
        other = [info.name for info, digest in zip(infos, digests, strict=True) if digest not in ("", usual)]
        if other:
            than = "the server" if own else infos[digests.index(usual)].name
            those = f" The server's are {', '.join(names)[:400]}." if names else ""
            same = f"have different {what}, so the same number would not mean the same"
            raise ConfigurationError(f"{', '.join(other)} and {than} {same}.{those} {remedy}")


def require_parts(settings: Any, infos: Sequence[ClientInfo], absent: int = 0, unseen: Sequence[ClientInfo] = ()) -> None:
    """Refuse settings that need all sites, or examples that a site does not have. Sites refuse what they do not allow.

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
    for name, part in evaluated_parts(settings):
        asked = [*infos, *unseen] if part == "test" else infos
        size = "num_examples" if part == "training" else f"num_{part}"
        lacking = [info.name for info in asked if not getattr(info, size)]
        if lacking:
            raise ConfigurationError(
                f"'{name}' needs a {part} part at each site. Without one: {', '.join(lacking)}. Set 'client_{part}' or "
                f"'{part}' in the site's data.yaml."
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
