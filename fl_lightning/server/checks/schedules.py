"""Refuse schedules that end before the training does, such as OneCycleLR, which raises an error after its last step."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning.clients.engines.client_run import ClientRun
from fl_lightning.clients.engines.fabric.optimizer import batches_per_epoch, configured_optimizers
from fl_lightning.clients.isolation.client_copy import client_copy
from fl_lightning.clients.training.turn import TurnPlan
from fl_lightning.compat.torch import chained_schedules, count_as_stepped, is_batch_norm, schedule_starts
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.seeding import isolated_rng
from fl_lightning.messages import ClientTask, Progress
from fl_lightning.server.outer_trainer import planned_rounds
from fl_lightning.settings.federation import FederationSettings


def check_schedules(
    owner: FederationSettings, trainer: Trainer, module: LightningModule, data: FederatedDataModule, first: int | None
) -> None:
    """Refuse a schedule that raises an error before the largest client has trained in all rounds.

    Schedules whose steps cannot be counted beforehand are left alone: those that follow a metric, and those of modules that
    optimize manually, step schedules themselves, or train on data of unknown length. So are runs that may stop early.

    Args:
        owner: the federation's settings.
        trainer: the user's Trainer.
        module: the clients' copy of the module.
        data: the data, set up for a fit.
        first: the number of rounds for which a resumed run was first started; None for a new run.

    Raises:
        ConfigurationError: with the schedule, its last step and the number of steps that the training needs.
    """
    rounds = planned_rounds(trainer)
    counted = module.automatic_optimization and not is_overridden("lr_scheduler_step", module)
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    stops = trainer.fast_dev_run or any(isinstance(one, EarlyStopping | Timer) for one in callbacks)  # type: ignore[attr-defined]
    if rounds is None or stops or not counted or not data.has_one_set:
        return
    turns, progress = 1, None
    if owner.local.progress == "run":
        turns, progress = owner.route.turns_before(rounds), Progress(0, owner.route.turns_before(first or rounds))
    plan = TurnPlan.of(ClientTask(0, 0, progress=progress), owner.local)
    try:
        with isolated_rng(0, torch.device("cpu")):
            batches = _most_batches(owner, module, data)
            client = _ready_copy(owner, trainer, module, data, plan, batches)
            for number, config in enumerate(_schedules(client)):
                moments = [kind == config.interval and (at + 1) % config.frequency == 0 for kind, at in plan.events(batches)]
                needed = turns * sum(moments)
                if config.reduce_on_plateau or not _may_end(config.scheduler, needed):
                    continue
                end = _end(_schedules(client)[number].scheduler, needed)
                if end is not None:
                    raise _Ends(type(config.scheduler).__name__, needed, *end)
    except _Ends as found:
        name, needed, done, error = found.args
        raise ConfigurationError(
            f"The schedule {name} ends after {done} steps ({error}), but a client takes up to {needed} of them in "
            f"{'each round' if progress is None else f'{rounds} rounds'}. {_remedy(rounds, first, progress is None)}"
        ) from None
    except Exception:  # real errors show up in training, where they name the client
        return


class _Ends(Exception):  # noqa: N818
    """Carry a schedule's name, the steps it needs, the steps it has, and its error."""


def _remedy(rounds: int, first: int | None, each: bool) -> str:
    if first is not None and rounds > first and not each:
        return (
            f"The run was first started for {first} rounds, for which schedules stay planned. Set 'trainer.max_epochs' to "
            f"{first}, or start a new run for {rounds} rounds, with the weights of this one if you like."
        )
    return (
        "Let 'configure_optimizers' give it as many as the training has ('self.trainer.estimated_stepping_batches'), or use a "
        "schedule without an end, such as CosineAnnealingLR."
    )


def _most_batches(owner: FederationSettings, module: LightningModule, data: FederatedDataModule) -> int:
    """Return the number of batches in an epoch of the largest client."""
    largest = int(data.indices.sizes.argmax())
    drops = any(is_batch_norm(part) and part.training for part in module.modules())
    loader: Any = data.client(largest, 0, owner.local.full_batch, drops).train_dataloader()
    return batches_per_epoch(len(loader), owner.local, False)


def _ready_copy(
    owner: FederationSettings,
    trainer: Trainer,
    module: LightningModule,
    data: FederatedDataModule,
    plan: TurnPlan,
    batches: int,
) -> LightningModule:
    """Return a copy of the module that can configure its optimizers as it does at the largest client."""
    client = client_copy(module)
    run = ClientRun("fabric", owner.local, data.datamodule, [], trainer.precision_plugin, trainer.strategy.root_device)
    run.note(max_epochs=plan.max_epochs, max_steps=plan.all_steps)
    run.note(num_training_batches=batches, _count_batches=lambda: batches)
    stand_in: Any = run
    client.trainer = stand_in
    return client


def _schedules(client: LightningModule) -> list[Any]:
    """Return the schedules that a module configures."""
    optimizers, configs = configured_optimizers(client)
    for optimizer in optimizers:
        count_as_stepped(optimizer)  # otherwise its scheduler would warn
    return configs


def _may_end(scheduler: Any, needed: int) -> bool:
    """Return whether a step far ahead fails, which may also be because a schedule cannot skip steps."""
    _skip(scheduler, needed - 1)
    try:
        scheduler.step()
    except Exception:
        return True
    return False


def _skip(scheduler: Any, steps: int) -> None:
    scheduler.last_epoch = steps
    for part, start in zip(chained_schedules(scheduler), schedule_starts(scheduler), strict=True):
        if steps >= start:
            _skip(part, steps - start)


def _end(scheduler: Any, needed: int) -> tuple[int, str] | None:
    """Return the last step of a schedule that ends before ``needed`` steps, and its error; None for one that does not."""
    for done in range(needed):
        try:
            scheduler.step()
        except Exception as error:
            return done, str(error)
    return None
