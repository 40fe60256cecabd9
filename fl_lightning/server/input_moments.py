"""Measure the inputs of all clients before round 0, for the parts of a module that scale them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.clients.answering import INPUTS, told_moments
from fl_lightning.core.capabilities import Capability, Need, Part, check_need
from fl_lightning.core.federation import Federation
from fl_lightning.core.option import ServerHooks
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.input_statistics import input_moments
from fl_lightning.data.remote import RemoteDatasets
from fl_lightning.data.schema import channel_names, schema_of
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_moments import Moments, together
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
    if not any(getattr(part, "seals", False) for part in everyone):
        check_need(Need(Capability.SINGLE_UPDATES, "Standardized reads sums of each client", _REMOVE), everyone)
    return found[0]


def refuse_reading(trainer: Trainer, parts: Iterable[Part]) -> None:
    """Refuse a report about the inputs of clients elsewhere if another part does not allow it.

    Raises:
        ConfigurationError: naming that part.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    if any(getattr(callback, "reads_inputs", False) for callback in callbacks):
        setting, everyone = "'federation_report.features'", list(parts)
        why, remedy = f"{setting} reads sums over the clients' inputs", f"Set {setting} to false"
        check_need(Need(Capability.OPEN_HOLDINGS, f"{why}, which get no noise", remedy), everyone)
        check_need(Need(Capability.SINGLE_UPDATES, f"{why}, of each client", remedy), everyone)


def measure_inputs(trainer: Trainer, data: FederatedDataModule, part: Standardized) -> None:
    """Set the scale of a module's inputs to that of all clients' training examples, the same on every rank.

    Args:
        trainer: the Trainer.
        data: the datamodule.
        part: the part of the module.

    Raises:
        ConfigurationError: if a client outside this process does not tell its sums.
        DataError: if inputs cannot be measured, which names the client, or have different numbers of channels.
    """

    def moments(client: int) -> Moments:
        return input_moments(data, client) if data.is_remote else told_moments(data, client, part)

    _set(part, together(Collectives(trainer).spread(data.num_clients, moments)), data)


def add_up_inputs(federation: Federation, hooks: Iterable[ServerHooks], part: Standardized) -> None:
    """Set the scale of a module's inputs from totals over all clients, which an option's hooks add up.

    Args:
        federation: the parts of the federation.
        hooks: the hooks of the options in use.
        part: the part of the module.

    Raises:
        ConfigurationError: if a client outside this process does not tell its sums.
        ClientError: if too few clients answer, or the totals are not those of numbers.
    """
    data, channels = federation.data, part.num_features
    if isinstance(data.client_datasets, RemoteDatasets):
        data.client_datasets.require_sums()
    found = (hook.add_up(federation, INPUTS, 3 * channels) for hook in hooks)
    totals: Sequence[int] | None = next((total for total in found if total is not None), None)
    if totals is None:
        raise ConfigurationError(f"Standardized needs the {INPUTS} over all clients, which no option adds up. {_REMOVE}.")
    counts, sums, squares = (tuple(totals[k : k + channels]) for k in range(0, 3 * channels, channels))
    try:
        whole = Moments(counts, sums, squares).possible()
    except ValueError as error:
        raise ClientError(f"The {INPUTS} over all clients are impossible, so that one has sent something else.") from error
    _set(part, whole, data)


def _set(part: Standardized, whole: Moments, data: FederatedDataModule) -> None:
    """Set the scale, and warn of channels that no client reports."""
    schema, names = schema_of(data.datamodule), channel_names(data, len(whole.counts))
    partial = data.is_remote or part.min_count > 1
    part.set_moments(whole, () if schema is None else schema.filled, partial, names)
    untold = [name for name, count in zip(names, whole.counts, strict=True) if not count]
    if untold:
        rank_zero_warn(
            f"These inputs are not scaled, because no client tells their sums: {', '.join(untold)}. They would tell of few "
            "rows."
        )
