"""Measure the inputs of all clients before round 0, for the parts of a module that scale them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.core.capabilities import Capability, Need, Part, check_need
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.schema import categories_of, schema_of
from fl_lightning.errors import ConfigurationError, add_note
from fl_lightning.functional.exact_moments import Moments, together
from fl_lightning.functional.seeding import derive_seed
from fl_lightning.functional.small_counts import without_small
from fl_lightning.models.standardized import Standardized, standardized_parts
from fl_lightning.utilities.collectives import Collectives

_REMOVE = "Leave out Standardized, and scale by public numbers"


def unmeasured(module: LightningModule, parts: Iterable[Part]) -> Standardized | None:
    """Return the part of a module whose inputs the clients must measure; None without one.

    Args:
        module: the module.
        parts: the parts of the federation, which may not allow it.

    Raises:
        ConfigurationError: if another part does not allow it, if there are several, or if the module changes batches.
    """
    found = standardized_parts(module)
    if len(found) > 1:
        raise ConfigurationError(
            f"{type(module).__name__} contains Standardized {len(found)} times, but it scales the inputs of the whole network. "
            "Keep the outermost."
        )
    if not found or found[0].is_measured:
        return None
    hook = next((name for name in ("on_before_batch_transfer", "on_after_batch_transfer") if is_overridden(name, module)), "")
    if hook:
        raise ConfigurationError(
            f"{type(module).__name__} changes batches in '{hook}', but Standardized is measured before that. Move the change "
            "to the datamodule's hook of this name, or into the network."
        )
    everyone = list(parts)
    why = "Standardized reads sums over the clients' inputs, which get no noise"
    check_need(Need(Capability.OPEN_HOLDINGS, why, _REMOVE), everyone)
    check_need(Need(Capability.SINGLE_UPDATES, "Standardized reads sums of each client", _REMOVE), everyone)
    return found[0]


def refuse_reading(trainer: Trainer, parts: Iterable[Part]) -> None:
    """Refuse a report about the inputs of clients elsewhere if another part does not allow it.

    Raises:
        ConfigurationError: naming that part.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if any(getattr(callback, "reads_inputs", False) for callback in callbacks):
        why, remedy = (
            "'partition_report.features' reads sums over the clients' inputs",
            "Set 'partition_report.features' to false",
        )
        everyone = list(parts)
        check_need(Need(Capability.OPEN_HOLDINGS, f"{why}, which get no noise", remedy), everyone)
        check_need(Need(Capability.SINGLE_UPDATES, f"{why}, of each client", remedy), everyone)


def _told(data: FederatedDataModule, client: int, part: Standardized, seed: int) -> Moments:
    """Return the sums that a client of a simulation tells: with noise, or without those over few rows."""
    if part.epsilon is not None:
        draw = random.Random(derive_seed(seed, client, "noise of sums"))
        return data.noisy_moments(client, part.epsilon, draw.randrange)
    own = data.input_moments(client)
    return without_small(own, categories_of(data.datamodule, len(own.counts)), part.min_count)


def measure_inputs(trainer: Trainer, data: FederatedDataModule, part: Standardized, seed: int) -> None:
    """Set the scale of a module's inputs to that of all clients' training examples, the same on every rank.

    Args:
        trainer: the Trainer.
        data: the datamodule.
        part: the part of the module.
        seed: the seed of the noise that clients of a simulation add, if they add any.

    Raises:
        ConfigurationError: if a client outside this process does not tell its sums.
        DataError: if inputs cannot be measured, which names the client, or have different numbers of channels.
    """
    comm = Collectives(trainer)
    mine: list[Moments] = []
    failure: Exception | None = None
    for client in range(data.num_clients)[comm.rank :: comm.size]:
        try:
            mine.append(data.input_moments(client) if data.is_remote else _told(data, client, part, seed))
        except Exception as error:
            add_note(error, f"In the statistics of client {data.client_name(client)}.")
            failure = error
            break
    everyone = [moments for theirs in comm.gather_or_raise(mine, failure) for moments in theirs]
    whole, schema = together(everyone), schema_of(data.datamodule)
    part.set_moments(
        whole, () if schema is None else schema.filled, data.is_remote or part.min_count > 1 or part.epsilon is not None
    )
    untold = [str(k) for k, count in enumerate(whole.counts) if not count]
    if untold:
        rank_zero_warn(
            f"Channels {', '.join(untold)} of the inputs are not scaled, because no client tells their sums: they would tell "
            "of few rows, or have no range for noise."
        )
