"""The settings that a server sends to its sites as values, and the clients' half that a site builds from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import LightningModule

from fl_lightning.clients.client import Client
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.module_copy import client_copy
from fl_lightning.core.option import SitePlace, options_in
from fl_lightning.data.input_statistics import check_batch_norm
from fl_lightning.flower.checks import not_at_sites
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.limits import SiteLimits
from fl_lightning.flower.site.policy import Policy, most_threads
from fl_lightning.flower.site.questions import questions_at_site
from fl_lightning.flower.site.recipe import OPTIONS, Recipe, RefusedError
from fl_lightning.flower.site.store import covered, covers
from fl_lightning.functional.keyed_noise import OneTimeKey
from fl_lightning.functional.recycling import emptied
from fl_lightning.routes.base import Route
from fl_lightning.settings.local_training import FederationSettings, LocalTraining, Place, resolve_precision
from fl_lightning.settings.server import Faults
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform

SECTIONS = dict(strategy=Strategy, route=Route, local=LocalTraining, transforms=list[Transform], **OPTIONS, faults=Faults)
"""The settings under ``federation`` that a site needs, with their types."""

_VALUES: dict[str, type] = {
    **dict.fromkeys(("seed", "num_clients", "threads", "rounds"), int),
    **dict.fromkeys(("inference_mode", "logger", "trains"), bool),
    "numbers": tuple,
    "precision": str,
}


def check_contract(contract: Any, policy: Policy, client: int) -> None:
    """Refuse a contract before anything that it names is imported.

    Raises:
        RefusedError: naming the setting.
    """
    sections = contract.get("federation") if isinstance(contract, Mapping) else None
    expected = isinstance(sections, Mapping) and set(sections) == set(SECTIONS)
    if not expected or set(contract) != {"model", "federation", *_VALUES}:
        raise RefusedError("The server's settings do not have the expected sections. Install the same version on both sides.")
    for name, kind in _VALUES.items():
        if type(contract[name]) is not kind:
            raise RefusedError(f"The server's setting '{name}' must be of type {kind.__name__}.")
    numbers = contract["numbers"]  # of the sites' registration; those of held-out sites follow the others
    known = len(numbers) <= 10**6 and all(type(number) is int for number in numbers)
    if not (known and 0 <= client < len(numbers) and 0 < contract["num_clients"] <= len(numbers)):
        raise RefusedError("The server's number of clients is outside its range.")
    if not 1 <= contract["threads"] <= most_threads():
        raise RefusedError(
            f"The server's 'threads' is {contract['threads']}, but this site has {most_threads()} cores. Set "
            "'federation.local.threads' at the server."
        )
    if not isinstance(contract["model"], Mapping) or "class_path" not in contract["model"]:
        raise RefusedError("The server's 'model' must be a class with 'class_path'.")
    policy.recipe.check(contract["model"], "model")
    policy.recipe.check(sections, "federation")


def build(
    contract: Mapping[str, Any], data: SiteData, policy: Policy, device: torch.device, tell: Any, site: SitePlace | None = None
) -> tuple[LightningModule, Client, FederationSettings]:
    """Return a site's module, client and settings, from a contract that :func:`check_contract` accepted.

    Raises:
        RefusedError: if the values do not fit, or the settings are beyond the site's policy.
    """
    recipe, sections, limits = policy.recipe, contract["federation"], SiteLimits(policy)
    built = {name: recipe.build(sections[name], kind, f"federation.{name}") for name, kind in SECTIONS.items()}
    active = tuple(options_in(built.values()))
    values = {name: contract[name] for name in ("seed", "rounds", "trains")}
    owner: Any = SimpleNamespace(**built, **values, active_options=active)
    owner.transforms = owner.transforms or []
    noise = max((option.clients_noise(True) for option in active), default=0.0)
    if covers(contract) != covered(owner.trains, any(option.seals for option in active), noise):
        raise RefusedError(f"The update would not leave as the settings say: {covers(contract)}.")
    never = [name for name, asked in not_at_sites(owner).items() if asked]
    if never:
        raise RefusedError(f"Sites do not do this for any server: {', '.join(never)}.")
    limits.check_settings(owner, data.units)
    module = _module(recipe, contract["model"], limits)
    _require_classes(module, data)
    most = policy.machine.hours * 3600
    owner.faults = replace(owner.faults, deadline=min(most, owner.faults.deadline or most))
    torch.set_num_threads(contract["threads"])
    precision = resolve_precision(owner.local, contract["precision"], device)
    limits.check_module(owner.active_options, precision, module)
    there = {name: contract[name] for name in ("logger", "inference_mode")}
    place = Place(local=owner.local, precision=precision, device=device, **there, cohort=1, site=site, compresses=True)
    client = Client(
        module=client_copy(module).to(device),
        data=data,
        settings=owner,
        num_clients=contract["num_clients"],
        place=place,
        memory=ClientMemory(),
        secret=OneTimeKey(),  # the site's own: the server cannot know its noise, nor have it drawn again
        drop_single=check_batch_norm(module, data.whole),
        undoable=True,
        tell=tell,
    )
    emptied(module.parameters())  # from now on it is compared with what the server sends, by shapes alone
    client.questions = questions_at_site(policy)
    return module, client, owner


def _module(recipe: Recipe, model: Mapping[str, Any], limits: SiteLimits) -> LightningModule:
    """Return the module, of which a copy without memory is measured first: it could fill this machine."""
    try:
        with torch.device("meta"):
            limits.check_size(recipe.build(model, LightningModule, "model"))
    except RefusedError:
        raise
    except Exception:  # some modules compute with their weights when they are built; the next line then tells what is wrong
        pass
    module: LightningModule = recipe.build(model, LightningModule, "model")
    limits.check_size(module)
    return module


def _require_classes(module: LightningModule, data: SiteData) -> None:
    classes, outputs = data.names("classes"), getattr(module, "num_classes", None)
    if classes is not None and isinstance(outputs, int) and outputs < len(classes):
        raise RefusedError(f"The model has {outputs} classes, but this site's data have more. Raise the model's 'num_classes'.")
