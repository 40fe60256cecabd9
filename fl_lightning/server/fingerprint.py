"""Collect the fingerprint of a run: every setting that can change its result, as plain values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.optim import Optimizer
from torch.utils.data import RandomSampler, TensorDataset

from fl_lightning.clients.module_copy import client_copy
from fl_lightning.clients.trainer import inner_trainer
from fl_lightning.compat.lightning import configured_parts
from fl_lightning.compat.torch import chained_schedules
from fl_lightning.core.option import OptionSettings
from fl_lightning.core.resume_rule import rule_of
from fl_lightning.data.content import content, loader_content
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.samplers import is_plain
from fl_lightning.functional.description import CLASS, Describer, qualified_name
from fl_lightning.functional.digest import digest
from fl_lightning.functional.seeding import isolated_rng
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import LocalTraining, resolve_precision

_WHERE_AND_HOW = re.compile(r"(num_workers|pin_memory|persistent_workers|prefetch_factor|.*(root|dir|path|folder))$")
"""The attributes of a user's datamodule that say how and where it reads; the data themselves are compared instead."""


def fingerprint(
    owner: FederationSettings, trainer: Trainer, module: LightningModule, data: FederatedDataModule, server: Optimizer
) -> tuple[dict[str, Any], list[str]]:
    """Describe a run before its first round, without changing random states or communicating between ranks.

    Args:
        owner: the federation's settings.
        trainer: the user's Trainer.
        module: the user's module, as it was before the federation took it over.
        data: the data, set up for a fit.
        server: a new optimizer of the server.

    Returns:
        The settings by section, and the names of those that cannot be compared.
    """
    describer = Describer(_is_free)
    with isolated_rng(0, torch.device("cpu")):
        federation = describer.describe(owner, "federation")
        federation["server_optimizer"] = _optimizer(describer, server, "federation.server_optimizer")
        device = trainer.strategy.root_device
        federation["local"]["precision"] = resolve_precision(owner.local, str(trainer.precision), device)
        settings = {
            "federation": federation,
            "trainer": _trainer(describer, trainer),
            "data": _data(describer, data),
            **_examples(describer, data, trainer),
            **_model(describer, client_copy(module), owner.local, data, trainer),
        }
    return settings, [name for name in describer.unseen if name not in settings]


def _is_free(value: object, kind: type, argument: str) -> bool:
    """Return whether no resumed run is compared by an argument of an object."""
    of_option = value.free_on_resume() if isinstance(value, OptionSettings) else ()
    return argument == "server_optimizer" or argument in of_option or rule_of(kind, argument) == "free"


def _trainer(describer: Describer, trainer: Trainer) -> dict[str, Any]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    changing = [callback for callback in callbacks if getattr(callback, "changes_training", False)]
    return {
        "precision": str(trainer.precision),
        "limit_val_batches": describer.describe(trainer.limit_val_batches, "trainer.limit_val_batches", exact=True),
        "check_val_every_n_epoch": trainer.check_val_every_n_epoch,
        "callbacks": describer.describe(changing, "trainer.callbacks"),
    }


def _data(describer: Describer, data: FederatedDataModule) -> dict[str, Any]:
    described: dict[str, Any] = describer.describe(data, "data")
    if not data.has_one_set:  # the clients have loaders of their own, maybe at sites; their names and sizes are compared
        return described
    source, base = data.client_datasets.source, described["datamodule"]
    if not base[CLASS].startswith("fl_lightning."):
        base = {name: value for name, value in base.items() if not _WHERE_AND_HOW.match(name)}
    loader: dict[str, Any] = {"batch_size": source.batch_size, "shuffle": isinstance(source.sampler, RandomSampler)}
    loader |= {"drop_last": source.drop_last, "collate_fn": source.collate_fn}
    if not is_plain(source.sampler):
        loader["sampler"] = source.sampler
    if type(source.dataset) is not TensorDataset:  # random transforms draw different numbers in workers
        loader["has_workers"] = source.num_workers > 0
    return described | {"datamodule": base | describer.describe(loader, "data.datamodule")}


def _examples(describer: Describer, data: FederatedDataModule, trainer: Trainer) -> dict[str, Any]:
    found = {}
    if data.has_one_set:
        found = {"data.training_examples": content(data.client_datasets.source.dataset), "data.persons": _persons(data)}
    if data.has_validation_set and data.server_set == "datamodule" and trainer.limit_val_batches:
        found["data.validation_examples"] = loader_content(data.datamodule.val_dataloader())
    describer.unseen += [f"{name} except their number" for name, (_, complete) in found.items() if not complete]
    return {name: text for name, (text, _) in found.items()}


def _persons(data: FederatedDataModule) -> tuple[str, bool]:
    """Describe whose the examples are, on which parts and privacy depend."""
    persons = data.splits.persons
    if persons is None:
        return "each example is a person of its own", True
    return f"{len(persons)} examples of {len(torch.unique(persons))} persons ({digest([persons])})", True


def _model(
    describer: Describer, client: LightningModule, local: LocalTraining, data: FederatedDataModule, trainer: Trainer
) -> dict[str, Any]:
    """Return the settings of the module, and of the optimizers and schedulers that it configures.

    Args:
        client: a copy of the user's module, which is discarded.
    """
    settings = {"model": describer.describe(client, "model")}
    device = trainer.strategy.root_device
    precision = resolve_precision(local, str(trainer.precision), device)
    run = inner_trainer(device, [], precision=precision, accumulate_grad_batches=local.accumulate_grad_batches)
    batch_size = 1 if not data.has_one_set else data.client_datasets.source.batch_size or 1
    run.fit_loop.max_batches = local.batches(math.ceil(int(data.indices.sizes.max()) / batch_size))
    run.planned = local.max_epochs, local.max_steps
    run.datamodule = data.datamodule
    client.trainer = run
    try:
        answer: Any = client.configure_optimizers() or []
        optimizers, schedulers, _ = configured_parts(answer)
    except Exception as error:  # real errors show up in training; some modules need things that do not exist yet
        describer.unseen.append(f"the result of 'configure_optimizers' ({error})")
        return settings
    for name, found in (("model.optimizer", optimizers), ("model.lr_scheduler", schedulers)):
        describe = _optimizer if name == "model.optimizer" else _schedule
        each = [describe(describer, one, name) for one in found]
        settings[name] = each[0] if len(each) == 1 else each
    return settings


def _optimizer(describer: Describer, optimizer: Optimizer, where: str) -> dict[str, Any]:
    """Return the optimizer's class and the settings of its groups, without a list for a single group."""
    without = ("params", "param_names")
    groups = [{name: value for name, value in group.items() if name not in without} for group in optimizer.param_groups]
    settings = groups[0] if len(groups) == 1 else {"groups": groups}
    return {CLASS: qualified_name(type(optimizer)), **describer.describe(settings, where)}


def _schedule(describer: Describer, schedule: Any, where: str) -> dict[str, Any]:
    """Return the scheduler's class and settings, those of its chained schedulers, and when it steps."""
    config = dict(schedule) if isinstance(schedule, Mapping) else {"scheduler": schedule}
    scheduler = config.pop("scheduler")
    own = {name: value for name, value in vars(scheduler).items() if not name.startswith("_") and name != "optimizer"}
    parts = chained_schedules(scheduler)
    chained = {"schedulers": [_schedule(describer, part, where) for part in parts]} if parts else {}
    return {CLASS: qualified_name(type(scheduler)), **describer.describe({**own, **config}, where), **chained}
