"""Record every setting that can change the result of a run, and compare a checkpoint's before any of it is restored."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data import RandomSampler, TensorDataset

from fl_lightning.clients.module_copy import client_copy
from fl_lightning.clients.trainer import inner_trainer
from fl_lightning.compat.lightning import configured_parts
from fl_lightning.compat.torch import chained_schedules
from fl_lightning.core.capabilities import rule_of
from fl_lightning.core.option import OptionSettings
from fl_lightning.data.content import content, loader_content
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.samplers import is_plain
from fl_lightning.errors import CheckpointError
from fl_lightning.functional.description import BASE, CLASS, Describer, qualified_name
from fl_lightning.functional.digest import digest
from fl_lightning.functional.seeding import isolated_rng
from fl_lightning.server.run_state import FORMAT, RunState
from fl_lightning.settings.local_training import FederationSettings, LocalTraining, resolve_precision

_SERVER, _ON_PURPOSE = "federation.server_optimizer", "federation.checkpoints.resume_changed"
_EQUAL = "trainer or fabric"
"""The engines of local training whose results on a CPU are equal to the last bit."""
_LISTED, _SHOWN = 12, 160
"""The largest numbers of changes in a message, and of characters in a value."""


class Change(NamedTuple):
    """Describe what differs from a checkpoint.

    Attributes:
        name: the name of the setting, as the user types it.
        before: the value in the checkpoint.
        now: the value in this run.
        stays: whether a resumed run must not change it; otherwise it may with ``federation.checkpoints.resume_changed``.
    """

    name: str
    before: Any
    now: Any
    stays: bool


def refuse_federations(checkpoint: dict[str, Any], key: str) -> None:
    """Refuse to continue a federation's checkpoint without a federation.

    Args:
        checkpoint: the checkpoint as it was read.
        key: the key of the federation's state in the checkpoint.

    Raises:
        CheckpointError: if a federation wrote it, because the module's optimizer would get the server's learning rate.
    """
    if checkpoint.get("callbacks", {}).get(key):
        raise CheckpointError(
            "The checkpoint was written by a federation, but 'federation.enabled' is false, and the module's optimizer cannot "
            "continue from the server's. Set it to true, or load the weights into the module (load_from_checkpoint) and start "
            "without 'ckpt_path'."
        )


def refuse_changes(
    owner: FederationSettings, run: RunState, module: LightningModule, checkpoint: Mapping[str, Any], device: torch.device
) -> list[Change]:
    """Refuse a checkpoint that this federation cannot continue, and warn about threads, which change last bits.

    Args:
        owner: the federation's settings.
        run: the state of this run.
        module: the user's module.
        checkpoint: the checkpoint as it was read.
        device: the device on which clients train.

    Returns:
        The settings that differ, if ``federation.checkpoints.resume_changed`` allows it.

    Raises:
        CheckpointError: if the run cannot continue; it names all differences.
    """
    saved = checkpoint["callbacks"].get(owner.state_key)
    if not saved:
        raise CheckpointError(
            "The checkpoint was written without a federation, so its optimizer is not the server's. Load its weights into "
            "the module (load_from_checkpoint) and start without 'ckpt_path', or set 'federation.enabled' to false."
        )
    if saved.get("format") != FORMAT:
        raise CheckpointError(
            f"The checkpoint has format {saved.get('format')}, but this version of fl_lightning reads format {FORMAT}. "
            "Resume with the version that wrote it, or begin a new federation with its weights: load them into the module "
            "with 'load_from_checkpoint' before the fit."
        )
    now, options = run.terms(), owner.active_options
    fixed = [] if owner.strategy.clients_may_join else [f"'federation.strategy' {type(owner.strategy).__name__}"]
    fixed += [option.title for option in options if option.guarantee or not option.clients_may_join]
    found = [*differences("guarantees", saved["guarantees"], now["guarantees"], True)]
    if saved["sites"] and now["sites"]:
        found += other_sites(saved["sites"], now["sites"], bool(fixed))
    else:
        was, has = ({"number": one["clients"], "examples": one["partition"]} for one in (saved, now))
        found += differences("clients", was, has, True)
    found += differences("weights", *_weights(module, checkpoint["state_dict"]), True)
    before, own = (_with_engine(settings, device) for settings in (saved["settings"], run.settings))
    for name in (name for name in own if name in before):
        found += differences(name, before[name], own[name], False)
    found.sort(key=lambda change: not change.stays)
    if found and (found[0].stays or not owner.checkpoints.resume_changed):
        raise CheckpointError(f"The checkpoint was written with {in_words(found)}. {_advice(found, fixed)}")
    if saved["threads"] != torch.get_num_threads():
        threads = saved["threads"]
        warnings.warn(
            f"The checkpoint was written with {threads} threads per client, but this run has {torch.get_num_threads()}, so "
            f"the last bits of the result will differ. Set 'federation.local.threads' to {threads} to avoid this.",
            stacklevel=2,
        )
    return found


def differences(name: str, before: Any, now: Any, stays: bool) -> Iterator[Change]:
    """Yield the differences between two values of a setting.

    Objects of the same class are compared by the settings that both have, because another version of torch may add some.

    Args:
        name: the name of the setting.
        before: the value in the checkpoint.
        now: the value in this run.
        stays: whether a resumed run must not change it. The classes of objects say so for their own arguments.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.get(CLASS) == now.get(CLASS):
        kind = now.get(BASE, now.get(CLASS))
        for key in {**now, **before}:
            if kind is None:
                yield from differences(f"{name}.{key}", before.get(key, "nothing"), now.get(key, "nothing"), stays)
            elif key in before and key in now:
                yield from differences(f"{name}.{key}", before[key], now[key], rule_of(kind, key) == "stays")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for position, values in enumerate(zip(before, now, strict=True)):
            yield from differences(f"{name}.{position}", *values, stays)
    elif before != now or type(before) is not type(now):
        yield Change(name, before, now, stays)


def other_sites(before: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]], fixed: bool) -> Iterator[Change]:
    """Yield the differences between the sites of a checkpoint and of a run: a number belongs to a site for ever.

    A site without examples was never online: its examples become known later.

    Args:
        before: name and number of training examples of each site in the checkpoint, in the order of their numbers.
        now: those of this run.
        fixed: whether no site may join, with a further number.
    """
    for number, (old, new) in enumerate(zip_longest(before, now)):
        joins = old is None and not fixed
        known = old and new and old[0] == new[0] and (old[1] == new[1] or not (old[1] and new[1]))
        if not (joins or known):
            was, has = ("nothing" if site is None else f"{site[0]} with {site[1]} examples" for site in (old, new))
            yield Change(f"site {number}", was, has, True)


def _with_engine(settings: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the settings with one name for all engines with the same bits, also for ``auto``, which chooses from these."""
    federation, local = settings["federation"], settings["federation"]["local"]
    engine = local["engine"]
    if device.type == "cpu" and engine != "stacked":
        engine = _EQUAL
    return settings | {"federation": federation | {"local": local | {"engine": engine}}}


def _weights(module: LightningModule, saved: dict[str, Any]) -> tuple[Any, Any]:
    """Return the known shapes of the weights in a checkpoint and in the module, by name.

    Modules with their own rules for loading weights (``strict_loading``, ``on_load_checkpoint``) are left to Lightning.
    """
    if not module.strict_loading or type(module).on_load_checkpoint is not LightningModule.on_load_checkpoint:
        return {}, {}
    both = saved, module.state_dict()
    # extra state has no shape, and some parameters have no values before the first batch
    unknown = {name for own in both for name, w in own.items() if not isinstance(w, Tensor) or is_lazy(w) or not w.numel()}
    before, now = ({name: tuple(w.shape) for name, w in own.items() if name not in unknown} for own in both)
    return before, now


def in_words(found: Sequence[Change]) -> str:
    """List what differs, with both values."""
    listed = [f"'{change.name}' {_shown(change.before)}, but this run has {_shown(change.now)}" for change in found[:_LISTED]]
    return "; ".join([*listed, *([f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else [])])


def _advice(found: Iterable[Change], fixed: Sequence[str]) -> str:
    """Say what to do about what differs.

    Args:
        found: what differs.
        fixed: the settings that need the same sites in all rounds.
    """
    again = "or start again without 'ckpt_path'."
    names = [change.name for change in found if change.stays]
    if not names:
        return f"Resume with the same settings, set '{_ON_PURPOSE}' to true to change them on purpose, {again}"
    joining = f" With {' and '.join(fixed)}, all sites must take part from the first round on." if fixed else ""
    hints = {
        "guarantees": "No single epsilon covers both.",
        "clients": "Clients follow from the data, the partitioner and its seed, 'data.client_validation', 'client_test' and "
        "'public_share'.",
        "site ": f"Sites keep their numbers in the folder of 'fl-lightning serve'.{joining}",
    }
    listed = ", ".join(f"'{name}'" for name in names[:_LISTED])
    first = f"Resume with the same settings, {again} '{_ON_PURPOSE}' does not allow changes to {listed}."
    return " ".join([first, *(hint for start, hint in hints.items() if any(name.startswith(start) for name in names))])


def _shown(value: Any) -> str:
    text = repr(_named(value))
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _named(value: Any) -> Any:
    """Replace objects by the names of their classes."""
    if isinstance(value, Mapping):
        return value[CLASS].rpartition(".")[2] if CLASS in value else {key: _named(item) for key, item in value.items()}
    return [_named(item) for item in value] if isinstance(value, list) else value


def renew(states: list[dict[str, Any]], optimizer: Optimizer, found: Sequence[Change]) -> None:
    """Apply changed settings of the server's optimizer, which the checkpoint's would otherwise overwrite.

    The optimizer keeps its state if only numbers change. With another class, or if an option such as ``amsgrad`` is switched
    on or off, it starts with new state.
    """
    changed = [change for change in found if change.name.startswith(_SERVER)]
    if not changed:
        return
    new = optimizer.state_dict()
    of_size = all(change.name != _SERVER and bool(change.before) == bool(change.now) for change in changed)
    states[:] = [{**states[0], "param_groups": new["param_groups"]} if of_size else new]


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
    if not data.client_datasets.whole:  # clients with loaders of their own, maybe at sites, whose names and sizes are compared
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
    if data.client_datasets.whole:
        found = {"data.training_examples": content(data.client_datasets.source.dataset), "data.persons": _persons(data)}
    if data.has_validation_set and data.server_set == "datamodule" and trainer.limit_val_batches:
        found["data.validation_examples"] = loader_content(data.server_loader("val_dataloader"))
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
    settings, device = {"model": describer.describe(client, "model")}, trainer.strategy.root_device
    precision = resolve_precision(local, str(trainer.precision), device)
    run = inner_trainer(device, [], precision=precision, accumulate_grad_batches=local.accumulate_grad_batches)
    batch_size = data.client_datasets.source.batch_size or 1 if data.client_datasets.whole else 1
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
    both: tuple[Any, ...] = ("model.optimizer", _optimizer, optimizers), ("model.lr_scheduler", _schedule, schedulers)
    for name, describe, found in both:
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
